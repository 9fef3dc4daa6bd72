"""Options of commands: arguments ``key=value`` and flags, read into a dataclass.

A field of type bool is also a flag: ``allow_mixed=true`` or ``--allow-mixed``. Commands that compose a
configuration have options in addition to Hydra's overrides; ``split_words`` separates them. An argument that
is neither is answered with what to write instead.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from archbench.architectures.nearest_name import nearest_name
from archbench.experiments.config.structured import typed
from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.experiments.runtime.machine import ensure_folders
from archbench.experiments.runtime.secrets import redact, refuse_secret
from archbench.experiments.runtime.special_files import refuse_pipes
from archbench.experiments.runtime.streams import guard_streams
from archbench.experiments.runtime.synonyms import SYNONYMS

Options = TypeVar("Options")
Prepared = TypeVar("Prepared")
Nearest = Callable[[str], str | None]

HELP = ("-h", "--help")
HELP_WIDTH = 100
WRITTEN = ("runs", "out", "output", "to", "cache_dir", "dir", "submitit_folder")
"""Last parts of keys that name a file or a folder that is written."""
PATHS = (
    *WRITTEN, "run", "judge", "include", "init_from", "continue_from", "path", "paths", "validation_paths",
    "test_paths", "text", "tuned", "frame", "rows", "points", "speed",
)  # fmt: skip
"""Last parts of keys whose values are paths."""


def run_command(
    description: str | None,
    cls: type[Options],
    arguments: Sequence[str],
    prepare: Callable[[Options], Prepared],
    publish: Callable[[Prepared], int | None],
) -> int:
    """Run a command. A mistake in its arguments is one line on stderr, and nothing is written.

    Args:
        description: text that ``--help`` prints before the keys.
        cls: the dataclass of its options.
        arguments: the command line without the command.
        prepare: reads what the options name.
        publish: writes and prints what was prepared, and returns the exit code; None for 0.

    Returns:
        The exit code: that of ``publish``, or that of an error, 2 if the error has none.
    """
    guard_streams()
    refuse_pipes()
    ensure_folders()
    if shows_help(cls, description or "", arguments):
        return 0
    try:
        prepared = prepare(typed_words(cls, arguments))
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


def take_options(
    cls: type[Options], arguments: Sequence[str], description: str | None = None
) -> tuple[Options, list[str]]:
    """Return the options of a command, and its other arguments, which are Hydra's overrides.

    A mistake ends the process. So does ``--help`` if there is a description; without one, Hydra prints help.
    """
    if description is not None and shows_help(cls, description, arguments):
        sys.exit()
    try:
        return split_words(cls, arguments)
    except ConfigError as error:
        sys.exit(failed(error))


def split_words(cls: type[Options], arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Return the options of a command that reads Hydra's overrides, too, and these. Raises ConfigError."""
    names, flags = {field.name for field in dataclasses.fields(cls)}, _flags(cls)  # type: ignore[arg-type]
    options = [text for text in arguments if text in flags or text.partition("=")[0] in names]
    return typed_words(cls, options), [text for text in arguments if text not in options]


