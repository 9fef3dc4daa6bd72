"""Paths on a command line: written as in any other program, with or without quotes of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from experiments.config.command_line import PATHS, at_home


def path_words(words: Sequence[str]) -> list[str]:
    """Return a command line for Hydra, in which paths that its grammar cannot read are quoted.

    Raises ConfigError where a quoted path begins with ``~``, which would make a folder of that name.
    """
    parser = OverridesParser.create()
    quoted = []
    for word in words:
        key, _, value = word.partition("=")
        if key.rpartition(".")[2].lstrip("+") in PATHS:
            value, several = at_home(key, value), key.endswith("paths")
            if not _is_read(f"{key}={value}", parser) or (value.startswith("[") and not several):
                value = _quoted_list(key, value) if several else quote(value)
            word = f"{key}={value}"
        quoted.append(word)
    return quoted


def _is_read(word: str, parser: OverridesParser) -> bool:
    try:
        parser.parse_override(word)
    except HydraException:
        return False
    except RecursionError:  # of brackets nested too deeply, which are refused later
        return True
    return True


def quote(text: str) -> str:
    """Return text as Hydra reads it unchanged: no comma, bracket or ``${`` in it means anything."""
    plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # "${" would be a reference
    return QuotedString(text=plain, quote=Quote.single).with_quotes()


def _quoted_list(key: str, text: str) -> str:
    """Return a list of paths, ``[a,b]``, with each of them quoted; other text is one path."""
    if not re.fullmatch(r"\[.*\]", text, re.DOTALL):
        return quote(text)
    return f"[{','.join(quote(at_home(key, item.strip())) for item in text[1:-1].split(','))}]"
