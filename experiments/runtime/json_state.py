"""Read JSON that a run or another process left: complete and of the right types, or one clear error."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from archbench.experiments.runtime.atomic_io import NOT_FINITE
from archbench.experiments.runtime.errors import CheckpointError, RunError

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter
    from pydantic_core import CoreSchema, ValidationError

    Model = TypeVar("Model", bound=BaseModel)

T = TypeVar("T")
RESTORE = "restore it, or remove the run's folder to begin again"


class _Number:
    """Read a number as ``experiments.runtime.atomic_io.plain`` writes it: NaN and infinities are strings."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema as schema

        words = schema.no_info_after_validator_function(float, schema.literal_schema(list(NOT_FINITE)))
        return schema.union_schema(
            # An integer stays one, so that a record is written as it was read.
            [schema.float_schema(strict=True), schema.int_schema(strict=True), words],
            custom_error_type="number",
            custom_error_message="Input should be a valid number",
        )


Number = Annotated[float, _Number()]
"""A number of a record."""


def read_json(
    path: Path,
    schema: type[T],
    remedy: str = RESTORE,
    error: type[RunError] = CheckpointError,
) -> T | None:
    """Return the content of a JSON file; None where there is no such file.

    Keys outside the schema are preserved. Values of keys in the schema must have the type given there.

    Args:
        path: of the file.
        schema: a TypedDict, or another type that pydantic can check.
        remedy: what a person can do about a damaged file.
        error: the class of the exception; its exit code is 6 by default.

    Raises:
        RunError: the file is unreadable, not JSON, nested too deeply, or has a value of another type.
    """
    text = read_text(path, remedy, error)
    return None if text is None else parse_json(text, schema, str(path), remedy, error)


def read_text(path: Path, remedy: str, error: type[RunError]) -> str | None:
    """Return the text of a file; None where there is no such file. Raises as ``read_json`` does."""
    try:
        return path.read_text(encoding="utf-8-sig")  # an editor may have put a byte-order mark before it
    except (FileNotFoundError, NotADirectoryError):  # the latter: a part of the path is a file
        return None
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot be read ({problem}): {remedy}") from problem


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


def read_model(
    path: Path, model: type[Model], remedy: str = RESTORE, error: type[RunError] = CheckpointError
) -> Model | None:
    """Return a JSON file as a pydantic model; None if it is missing. Raises as ``read_json`` does."""
    text = read_text(path, remedy, error)
    return None if text is None else parse_model(text, model, str(path), remedy, error)


def parse_model(text: str, model: type[Model], name: str, remedy: str, error: type[RunError]) -> Model:
    """Return JSON text as a pydantic model. Raises as ``read_json`` does, with ``name`` for the file."""
    from pydantic import ValidationError

    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as problem:
        parse_json(text, object, name, remedy, error)  # describes the error in text that is no JSON
        raise error(f"{name}: is damaged ({_first_reason(problem)}): {remedy}") from None


def read_mark(path: Path) -> dict[str, Any] | None:
    """Return a note about finished work; None if it is missing or damaged, so that the work is repeated."""
    try:
        return read_json(path, dict[str, Any])
    except RunError:
        return None


def json_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among lines; a file that a killed run wrote ends in half of one."""
    for line in lines:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            yield content


def mismatch(value: Any, schema: Any) -> str | None:
    """Return where a value does not fit a schema, and why; None where it does."""
    from pydantic import ValidationError

    try:
        _adapter(schema).validate_python(value, strict=True)
    except ValidationError as problem:
        return _first_reason(problem)
    except RecursionError:
        return "nested too deeply"
    return None


def _first_reason(problem: ValidationError) -> str:
    """Return where a value does not fit, and why."""
    first = problem.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


@functools.cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # a tenth of a second, which help need not wait for

    return TypeAdapter(schema)
