"""Settings of the documentation site: ``make docs`` builds it with warnings as errors."""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from config_reference import write_reference  # noqa: E402

from archbench.analysis.board.pages import Board, Page, downloads, pages, read_board  # noqa: E402
from archbench.analysis.files import write  # noqa: E402

project = "archbench"
author = "The archbench authors"
project_copyright = f"2026, {author}"
version = release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "downstream",
    "reference/_generated",
    "results/README.md",  # the dataset card
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
html_static_path = ["_static"]
html_css_files = ["tables.css"]

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


CLAIM = re.compile(r'<a class="reference download internal" download="" href="[^"]*/(\w+)\.yaml">')
"""Link to the record of a claim."""


@functools.cache
def results_board() -> tuple[Board, list[Page]]:
    """Return the results board and its pages, of which the first is the board itself."""
    board = read_board(HERE)
    return board, pages(board, findings="../findings.html")


def add_board(app: object, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Replace the page of the board, and link claims to their pages instead of their records."""
    if name == "board/index":
        page = results_board()[1][0]
        context["body"] = f"<h1>{page.title}</h1>\n{page.body}"
    elif name == "findings":
        context["body"] = CLAIM.sub(
            r'<a class="reference internal" href="board/claims/\1.html">', context["body"]
        )


def board_pages(app: Any) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield the other pages of the board, and write the files next to them."""
    board, (_, *others) = results_board()
    for name, content in downloads(board).items():
        write(Path(app.outdir) / "board" / name, content)
    for page in others:
        yield f"board/{page.path}", {"title": page.title, "body": page.body}, "page.html"


def setup(app: Any) -> None:
    write_reference(HERE / "reference" / "_generated")
    app.connect("autodoc-process-docstring", escape_markup)
    app.connect("env-get-outdated", lambda *_: ["board/index", "findings"])  # they depend on stored frames
    app.connect("html-page-context", add_board)
    app.connect("html-collect-pages", board_pages)
