"""What the commands of the analysis share: arguments, errors, exit codes and the files that they write."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

Found = TypeVar("Found")


def read_arguments(arguments: Sequence[str], config: type) -> dict[str, Any]:
    """The value given to each field of a dataclass, as ``key=value``, or as ``--key`` where it is a bool.

    Raises:
        ValueError: there is no such field, or an int field got no whole number.
    """
    types = {f.name: f.type for f in fields(config)}
    flags = {f"--{name.replace('_', '-')}": name for name, kind in types.items() if kind == "bool"}
    keys = [name for name in types if name not in flags.values()]
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument in flags:
            values[flags[argument]] = True
        elif key not in keys or not equals:
            near = difflib.get_close_matches(key, [*keys, *flags], n=1)
            hint = f"did you mean '{near[0]}{'=' * (near[0] in keys)}'? " if near else ""
            raise ValueError(f"'{argument}': {hint}the keys are {', '.join([*keys, *flags])}")
        else:
            values[key] = whole_number(key, value) if types[key] == "int" else value
    return values


def whole_number(key: str, value: str) -> int:
    """The value of an int field. Raises ValueError."""
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{key}={value} is no whole number: write for example {key}=100") from None


def run_command(
    text: str,
    arguments: Sequence[str],
    prepare: Callable[[Sequence[str]], Found],
    publish: Callable[[Found], None],
) -> int:
    """Runs a command. A mistake of the person who asked is one line on stderr, and nothing is written.

    Args:
        text: what ``--help`` prints.
        prepare: reads the arguments and whatever they name.
        publish: writes and prints what was prepared.

    Returns:
        The exit code: 0; that of the error where it has one; else 2.
    """
    if any(a in ("--help", "-h") for a in arguments):
        print(text.strip())
        return 0
    try:
        prepared = prepare(arguments)
    except Exception as error:
        if isinstance(error, ValueError | OSError) or hasattr(error, "exit_code"):
            return _failed(error)
        raise
    try:
        publish(prepared)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, say ``head``, has seen enough; Python would complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file whole or not at all: a reader never sees half of it.

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


def parquet(frame: pd.DataFrame) -> bytes:
    """A frame as the content of a Parquet file, without its index."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
