"""Docstrings and sources of seven Python packages: three larger corpora that need no network.

The packages are dependencies of the harness or of PyTorch, in the versions of constraints.txt.
``package_docs`` has the docstrings of each module (prose with examples), ``package_code`` its source, and
``package_letters`` the docstrings in 27 symbols, the letters a to z and the space, as in text8 (Mahoney
2006). The text is compared with a hash, so that it is the same on every machine: another version is an error.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from archbench.experiments.data.document import Document
from archbench.experiments.data.python_docs import module_docstrings, without_repeats
from archbench.experiments.runtime.errors import DataError

PACKAGE_DOCS, PACKAGE_CODE, PACKAGE_LETTERS = "package_docs", "package_code", "package_letters"
VERSIONS = {
    "numpy": "2.4.6", "scipy": "1.17.1", "pandas": "3.1.1", "matplotlib": "3.11.2", "scikit-learn": "1.9.1",
    "networkx": "3.6.1", "sympy": "1.14.0",
}  # fmt: skip
"""Distributions and their versions, as in constraints.txt."""
IMPORT_NAMES = {"scikit-learn": "sklearn"}
HASHES = {
    PACKAGE_DOCS: "8d04e718d57c9f9e781ad82c8ba0a212e0694563f531720d608db419ee59c22c",
    PACKAGE_CODE: "7e800414f2f1d78c5b0c8e06c11255f96f4f546158b79c1dbad46f1a26355e94",
}
"""SHA-256 of names and texts of all documents."""
_LEFT_OUT = {"tests", "test", "testing", "_vendor", "externals", "__pycache__"}
_GENERATED = {"__config__.py", "version.py", "_version.py", "_distributor_init.py"}
"""Modules that differ between builds of one version."""


@cache
def package_documents(source: str) -> tuple[Document, ...]:
    """Return the documents of one of these corpora: one for each module, without repeats.

    Raises:
        DataError: a package has another version, or its files have been changed.
    """
    check_versions(source)
    if source == PACKAGE_LETTERS:
        docs = package_documents(PACKAGE_DOCS)
        return tuple(document._replace(text=letters(document.text)) for document in docs)
    modules = (module for distribution in VERSIONS for module in modules_of(distribution))
    found = tuple(without_repeats(read_modules(modules, docstrings=source == PACKAGE_DOCS)))
    if (actual := text_hash(found)) != HASHES[source]:
        raise DataError(
            f"source={source}: the installed files of {', '.join(VERSIONS)} are not those of their versions "
            f"(hash {actual[:16]}): install them again, or use another task.source"
        )
    return found


def letters(text: str) -> str:
    """Return a text in lower case, with one space in place of everything between letters a to z."""
    return re.sub("[^a-z]+", " ", text.lower()).strip()


def check_versions(source: str) -> None:
    """Raise DataError if a package does not have the version of constraints.txt."""
    wrong = []
    for distribution, version in VERSIONS.items():
        installed = importlib.metadata.version(distribution)
        if installed != version:
            wrong.append(f"{distribution} {installed}, not {version}")
    if wrong:
        names = " ".join(f"{name}=={version}" for name, version in VERSIONS.items())
        raise DataError(
            f"source={source}: {'; '.join(wrong)}: pip install {names}, or use another task.source"
        )


def modules_of(distribution: str) -> Iterator[tuple[str, Path]]:
    """Return name and path of the modules of a package, without its tests and generated files."""
    name = IMPORT_NAMES.get(distribution, distribution)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if path.name not in _GENERATED and not _LEFT_OUT.intersection(relative.parts):
            yield f"{name}/{relative.as_posix()}", path


def read_modules(modules: Iterable[tuple[str, Path]], *, docstrings: bool) -> Iterator[Document]:
    """Return the docstrings or the source of each module that has any."""
    for name, path in modules:
        source = path.read_text(encoding="utf-8")
        if docstrings:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about escapes in string literals
                source = "\n\n".join(module_docstrings(ast.parse(source)))
        if source.strip():
            yield Document(name, source)


def text_hash(documents: Iterable[Document]) -> str:
    """Return the SHA-256 of names and texts."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.name}\0{document.text}\0".encode())
    return digest.hexdigest()
