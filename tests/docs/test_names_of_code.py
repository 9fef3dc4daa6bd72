"""Files and dotted names of our code that pages and docstrings mention exist."""

from __future__ import annotations

import ast
import functools
import re
import subprocess

from tests import ROOT

PACKAGES = ("architectures", "experiments", "analysis", "slurm")
FILE = re.compile(r"`((?:\w+/)*[a-z_0-9]+\.py)`")
DOTTED = re.compile(rf"`(?:archbench\.)?((?:{'|'.join(PACKAGES)})(?:\.(?!out\b)\w+)+)`")
OTHERS = {"mamba_ssm", "lra_benchmarks"}
"""First folders of files in code of others."""


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Return the pages of the documentation, and every docstring, with the path of its file."""
    mentions = [
        (str(page.relative_to(ROOT)), page.read_text()) for page in sorted((ROOT / "docs").rglob("*.md"))
    ]
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                # An attribute's docstring is a string expression, too.
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    mentions.append((str(path.relative_to(ROOT)), str(node.value.value)))
    return mentions


def exists(name: str) -> bool:
    """Return True if a dotted name is a module or package of ours, or is defined in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module.exists():
            source = module.read_text()
            return all(re.search(rf"^\s*(?:def |class )?{part}\b", source, re.M) for part in parts[length:])
    return False


def test_files_that_are_mentioned_exist() -> None:
    words = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    endings = {"/".join(path.split("/")[depth:]) for path in listed for depth in range(path.count("/") + 1)}
    missing = [
        f"{where}: {name}"
        for where, text in texts()
        for name in FILE.findall(text)
        if name not in endings and name.split("/")[0] not in OTHERS
    ]
    assert missing == []


def test_dotted_names_that_are_mentioned_exist() -> None:
    missing = [
        f"{where}: {name}" for where, text in texts() for name in DOTTED.findall(text) if not exists(name)
    ]
    assert missing == []
