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
        name: the name in the input.
        options: the valid names; ``recipe/125m`` may be called ``125m``.
        synonyms: for each option, other names for it; synonyms of names that are not options are ignored.
    """
    folded = _folded(name)
    targets: dict[str, str] = {}
    for option in sorted(options):
        alternatives = (synonyms or {}).get(option, ())
        targets |= {_folded(target): option for target in (*alternatives, option.rpartition("/")[2], option)}
    if folded in targets:
        return targets[folded]
    prefixes = [
        target
        for target in targets
        if (target.startswith(folded) and len(folded) >= 2)
        or (folded.startswith(target) and len(target) >= 3)
    ]
    by_word = [
        target
        for target, option in targets.items()
        if folded in re.split(r"[\W_]+", option.lower()) or sorted(folded) == sorted(target)
    ]
    candidates, cutoff = (prefixes or by_word, 0.0) if prefixes or by_word else (list(targets), CUTOFF)
    close = difflib.get_close_matches(folded, candidates, n=1, cutoff=cutoff)
    return targets[close[0]] if close else None


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
