"""Words of a command line that are not KEY=VALUE, answered with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from architectures.nearest_name import nearest_name
from experiments.runtime.errors import ConfigError
from experiments.runtime.secrets import refuse_secret
from experiments.runtime.synonyms import SYNONYMS

WRITTEN = ("runs", "out", "output", "to", "cache_dir", "dir", "submitit_folder")
"""Last parts of keys that name a file or a folder that is written."""
PATHS = (
    *WRITTEN, "run", "judge", "include", "init_from", "continue_from", "path", "paths", "validation_paths",
    "test_paths", "text", "tuned", "frame", "rows", "points", "speed",
)  # fmt: skip
"""Last parts of keys whose values are paths."""

Nearest = Callable[[str], str | None]


def refuse_other_words(
    words: Sequence[str],
    *,
    options: Collection[str],
    key_named: Nearest,
    key_of_value: Nearest,
    with_value: Collection[str] = (),
) -> None:
    """Raise ConfigError about words that are neither KEY=VALUE nor an option, or name a file by a secret.

    Args:
        words: the command line without the command.
        options: the options, ``--wide`` or ``-m``.
        key_named: returns the key that a name is, or that it probably means.
        key_of_value: returns the key that a word without a key is probably the value of.
        with_value: the options that take the word after them as their value.
    """
    for word in words:
        key, _, value = word.partition("=")
        if key.rpartition(".")[2] in WRITTEN:
            refuse_secret(key, value)
    rest = iter([*words, ""])
    word = next(rest)
    while word:
        after = next(rest)
        name, equals, value = word.partition("=")
        spaced = after.startswith("=") if not equals else not value and _is_plain(after)
        if spaced:
            value = after.removeprefix("=") or next(rest)
            raise ConfigError(f"{name} = {value}: write {name}={value}, without spaces around '='")
        if word in with_value:
            after = next(rest)
        elif word.startswith("-"):
            if name not in options:
                _refuse_option(word, after if _is_plain(after) else "", options, key_named)
        elif not equals and not word.startswith("~"):
            _refuse_bare(word, options, key_named, key_of_value)
        word = after


def refuse_other_words_of_keys(
    words: Sequence[str], keys: Sequence[str], options: Collection[str] = ()
) -> None:
    """Raise ConfigError as ``refuse_other_words`` does, for a command with few keys, the main one first."""
    given = not keys or any(word.startswith(f"{keys[0]}=") for word in words)
    refuse_other_words(
        words,
        options=options,
        key_named=lambda name: nearest_name(name, keys, SYNONYMS),
        key_of_value=lambda value: None if given else keys[0],
    )


def _is_plain(word: str) -> bool:
    """Return True for a word that is neither an option nor KEY=VALUE."""
    return bool(word) and not word.startswith("-") and "=" not in word.removeprefix("=")


def _refuse_bare(word: str, options: Collection[str], key_named: Nearest, key_of_value: Nearest) -> None:
    if f"--{word}" in options:
        meant = f"--{word}"
    elif key_named(word) == word:
        meant = f"{word}=VALUE"
    elif (key := key_of_value(word)) is not None:
        meant = f"{key}={word}"
    else:
        raise ConfigError(f"'{word}': settings are written KEY=VALUE")
    raise ConfigError(f"'{word}': did you mean {meant}?")


def _refuse_option(word: str, after: str, options: Collection[str], key_named: Nearest) -> None:
    name, equals, value = word.partition("=")
    plain = name.lstrip("-").replace("-", "_")
    if (key := key_named(plain)) is not None:
        shown = f"{word} {after}" if after and not equals else word
        raise ConfigError(f"{shown}: settings have no dashes: write {key}={value or after or 'VALUE'}")
    close = nearest_name(name, [each for each in options if each.startswith("--")], SYNONYMS)
    raise ConfigError(f"{name}: there is no such option{f'; did you mean {close}?' if close else ''}")


def refuse_no_words(words: Sequence[str]) -> None:
    """Raise ConfigError where no word chooses a run: the defaults would be run without being asked for."""
    beside = ("-m", "--multirun", "hydra/", "hydra.")
    if all(word.startswith(beside) for word in words):
        raise ConfigError(
            "no run is chosen: name a study, as study=compare, or settings, as backbone=mamba task=recall "
            "(--help lists what can be chosen)"
        )


def plain_value(key: str, value: str) -> str:
    """Return a value as Hydra would read it, for other commands: one level of quotes is taken off."""
    value = at_home(key, value) if key in PATHS else value
    quoted = re.fullmatch(r"""(['"])(.*)\1""", value, re.DOTALL)
    return quoted[2] if quoted else value


def at_home(key: str, path: str) -> str:
    """Return a path with the home of the user in place of ``~``. Raises ConfigError where that is quoted."""
    if re.match(r"""['"]~(/|['"])""", path):
        raise ConfigError(f"{key}={path} would name a folder '~'; write $HOME instead of ~")
    return str(Path(path).expanduser()) if re.match("~(/|$)", path) else path
