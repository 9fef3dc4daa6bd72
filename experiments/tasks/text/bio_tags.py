"""Entities marked by tags: B- begins one, I- goes on, O is outside; E- ends one, S- is a single word.

The conventions of conlleval, the script of the CoNLL shared tasks: an I- that
continues nothing begins an entity, so IOB1, IOB2 and IOBES are all read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_TAG = re.compile(r"O|[BIES]-.+")


def is_entity_scheme(tags: Iterable[str]) -> bool:
    """True if every tag is O or begins with B-, I-, E- or S- and names a type."""
    return all(_TAG.fullmatch(tag) for tag in tags)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities of a sentence: type, first word, word after the last."""
    found = set()
    kind, begin = None, 0
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        goes_on = prefix in ("I", "E") and name == kind
        if kind is not None and not goes_on:
            found.add((kind, begin, i))
            kind = None
        if prefix != "O" and kind is None:
            kind, begin = name, i
        if prefix in ("E", "S") and kind is not None:
            found.add((kind, begin, i + 1))
            kind = None
    return found
