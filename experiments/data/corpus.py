"""Sources of text, and the split of their documents.

Three sources: documentation that ships inside CPython (``embedded``), local
files, and Hugging Face datasets. A split that the source does not name is
carved from its training documents by a hash of each document's name, so the
split depends neither on the machine nor on the order of reading.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict

from archbench.experiments.data.document import Document
from archbench.experiments.data.file_hashes import FileHashes
from archbench.experiments.data.hub import read_hub
from archbench.experiments.data.local_files import check_no_overlap, find_files, named_files, read_files
from archbench.experiments.data.package_text import (
    PACKAGE_CODE,
    PACKAGE_DOCS,
    PACKAGE_LETTERS,
    VERSIONS,
    package_documents,
)
from archbench.experiments.data.python_docs import LIBRARY, REFERENCE, embedded_documents
from archbench.experiments.runtime.errors import nearest

SPLITS = ("train", "validation", "test")

_EMBEDDED = {"embedded": "", "embedded_reference": REFERENCE, "embedded_library": LIBRARY}
_PACKAGES = (PACKAGE_DOCS, PACKAGE_CODE, PACKAGE_LETTERS)
SOURCES = (*_EMBEDDED, *_PACKAGES, "files", "hub")
_HELD_OUT_FRACTION = 0.05
"""Fraction of the documents carved for each of validation and test."""
_PACKAGES_TEST_FRACTION = 0.12
_PACKAGES_HELD_OUT_CHARACTERS = 2000
"""The packages have few, long modules: more are test documents, of which only the beginning is used."""
_GAP_FRACTION = 0.01
_MOST_GAP = 1000
"""Characters, as a fraction of a document and at most, left out between two splits of one document."""
_SALT = 1146
"""Chosen among 2000 so that of the embedded corpus (few, uneven documents) each half gets about
the same fraction in bytes also."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """A source of text and its splits."""

    source: str = "embedded"
    """``embedded`` (or its halves ``embedded_reference``, ``embedded_library``), ``package_docs``,
    ``package_code``, ``package_letters``, ``files`` or ``hub``."""
    paths: list[str] = field(default_factory=list)
    """Files or globs to train on (source=files): .txt, .md, .json, .jsonl, .parquet."""
    validation_paths: list[str] = field(default_factory=list)
    """Files of the validation split; empty carves it from ``paths`` by document."""
    test_paths: list[str] = field(default_factory=list)
    """Files of the test split; empty carves it from ``paths`` by document."""
    column: str = "text"
    """The column that holds the text (JSON, Parquet, hub)."""
    dataset: str | None = None
    """Name on the Hugging Face hub, or a local folder in the hub's layout (source=hub)."""
    dataset_config: str | None = None
    """Configuration of the dataset; None for its default."""
    revision: str | None = None
    """Commit or tag of the dataset on the hub; None for the newest."""
    train_split: str = "train"
    """The dataset's split to train on."""
    validation_split: str | None = "validation"
    """The dataset's validation split; None carves it from the training split by document."""
    test_split: str | None = "test"
    """The dataset's test split; None carves it from the training split by document."""
    streaming: bool = False
    """Read the dataset over the network row by row, without storing it."""
    max_documents: int | None = None
    """Read at most this many rows of each split of a dataset, its first ones: no sample of a sorted dataset.
    None reads all."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source={self.source!r} is unknown{nearest(self.source, SOURCES)}")
        if self.source == "files" and not self.paths:
            raise ValueError("source=files needs paths: set paths=[...] to files or globs")
        if self.source != "files" and (self.paths or self.validation_paths or self.test_paths):
            raise ValueError(f"source={self.source} reads no paths: set source=files to read them")
        if self.source == "hub" and not self.dataset:
            raise ValueError("source=hub needs dataset: set its name on the hub or a local folder")
        if self.source != "hub" and self.dataset is not None:
            raise ValueError(f"source={self.source} reads no dataset: set source=hub to read {self.dataset}")
        if self.source == "hub" and self.train_split in (self.validation_split, self.test_split):
            raise ValueError(
                f"train_split={self.train_split} is also held out: name another validation_split and "
                "test_split, or null to carve them"
            )
        if self.max_documents is not None and self.max_documents < 1:
            raise ValueError(f"max_documents={self.max_documents} must be at least 1, or null for all")


class SourceIdentity(TypedDict):
    """Everything that determines the text, as it is hashed and stored."""

    settings: dict[str, object]
    """Of ``CorpusConfig``."""
    carved: list[str]
    python: NotRequired[str]
    """The version of the interpreter, whose documentation the text is."""
    packages: NotRequired[dict[str, str]]
    """The versions of the packages that the text is from."""
    files: NotRequired[dict[str, list[list[str]]] | list[list[str]]]
    """Name and hash of each file: of each split, or of a dataset's folder."""


