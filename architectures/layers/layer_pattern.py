"""Patterns of named layer types: which type each layer of a stack has.

A pattern is a list such as ``[mamba*3, attention]``. ``name*count`` means
that many layers, ``attention+mamba2`` for mixers that work in parallel in one
layer. The pattern repeats over the layers of a stack.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from archbench.architectures.nearest_name import nearest_name

ITEM = re.compile(r"(?P<name>[a-z]\w*(?:\+[a-z]\w*)*)(?:\*(?P<count>[1-9]\d*))?")


def expand_pattern(pattern: Sequence[str], num_layers: int) -> list[str]:
    """Return the type of each layer: [mamba*2, attention+s4] over four layers ends in mamba again."""
    once = _unroll(pattern)
    return [once[index % len(once)] for index in range(num_layers)]


def layer_type(pattern: Sequence[str], layer: int) -> str:
    """Return the type of one layer, counted from 0."""
    once = _unroll(pattern)
    return once[layer % len(once)]


def compress_pattern(layers: Sequence[str]) -> list[str]:
    """Return layer types with equal neighbours counted: ``mamba, mamba, s4`` is ``mamba*2, s4``."""
    runs = [(name, len(list(group))) for name, group in itertools.groupby(_unroll(layers))]
    return [name if count == 1 else f"{name}*{count}" for name, count in runs]


def pattern_types(pattern: Sequence[str]) -> set[str]:
    """Return the layer types that occur in a pattern, those of parallel mixers one by one."""
    return {name for item in _unroll(pattern) for name in item.split("+")}


def unbuilt_types(pattern: Sequence[str], num_layers: int) -> set[str]:
    """Return the layer types of a pattern that none of so many layers has: attention of [mamba*3,attention]
    over two layers."""
    return pattern_types(pattern) - pattern_types(expand_pattern(pattern, num_layers))


def format_pattern(pattern: Sequence[str]) -> str:
    """Return a pattern as it is written on the command line: ``[mamba*3,attention]``."""
    return f"[{','.join(pattern)}]"


def check_pattern(key: str, pattern: Sequence[str], types: Sequence[str], *, parallel: bool = False) -> None:
    """Raise ValueError, naming ``key``, unless a pattern consists of these types.

    Args:
        key: The setting, such as ``attention.layers``.
        pattern: Its value.
        types: Names of the layer types that may occur in it.
        parallel: Allow multiple types in one layer, joined by ``+``.
    """
    if isinstance(pattern, str) or not pattern:
        raise ValueError(
            f"{key}={pattern!r} must be a list of layer types, such as [{types[0]}, {types[-1]}*3]"
        )
    for item in pattern:
        match = ITEM.fullmatch(item)
        names = match["name"].split("+") if match else [item]
        for name in names:
            if name not in types:
                close = nearest_name(name, types)
                guess = f"; did you mean {close!r}?" if close else ""
                raise ValueError(
                    f"{key}: {name!r} is not one of {', '.join(types)}{guess} "
                    f"({types[0]}*3 stands for three such layers)"
                )
        if len(names) > 1 and not parallel:
            raise ValueError(f"{key}: {item!r} joins layer types by +, which only the mixers of a hybrid can")


def _unroll(pattern: Sequence[str]) -> list[str]:
    """Return one period of a checked pattern, its repetitions written out."""
    items = [ITEM.fullmatch(item) for item in pattern]
    return [item["name"] for item in items if item for _ in range(int(item["count"] or 1))]
