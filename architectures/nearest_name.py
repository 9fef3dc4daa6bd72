"""The valid name that is nearest to a name that is not valid, for error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

CUTOFF = 0.75
"""Similarity (``difflib.SequenceMatcher.ratio``) below which an option is not suggested."""


def nearest_name(
    name: str, options: Iterable[str], synonyms: Mapping[str, Iterable[str]] | None = None
) -> str | None:
    """Return the option that was probably meant, or None if no option is near.

    Letter case and punctuation are ignored. The rules, in order: the same name or a synonym; one name begins
    with the other; the name is a word of the option, or has its letters in another order; the most similar
    name.

    Args:
        name: what was written.
        options: the valid names; ``recipe/125m`` may be called ``125m``.
        synonyms: for each option, other names for it; those of other options are not used.
    """
    written = _folded(name)
    targets: dict[str, str] = {}
    for option in sorted(options):
        others = (synonyms or {}).get(option, ())
        targets |= {_folded(each): option for each in (*others, option.rpartition("/")[2], option)}
    if written in targets:
        return targets[written]
    prefixes = [
        each
        for each in targets
        if (each.startswith(written) and len(written) >= 2) or (written.startswith(each) and len(each) >= 3)
    ]
    words = [
        each
        for each, option in targets.items()
        if written in re.split(r"[\W_]+", option.lower()) or sorted(written) == sorted(each)
    ]
    candidates, cutoff = (prefixes or words, 0.0) if prefixes or words else (list(targets), CUTOFF)
    close = difflib.get_close_matches(written, candidates, n=1, cutoff=cutoff)
    return targets[close[0]] if close else None


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
