"""Rows with named columns, and their splits: the data of tasks with labels.

From local files (.jsonl .json .csv .tsv .parquet, or .conll: a word and its tag
on a line) or from a Hugging Face dataset. A split that the source does not name
is carved from its training rows by a hash of their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from archbench.experiments.data.corpus import SPLITS, split_of
from archbench.experiments.data.document import check_encodable
from archbench.experiments.data.hub import hub_rows
from archbench.experiments.data.local_files import (
    check_no_overlap,
    decode_utf8,
    find_files,
    named_files,
    rows_of_file,
)
from archbench.experiments.runtime.errors import DataError, nearest

SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".conll")
CONLL_COLUMNS = ("tokens", "tags")
"""The columns of a row that is a sentence of a .conll file."""
DOCUMENT = "-DOCSTART-"
"""The word of a line between documents."""
_ENTITY_TAG = re.compile(r"O|[BIES]-\S+")
_WORD_NUMBER = re.compile(r"([0-9]{1,9})([-.][0-9]{1,9})?")


class Row(NamedTuple):
    """A row, and its location for messages."""

    location: str
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """The source of the rows and their splits."""

    made: ClassVar[str | None] = None
    """The source that a task makes itself, without files or network."""

    source: str = "files"
    """``files``, ``hub``, or what the task makes itself."""
    paths: list[str] = field(default_factory=list)
    """Files or globs to train on (files): .jsonl .json .csv .tsv .parquet .conll."""
    validation_paths: list[str] = field(default_factory=list)
    """Files of the validation split; empty carves it from ``paths`` by row."""
    test_paths: list[str] = field(default_factory=list)
    """Files of the test split; empty carves it from ``paths`` by row."""
    dataset: str | None = None
    """Name on the Hugging Face hub, or a local folder in the hub's layout (hub)."""
    dataset_config: str | None = None
    """Configuration of the dataset; null for its default."""
    revision: str | None = None
    """Commit or tag of the dataset on the hub; null for the newest."""
    train_split: str = "train"
    """The dataset's split to train on."""
    validation_split: str | None = "validation"
    """The dataset's validation split; null carves it from the training split by row."""
    test_split: str | None = "test"
    """The dataset's test split; null carves it from the training split by row."""
    max_rows: int | None = None
    """Read at most this many rows of each split of the source, its first ones: no sample of a sorted source.
    Null reads all."""

    def __post_init__(self) -> None:
        sources = [name for name in (self.made, "files", "hub") if name]
        if self.source not in sources:
            raise ValueError(f"source={self.source!r} is unknown{nearest(self.source, sources)}")
        if (self.source == "files") != bool(self.paths):
            raise ValueError(f"source={self.source} with paths={self.paths}: source=files needs paths=[...]")
        if (self.source == "hub") != bool(self.dataset):
            raise ValueError(f"source={self.source} with dataset={self.dataset}: source=hub needs a dataset")
        if self.source != "files" and (self.validation_paths or self.test_paths):
            raise ValueError(f"source={self.source} reads no paths: set source=files to read them")
        if self.source == "hub" and self.train_split in (self.validation_split, self.test_split):
            raise ValueError(
                f"train_split={self.train_split} is also held out: name another validation_split and "
                "test_split, or null to carve them"
            )
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(f"max_rows={self.max_rows} must be at least 1, or null for all")


