"""Settings of the documentation site: ``make docs`` builds it with warnings as errors."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from config_reference import write_reference  # noqa: E402

project = "archbench"
author = "The archbench authors"
project_copyright = f"2026, {author}"
version = release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "downstream",
    "reference/_generated",
    "results/compare.md",  # included by results/main_comparison.md
    "results/published",
    "results/speed_decode.md",
]
myst_enable_extensions = ["deflist", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages that commands write begin at any level of headings

html_theme = "furo"
html_title = "archbench"
html_theme_options = {"navigation_with_keys": True}

autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_ivar = True


def escape_markup(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep names such as ``x_`` and ``**words`` in docstrings from being read as markup."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``|:\w+:`.*?`)", line)
        lines[number] = "".join(
            part if index % 2 else re.sub(r"([*|]|_(?=\W|$)|`)", r"\\\1", part)
            for index, part in enumerate(parts)
        )


def setup(app: object) -> None:
    write_reference(HERE / "reference" / "_generated")
    app.connect("autodoc-process-docstring", escape_markup)  # type: ignore[attr-defined]
