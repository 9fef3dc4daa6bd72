"""Patterns of letters that say what each layer of a stack is: "7M1A", "MA+S"."""

from __future__ import annotations

import re

LAYER = r"([1-9]\d*)?([A-Z](?:\+[A-Z])*)"


def spread(pattern: str, num_layers: int) -> list[str]:
    """One entry for each layer: "2MA+S" over four layers is M, M, A+S, M."""
    once = [layer for count, layer in re.findall(LAYER, pattern) for _ in range(int(count or 1))]
    return [once[index % len(once)] for index in range(num_layers)]


def check_pattern(name: str, pattern: str, letters: list[str], *, joined: bool) -> None:
    """Raises ValueError for a pattern that is not made of these letters, or joins what cannot be."""
    example = "7M1A or MA+S" if joined else "FE or 3F1E"
    if not re.fullmatch(f"(?:{LAYER})+", pattern) or ("+" in pattern and not joined):
        raise ValueError(f"{name}={pattern!r} is no pattern of layers: write letters such as {example}")
    unknown = sorted(set(re.findall("[A-Z]", pattern)) - set(letters))
    if unknown:
        raise ValueError(f"{name}={pattern!r} has {', '.join(unknown)}: the letters are {', '.join(letters)}")