def read_rows(config: RowsConfig, columns: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Every row of files or hub with its split, training rows first. Raises DataError."""
    is_named = {
        "files": {"validation": bool(config.validation_paths), "test": bool(config.test_paths)},
        "hub": {"validation": bool(config.validation_split), "test": bool(config.test_split)},
    }[config.source]
    carved = [split for split, has_name in is_named.items() if not has_name]
    if config.source == "files":
        check_no_overlap(_patterns(config), SUFFIXES)
    for split in SPLITS:
        if split in carved:
            continue
        for name, row in islice(_source_rows(config, split, columns), config.max_rows):
            yield split_of(name, carved) if split == "train" else split, row


def _patterns(config: RowsConfig) -> dict[str, list[str]]:
    return {"train": config.paths, "validation": config.validation_paths, "test": config.test_paths}


def _source_rows(config: RowsConfig, split: str, columns: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a split of the source with their names, which decide carved splits."""
    if config.source == "hub":
        assert config.dataset is not None
        rows = hub_rows(
            config.dataset,
            config=config.dataset_config,
            revision=config.revision,
            split=getattr(config, f"{split}_split"),
            streaming=False,
            limit=config.max_rows,
        )
        for name, location, values in rows:
            assert isinstance(values, Mapping)
            yield name, Row(location, values)
        return
    for path, name in named_files(find_files(_patterns(config)[split], SUFFIXES)):
        for location, values in _conll_rows(path) if path.suffix == ".conll" else rows_of_file(path, columns):
            if not isinstance(values, Mapping):
                raise DataError(f"{path}, {location}: expected an object, got {type(values).__name__}")
            yield f"{name}#{location}", Row(f"{path}, {location}", values)


def _conll_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Sentences: each line has a word, optional columns, and the tag; empty lines separate sentences.

    Lines end at LF or CR LF only. Columns are separated by tabs where a line has one, else by spaces; other
    white space is part of a word, and an error in a tag. Every word has as many columns, so that a word with
    a space is not cut.
    """
    text = decode_utf8(path.read_bytes(), path, 0)
    if "\n" not in text and "\r" in text.rstrip("\r"):
        raise DataError(f"{path}: its lines end at CR: convert it, for example with mac2unix")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if _has_word_numbers(lines):
        raise DataError(
            f"{path}: its first column counts the words, as in CoNLL-U: the word must come first and its tag "
            "last; remove lines such as 1-2, and keep two columns, for example with cut -f2,4"
        )
    form = _conll_form(lines)
    sentence: list[tuple[str, str]] = []
    begin = 0
    for line_number, line in enumerate([*lines, ""], start=1):
        columns = _columns(line)
        if line.startswith("#") and not form.has_word(line):
            if sentence and len(columns) == form.columns:
                raise DataError(f"{path}, line {line_number}: a comment, or a word? Separate columns by tabs")
            continue
        if line.strip() and columns[0] != DOCUMENT:
            if len(columns) < 2 or not columns[0] or not columns[-1]:
                raise DataError(f"{path}, line {line_number}: not a word and its tag; write 'word tag'")
            if len(columns) != form.columns:
                raise DataError(
                    f"{path}, line {line_number}: {len(columns)} columns, the first word has {form.columns}: "
                    "mend the line; separate columns by tabs where words have spaces"
                )
            if " " in columns[-1] or not columns[-1].isprintable():
                raise DataError(
                    f"{path}, line {line_number}: the tag {columns[-1]!a} has white space or a control "
                    "character: remove it"
                )
            begin = begin if sentence else line_number
            sentence.append((columns[0], columns[-1]))
        elif sentence:
            yield f"line {begin}", dict(zip(CONLL_COLUMNS, zip(*sentence, strict=True), strict=True))
            sentence = []


class _ConllForm(NamedTuple):
    """What the words of a .conll file have in common, by which words that begin with # are recognised."""

    columns: int
    tags: frozenset[str]

    def has_word(self, line: str) -> bool:
        """Return True for a line of a word that begins with #, False for a comment such as ``# id = 1``."""
        columns = _columns(line)
        if len(columns) != self.columns or not columns[-1]:
            return False
        is_tag = columns[-1] in self.tags or _ENTITY_TAG.fullmatch(columns[-1]) is not None
        return is_tag or ("\t" in line and not line.startswith("# "))


def _conll_form(lines: Sequence[str]) -> _ConllForm:
    """Return the form of the words that do not begin with #."""
    found = [_columns(line) for line in lines if line.strip() and not line.startswith("#")]
    words = [columns for columns in found if columns[0] != DOCUMENT]
    return _ConllForm(len(words[0]) if words else 2, frozenset(columns[-1] for columns in words))


def _columns(line: str) -> list[str]:
    """Return the columns of a line of a .conll file; a word may have spaces if tabs separate columns."""
    if "\t" not in line:
        return [column for column in line.split(" ") if column] or [""]
    return line.split("\t")


def _has_word_numbers(lines: Sequence[str]) -> bool:
    """Return True if the first column counts the words of every sentence, from 0 or 1, as in CoNLL-U.

    Numbers of more words or of omitted ones, such as 1-2 and 3.1, may be between these.
    """
    last, counted = None, False
    for line in lines:
        word = _columns(line)[0]
        if not line.strip() or word == DOCUMENT:
            last = None
        elif not line.startswith("#"):
            number = _WORD_NUMBER.fullmatch(word)
            if number is None:
                return False
            if number[2] is None:
                counted |= last is not None
                if int(number[1]) not in ((0, 1) if last is None else (last + 1,)):
                    return False
                last = int(number[1])
    return counted


def value_in(row: Row, column: str, key: str) -> Any:
    """Return the value in the column that ``task.KEY`` names. Raises DataError if it is missing."""
    if column not in row.values:
        raise DataError(
            f"{row.location}: no column '{column}'{nearest(column, map(str, row.values))} Set task.{key}"
        )
    value = row.values[column]
    if value is None or (isinstance(value, str) and not value):
        raise DataError(
            f"{row.location}: column '{column}' is empty: remove the row, or use a split with labels"
        )
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str):
            check_encodable(text, row.location, column)
    return value