def typed_words(cls: type[Options], arguments: Sequence[str]) -> Options:
    """Return arguments ``KEY=VALUE`` and flags as an instance of a flat dataclass; ``null`` is None.

    Values are not parsed, so a study may be called 1e3, and brackets need not be balanced.

    Raises:
        ConfigError: there is no such key, or a value is not of its type.
    """
    flags = _flags(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    keys = [name for name in names if name not in flags.values()]
    main_key_is_given = not keys or any(text.startswith(f"{keys[0]}=") for text in arguments)
    refuse_other_words(
        arguments,
        options=[*flags, *HELP],
        key_named=lambda name: nearest_name(name, keys, SYNONYMS),
        key_of_value=lambda value: None if main_key_is_given else keys[0],
    )
    values: dict[str, str | None] = {}
    for argument in arguments:
        refuse_undecodable(argument)
        key, _, value = (f"{flags[argument]}=true" if argument in flags else argument).partition("=")
        if key not in names:
            close = nearest_name(key, names, SYNONYMS)
            hint = f"did you mean '{close}='? " if close else ""
            raise ConfigError(f"'{argument}': {hint}the keys are {', '.join([*keys, *flags])}")
        value = plain_value(key, value)
        if not value:
            raise ConfigError(f"'{argument}': write {key}=VALUE, or leave {key}= out")
        if values.get(key, value) != value:
            raise ConfigError(f"{key} is given twice, as {values[key]} and as {value}: leave one out")
        values[key] = None if value == "null" else value
    return typed(cls, values, "")


def plain_value(key: str, value: str) -> str:
    """Return a value as Hydra would read it, for other commands: one level of quotes is removed."""
    value = at_home(key, value) if key in PATHS else value
    quoted = re.fullmatch(r"""(['"])(.*)\1""", value, re.DOTALL)
    return quoted[2] if quoted else value


def at_home(key: str, path: str) -> str:
    """Return a path with the user's home in place of ``~``. Raises ConfigError if the ``~`` is quoted."""
    if re.match(r"""['"]~(/|['"])""", path):
        raise ConfigError(f"{key}={path} would name a folder '~'; write $HOME instead of ~")
    return str(Path(path).expanduser()) if re.match("~(/|$)", path) else path


def refuse_undecodable(argument: str) -> None:
    """Raise ConfigError for an argument with bytes that are not UTF-8: no file of a run could name it."""
    if re.search("[\ud800-\udfff]", argument):
        shown = argument.encode("utf-8", "backslashreplace").decode()
        raise ConfigError(f"{shown} is not valid UTF-8 (in the C locale, set LC_ALL=C.UTF-8 or PYTHONUTF8=1)")


def refuse_no_words(arguments: Sequence[str]) -> None:
    """Raise ConfigError if no argument chooses a run: the defaults would be run unintentionally."""
    if all(text.startswith(("-m", "--multirun", "hydra/", "hydra.")) for text in arguments):
        raise ConfigError(
            "no run is chosen: name a study, as study=compare, or settings, as backbone=mamba task=recall "
            "(--help lists what can be chosen)"
        )


def refuse_other_words(
    arguments: Sequence[str],
    *,
    options: Collection[str],
    key_named: Nearest,
    key_of_value: Nearest,
    with_value: Collection[str] = (),
) -> None:
    """Raise ConfigError for arguments that are neither KEY=VALUE nor an option, or name a file by a secret.

    Args:
        arguments: the command line without the command.
        options: the options, such as ``--wide`` or ``-m``.
        key_named: returns the key that a name is, or that it probably means.
        key_of_value: returns the key that an argument without a key is probably the value of.
        with_value: the options whose value is the next argument.
    """
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key.rpartition(".")[2] in WRITTEN:
            refuse_secret(key, value)

    def is_plain(text: str) -> bool:  # neither an option nor KEY=VALUE
        return bool(text) and not text.startswith("-") and "=" not in text.removeprefix("=")

    rest = iter([*arguments, ""])
    argument = next(rest)
    while argument:
        following = next(rest)
        name, equals, value = argument.partition("=")
        has_spaces = following.startswith("=") if not equals else not value and is_plain(following)
        if has_spaces:
            value = following.removeprefix("=") or next(rest)
            raise ConfigError(f"{name} = {value}: write {name}={value}, without spaces around '='")
        if argument in with_value:
            following = next(rest)
        elif argument.startswith("-"):
            if name not in options:
                value = following if is_plain(following) else ""
                raise ConfigError(_unknown_option(argument, value, options, key_named))
        elif not equals and not argument.startswith("~"):
            if f"--{argument}" in options:
                suggestion = f"--{argument}"
            elif key_named(argument) == argument:
                suggestion = f"{argument}=VALUE"
            elif (meant := key_of_value(argument)) is not None:
                suggestion = f"{meant}={argument}"
            else:
                raise ConfigError(f"'{argument}': settings are written KEY=VALUE")
            raise ConfigError(f"'{argument}': did you mean {suggestion}?")
        argument = following


def _unknown_option(argument: str, following: str, options: Collection[str], key_named: Nearest) -> str:
    """Return the message on an option that does not exist, such as ``--seed 0``."""
    name, equals, value = argument.partition("=")
    if (key := key_named(name.lstrip("-").replace("-", "_"))) is not None:
        written = f"{argument} {following}" if following and not equals else argument
        return f"{written}: settings have no dashes: write {key}={value or following or 'VALUE'}"
    close = nearest_name(name, [option for option in options if option.startswith("--")], SYNONYMS)
    return f"{name}: there is no such option{f'; did you mean {close}?' if close else ''}"


def shows_help(cls: type, description: str, arguments: Sequence[str]) -> bool:
    """If help is requested, print the description and a line for each option, and return True.

    A line has the key or flag of the option, its docstring and its default.
    """
    if not set(arguments) & set(HELP):
        return False
    docs, flags = field_docs(cls), {name: flag for flag, name in _flags(cls).items()}
    lines = [inspect.cleandoc(description), *["", "keys:"] * bool(docs)]
    for field in dataclasses.fields(cls):
        has_default = field.name not in flags and field.default not in ("", None, dataclasses.MISSING)
        lines += textwrap.wrap(
            f"{flags.get(field.name, f'{field.name}='):<14}  {docs.get(field.name, '').replace('``', '')}"
            f"{f' Default: {field.default}.' if has_default else ''}",
            HELP_WIDTH, initial_indent="  ", subsequent_indent=" " * 18,
        )  # fmt: skip
    print("\n".join(lines))
    return True


@functools.cache
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
