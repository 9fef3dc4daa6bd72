"""Reads ``key=value`` arguments against the fields of a config."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields


def read_arguments(arguments: Sequence[str], config: type) -> dict[str, str]:
    """The value given to each field of a dataclass. Raises ValueError where there is no such field."""
    known = [f.name for f in fields(config)]
    values = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in known or not equals:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{near[0]}='? " if near else ""
            raise ValueError(f"'{argument}': {hint}the keys are {', '.join(known)}")
        values[key] = value
    return values
