"""Arguments, errors and exit codes of the commands of the analysis, and the files that they write.

Arguments are ``key=value``, as in the commands that Hydra reads; the keys are the fields of a dataclass. A
field of type bool is also a flag: ``allow_mixed=true`` or ``--allow-mixed``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pandas as pd

from architectures.nearest_name import nearest_name
from experiments.cli import MODULES
from experiments.config.command_line import plain_value, refuse_other_words_of_keys
from experiments.runtime.errors import Preempted
from experiments.runtime.streams import guard_streams
from experiments.runtime.synonyms import SYNONYMS

Config = TypeVar("Config")
Found = TypeVar("Found")

HELP_WIDTH = 100


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are raised, so that every command reports them alike."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read_arguments(arguments: Sequence[str], config: type[Config], description: str = "") -> Config:
    """Return a config dataclass from ``key=value`` arguments and flags; ``--help`` prints the keys and exits.

    Args:
        config: a dataclass whose fields are of type str, int, float or bool.
        description: what the command does, for ``--help``.

    Raises:
        ValueError: there is no such key, or a value is not of its type.
    """
    guard_streams()
    known = {f.name: f for f in fields(config)}  # type: ignore[arg-type]
    flags = {f"--{name.replace('_', '-')}": name for name, f in known.items() if f.type == "bool"}
    parser = _Parser(
        usage=f"{_program()} [key=value ...]{''.join(f' [{flag}]' for flag in flags)}",
        description=inspect.cleandoc(description),
        epilog=_keys_help(config),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("settings", nargs="*", metavar="key=value", help=argparse.SUPPRESS)
    for flag, name in flags.items():
        parser.add_argument(flag, dest=name, action="store_true", help=argparse.SUPPRESS)
    keys = [name for name in known if name not in flags.values()]
    refuse_other_words_of_keys(arguments, keys, [*flags, "--help", "-h"])
    parsed = parser.parse_intermixed_args(list(arguments))
    values: dict[str, Any] = {name: True for name in flags.values() if getattr(parsed, name)}
    for word in parsed.settings:
        key, _, value = word.partition("=")
        if key not in known:
            close = nearest_name(key, known, SYNONYMS)
            hint = f"did you mean '{close}='? " if close else ""
            raise ValueError(f"'{word}': {hint}the keys are {', '.join([*keys, *flags])}")
        values[key] = _typed(known[key], plain_value(key, value))
    return config(**values)


def _program() -> str:
    """Return the command as it is typed, for example ``archbench compare``."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec else ""
    commands = {module: f"archbench {name}" for name, module in MODULES.items()}
    return commands.get(module, Path(sys.argv[0]).name)


def _typed(field: Field[Any], text: str) -> Any:
    """Return the text of a value as the type of its field. Raises ValueError."""
    try:
        if field.type == "bool":
            return {"true": True, "false": False}[text.lower()]
        return {"int": int, "float": float}.get(str(field.type), str)(text)
    except (KeyError, ValueError):
        remedy = {
            "bool": "neither true nor false",
            "int": f"no whole number: write for example {field.name}=100",
            "float": f"no number: write for example {field.name}=0.5",
        }[str(field.type)]
        raise ValueError(f"{field.name}={text} is {remedy}") from None


def _keys_help(config: type) -> str:
    """Return a line for each field of a dataclass: its key, its docstring and its default."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for line, after in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(after, ast.Expr)
        ):
            docs[line.target.id] = " ".join(str(ast.literal_eval(after.value)).replace("``", "").split())
    lines = ["keys:"]
    for field in fields(config):
        name = f"--{field.name.replace('_', '-')}" if field.type == "bool" else f"{field.name}="
        default = "" if field.type == "bool" or field.default == "" else f" Default: {field.default}."
        lines += textwrap.wrap(
            f"{name:<14}  {docs.get(field.name, '')}{default}", HELP_WIDTH,
            initial_indent="  ", subsequent_indent=" " * 18,
        )  # fmt: skip
    return "\n".join(lines)


def run_command(
    description: str | None,
    config: type[Config],
    arguments: Sequence[str],
    prepare: Callable[[Config], Found],
    publish: Callable[[Found], None],
) -> int:
    """Run a command. A mistake in its arguments is one line on stderr, and nothing is written.

    Args:
        description: what ``--help`` prints before the keys.
        config: the dataclass of its arguments.
        prepare: reads whatever the config names.
        publish: writes and prints what was prepared.

    Returns:
        The exit code: 0; that of the error where it has one; else 2.
    """
    try:
        prepared = prepare(read_arguments(arguments, config, description or ""))
    except Preempted:
        raise
    except SystemExit as ended:  # --help
        return int(ended.code or 0)
    except Exception as error:
        if isinstance(error, ValueError | OSError) or hasattr(error, "exit_code"):
            return _failed(error)
        raise
    try:
        publish(prepared)
        sys.stdout.flush()
    except OSError as error:
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))


def write(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, and return its path; a reader never sees half of it.

    Raises:
        OSError: it cannot be written; the message names the folder.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(f"cannot write to {path.parent}/: {error}; set out= to another") from error
    return path


def csv_text(frame: pd.DataFrame) -> str:
    """Return a frame as CSV. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    texts = frame.select_dtypes(include=["object", "string"]).columns
    safe = frame.assign(**{name: [_no_formula(value) for value in frame[name]] for name in texts})
    return safe.to_csv(index=False)


FORMULA = re.compile(r"[=+@\t\r]|-(?!$|[\d.]+(?:e[+-]?\d+)?$)")
"""Beginnings of what spreadsheets compute; negative numbers, and a dash alone, are none."""


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame as the content of a Parquet file, without its index; a flipped bit in it is found."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, write_page_checksum=True)
    return buffer.getvalue()
