"""Options of commands: words ``key=value`` and flags, read into a dataclass.

A field of type bool is also a flag: ``allow_mixed=true`` or ``--allow-mixed``. Commands that compose a
configuration have options of their own beside Hydra's words, which ``split_words`` tells apart.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from typing import TypeVar

from architectures.nearest_name import nearest_name
from experiments.config.command_line import plain_value, refuse_other_words_of_keys
from experiments.config.structured import typed
from experiments.runtime.errors import ConfigError, RunError
from experiments.runtime.secrets import guard_streams, redact
from experiments.runtime.synonyms import SYNONYMS

Options = TypeVar("Options")
Prepared = TypeVar("Prepared")

HELP = ("-h", "--help")
HELP_WIDTH = 100


def typed_words(cls: type[Options], words: Sequence[str]) -> Options:
    """Return words ``KEY=VALUE`` and flags as an instance of a flat dataclass; ``null`` is None.

    Values are taken as they stand, so that a study may be called 1e3, and no bracket needs a partner.

    Raises:
        ConfigError: there is no such key, or a value is not of its type.
    """
    flags = _flags(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    keys = [name for name in names if name not in flags.values()]
    refuse_other_words_of_keys(words, keys, [*flags, *HELP])
    values: dict[str, str | None] = {}
    for word in words:
        key, _, value = (f"{flags[word]}=true" if word in flags else word).partition("=")
        if key not in names:
            close = nearest_name(key, names, SYNONYMS)
            hint = f"did you mean '{close}='? " if close else ""
            raise ConfigError(f"'{word}': {hint}the keys are {', '.join([*keys, *flags])}")
        value = plain_value(key, value)
        if not value:
            raise ConfigError(f"'{word}': write {key}=VALUE, or leave {key}= out")
        if values.get(key, value) != value:
            raise ConfigError(f"{key} is given twice, as {values[key]} and as {value}: leave one out")
        values[key] = None if value == "null" else value
    return typed(cls, values, "")


def split_words(cls: type[Options], words: Sequence[str]) -> tuple[Options, list[str]]:
    """Return the options of a command that takes Hydra's words too, and these words. Raises ConfigError."""
    names, flags = {field.name for field in dataclasses.fields(cls)}, _flags(cls)  # type: ignore[arg-type]
    mine = [word for word in words if word in flags or word.partition("=")[0] in names]
    return typed_words(cls, mine), [word for word in words if word not in mine]


def take_options(cls: type[Options], description: str | None = None) -> Options:
    """Take the options of a command out of ``sys.argv``, and leave Hydra's words there.

    A mistake ends the process. So does ``--help`` where there is a description to print: else it is Hydra's.
    """
    if description is not None and shows_help(cls, description, sys.argv[1:]):
        sys.exit()
    try:
        options, sys.argv[1:] = split_words(cls, sys.argv[1:])
    except ConfigError as error:
        sys.exit(failed(error))
    return options


def run_command(
    description: str | None,
    cls: type[Options],
    words: Sequence[str],
    prepare: Callable[[Options], Prepared],
    publish: Callable[[Prepared], int | None],
) -> int:
    """Run a command. A mistake in its arguments is one line on stderr, and nothing is written.

    Args:
        description: what ``--help`` prints before the keys.
        cls: the dataclass of its options.
        words: the command line without the command.
        prepare: reads whatever the options name.
        publish: writes and prints what was prepared, and returns the exit code; None for 0.

    Returns:
        The exit code: that of ``publish``; of an error its own, where it has one, else 2.
    """
    guard_streams()
    if shows_help(cls, description or "", words):
        return 0
    try:
        prepared = prepare(typed_words(cls, words))
    except (ValueError, OSError, RunError) as error:
        return failed(error)
    try:
        code = publish(prepared)
        sys.stdout.flush()
    except (OSError, RunError) as error:
        return failed(error)
    return code or 0


def failed(error: Exception) -> int:
    """Print an error in one line, and return its exit code."""
    sys.stderr.write(redact(f"error: {error}\n"))
    return int(getattr(error, "exit_code", ConfigError.exit_code))


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass or pydantic model, inherited fields included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        is_model = hasattr(base, "model_fields") and base.__module__ != "pydantic.main"
        if not (is_model or dataclasses.is_dataclass(base)):
            continue
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


def _flags(cls: type) -> dict[str, str]:
    """Return the flag of each field of type bool, such as ``--dry-run``, and its field."""
    types = typing.get_type_hints(cls)
    return {f"--{name.replace('_', '-')}": name for name, hint in types.items() if hint is bool}


def shows_help(cls: type, description: str, words: Sequence[str]) -> bool:
    """Print what a command does, and its options, if the words ask for it; return False if they do not."""
    if not set(words) & set(HELP):
        return False
    print(_help(cls, description))
    return True


def _help(cls: type, description: str) -> str:
    """Return a description, then a line for each option: its key or flag, its docstring and its default."""
    docs, flags = field_docs(cls), {name: flag for flag, name in _flags(cls).items()}
    lines = [inspect.cleandoc(description), *["", "keys:"] * bool(docs)]
    for field in dataclasses.fields(cls):
        shown = field.name not in flags and field.default not in ("", None, dataclasses.MISSING)
        lines += textwrap.wrap(
            f"{flags.get(field.name, f'{field.name}='):<14}  {docs.get(field.name, '').replace('``', '')}"
            f"{f' Default: {field.default}.' if shown else ''}",
            HELP_WIDTH, initial_indent="  ", subsequent_indent=" " * 18,
        )  # fmt: skip
    return "\n".join(lines)
