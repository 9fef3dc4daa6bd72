"""Read JSON that a run or another process left: whole and of the right types, or one clear error."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from experiments.runtime.errors import CheckpointError, RunError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

Number = float | Literal["nan", "inf", "-inf"]
"""A number as ``experiments.runtime.atomic_io.plain`` writes it."""


def read_json(
    path: Path,
    schema: type[T],
    remedy: str = "restore it, or remove the run's folder to begin again",
    error: type[RunError] = CheckpointError,
) -> T | None:
    """Return the content of a JSON file; None where there is no such file.

    Keys that the schema does not name are kept as they are. What it names has to be of the type it says.

    Args:
        path: of the file.
        schema: a TypedDict, or another type that pydantic can check.
        remedy: what a person can do about a damaged file.
        error: the class of what is raised; its exit code is 6 by default.

    Raises:
        RunError: the file is unreadable, no JSON, nested too deeply, or has a value of another type.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # an editor may have put a byte-order mark before it
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot be read ({problem}): {remedy}") from problem
    return parse_json(text, schema, str(path), remedy, error)


def parse_json(
    text: str, schema: type[T], name: str, remedy: str, error: type[RunError] = CheckpointError
) -> T:
    """Return JSON text as a value of a schema. Raises as ``read_json`` does, with ``name`` for the file."""
    try:
        value: Any = json.loads(text)
    except RecursionError:
        raise error(f"{name}: is damaged (nested too deeply): {remedy}") from None
    except ValueError as problem:
        raise error(f"{name}: is damaged (no JSON: {problem}): {remedy}") from problem
    if (reason := mismatch(value, schema)) is not None:
        raise error(f"{name}: is damaged ({reason}): {remedy}")
    return cast(T, value)


def read_mark(path: Path) -> dict[str, Any] | None:
    """Return a note about work that is done; None where there is none, or it is damaged: it is done anew."""
    try:
        return read_json(path, dict[str, Any])
    except RunError:
        return None


def json_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among lines; a file that a killed run wrote ends in half of one."""
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def mismatch(value: Any, schema: Any) -> str | None:
    """Return where a value does not fit a schema, and why; None where it does."""
    from pydantic import ValidationError

    try:
        _adapter(schema).validate_python(value, strict=True)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    except RecursionError:
        return "nested too deeply"
    return None


@functools.cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # a tenth of a second, which help need not wait for

    return TypeAdapter(schema)
