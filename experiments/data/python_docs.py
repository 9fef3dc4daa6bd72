"""English documentation that ships inside CPython: a real corpus that needs no network.

Two kinds of documents: the topics of the language reference (``pydoc_data``)
and the docstrings of the standard library, one document for each module. The
text depends on the Python version, which is part of a token file's key.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

from archbench.experiments.data.document import Document

REFERENCE = "reference/"
"""Names of documents from the language reference begin so."""
LIBRARY = "library/"
"""Prefix of the names of documents with a module's docstrings."""

_LEFT_OUT = {
    "__pycache__", "dist-packages", "idle_test", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "turtledemo",
}  # fmt: skip
_SHORTEST = 40
"""Paragraphs of fewer characters may repeat: headings, one-line signatures."""


@cache
def embedded_documents() -> tuple[Document, ...]:
    """Every document, in a fixed order, no paragraph of 40 characters or more twice.

    Topics quote one another at length. Repeats go before the documents are
    split, so what is tested on was not trained on.
    """
    reference = [Document(REFERENCE + name, topics[name]) for name in sorted(topics)]
    return tuple(without_repeats([*reference, *_library()]))


def without_repeats(documents: Iterable[Document]) -> Iterator[Document]:
    """Return the documents without paragraphs of 40 characters or more that an earlier one has."""
    seen: set[str] = set()
    for document in documents:
        paragraphs = []
        for paragraph in re.split(r"\n\s*\n", document.text):
            plain = " ".join(paragraph.split())
            if plain and plain not in seen:
                paragraphs.append(paragraph)
                if len(plain) >= _SHORTEST:
                    seen.add(plain)
        if paragraphs:
            yield Document(document.name, "\n\n".join(paragraphs).strip("\n") + "\n")


def _library() -> Iterator[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _LEFT_OUT.intersection(relative.parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about escapes in other people's string literals
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # a template or a file for another version, not a module of this one
        text = "\n\n".join(module_docstrings(tree))
        if text.strip():
            yield Document(LIBRARY + relative.as_posix(), text)


def module_docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, in source order."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from module_docstrings(child)