def carved_splits(config: CorpusConfig) -> list[str]:
    """Return the splits taken from the training documents by hash, since the source does not name them."""
    is_named = {
        "files": {"validation": bool(config.validation_paths), "test": bool(config.test_paths)},
        "hub": {"validation": bool(config.validation_split), "test": bool(config.test_split)},
    }.get(config.source, {})
    return [split for split in ("validation", "test") if not is_named.get(split, False)]


def documents(config: CorpusConfig) -> Iterator[tuple[str, Document]]:
    """Yield every document with its split, training documents first."""
    carved = carved_splits(config)
    cut = carved_by_position(config)
    for document in _source_documents(config, "train"):
        if cut:
            yield from _cut(document, carved)
        elif config.source in _PACKAGES:
            split = split_of(document.name, carved, _PACKAGES_TEST_FRACTION)
            most = None if split == "train" else _PACKAGES_HELD_OUT_CHARACTERS
            yield split, document._replace(text=document.text[:most])
        else:
            yield split_of(document.name, carved), document
    for split in ("validation", "test"):
        if split not in carved:
            for document in _source_documents(config, split):
                yield split, document


def split_of(name: str, carved: Sequence[str], test_fraction: float = _HELD_OUT_FRACTION) -> str:
    """Return the split of a document or row of the training source, of which ``carved`` splits are taken."""
    position = int.from_bytes(hashlib.sha256(f"{_SALT}:{name}".encode()).digest()[:8], "big") / 2**64
    if "test" in carved and position < test_fraction:
        return "test"
    if "validation" in carved and test_fraction <= position < test_fraction + _HELD_OUT_FRACTION:
        return "validation"
    return "train"


def carved_by_position(config: CorpusConfig) -> bool:
    """Return True where files have too few documents to give some to each split.

    Each document is then cut: its end is held out, after a gap.
    """
    carved = carved_splits(config)
    if config.source != "files" or not carved:
        return False
    empty = {"train", *carved}
    for document in _source_documents(config, "train"):
        if document.text.strip():
            empty.discard(split_of(document.name, carved))
        if not empty:
            return False
    return True


def _cut(document: Document, carved: Sequence[str]) -> Iterator[tuple[str, Document]]:
    """Yield the parts of a document: its beginning to train on, and the carved splits from its end."""
    text = document.text
    held_out = round(len(text) * _HELD_OUT_FRACTION)
    gap = min(_MOST_GAP, round(len(text) * _GAP_FRACTION))
    start = len(text) - held_out * len(carved)
    yield "train", document._replace(text=text[: max(0, start - gap)])
    for index, split in enumerate(carved):
        begin = start + index * held_out
        skipped = gap if index else 0
        yield split, document._replace(text=text[begin + skipped : begin + held_out])


def _source_documents(config: CorpusConfig, split: str) -> Iterator[Document]:
    if config.source == "files":
        yield from read_files(find_files(_paths(config)[split]), config.column)
    elif config.source == "hub":
        assert config.dataset is not None
        name = getattr(config, f"{split}_split")
        assert name is not None
        yield from read_hub(
            config.dataset,
            config=config.dataset_config,
            revision=config.revision,
            split=name,
            column=config.column,
            streaming=config.streaming,
            limit=config.max_documents,
        )
    elif config.source in _PACKAGES:
        yield from package_documents(config.source)
    else:
        prefix = _EMBEDDED[config.source]
        yield from (d for d in embedded_documents() if d.name.startswith(prefix))


def _paths(config: CorpusConfig) -> dict[str, list[str]]:
    return {"train": config.paths, "validation": config.validation_paths, "test": config.test_paths}


def identity(config: CorpusConfig, cache: Path | None = None) -> SourceIdentity:
    """Return the settings and the contents of their files.

    Args:
        config: of the corpus.
        cache: folder in which the hashes of large files are cached; None caches none.

    Raises:
        DataError: a file cannot be read, or is both trained on and held out, under one name or two.
    """
    settings = {f.name: getattr(config, f.name) for f in fields(CorpusConfig)}
    del settings["streaming"]  # how the rows arrive, not which
    result: SourceIdentity = {"settings": settings, "carved": carved_splits(config)}
    hashes = FileHashes(cache)
    if config.source in _EMBEDDED:
        result["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    elif config.source in _PACKAGES:
        result["packages"] = VERSIONS
    elif config.source == "files":
        check_no_overlap(_paths(config), content=hashes.of)
        # The names decide which documents are held out.
        result["files"] = {
            split: [[name, hashes.of(path)] for path, name in named_files(find_files(patterns))]
            for split, patterns in _paths(config).items()
            if patterns
        }
    elif config.dataset is not None and Path(config.dataset).is_dir():
        files = sorted(p for p in Path(config.dataset).rglob("*") if p.is_file())
        result["files"] = [[p.relative_to(config.dataset).as_posix(), hashes.of(p)] for p in files]
    hashes.keep()
    return result
