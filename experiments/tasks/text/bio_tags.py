"""Entities marked by tags: B- begins one, I- continues one, O is outside; E- ends one, S- is a single word.

The conventions of conlleval, the script of the CoNLL shared tasks, as seqeval implements them: an I- outside
of an entity begins one, so IOB1, IOB2 and IOBES are all read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_TAG = re.compile(r"O|[BIES]-.+")


def is_entity_scheme(tags: Iterable[str]) -> bool:
    """Return True if every tag is O or begins with B-, I-, E- or S- and names a type."""
    return all(_TAG.fullmatch(tag) for tag in tags)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the entities of a sentence: type, first word, word after the last."""
    from seqeval.metrics.sequence_labeling import get_entities  # imports scikit-learn, slow

    return {(entity_type, start, end + 1) for entity_type, start, end in get_entities(list(tags))}
