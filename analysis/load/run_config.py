"""Read the configuration that a run left."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from experiments.runtime.errors import DataError
from experiments.runtime.yaml_state import parse_yaml

REMEDY = "delete it and run the study again"


class UnreadableError(DataError):
    """A file of a run folder is damaged, or comes from another version of archbench."""


DAMAGE = (ValueError, AttributeError, TypeError, KeyError)
"""Errors that reading a damaged YAML file can raise."""
DECIDING = ("backbone", "objective", "task", "scale", "budget", "optimizer")
"""Sections of a configuration that decide a run's result."""


def flat_config(folder: Path, sections: tuple[str, ...] = DECIDING) -> dict[str, Any]:
    """Sections of a run's configuration as dotted keys; empty where the run left none.

    Raises UnreadableError.
    """
    path = folder / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path} cannot be read ({error}): {REMEDY}") from error
    try:
        parts = _sections(text)
        return {key: value for section in sections for key, value in _flat(parts.get(section, "")).items()}
    except DAMAGE as error:
        raise UnreadableError(f"{path} is no YAML ({_reason(text, error)}): {REMEDY}") from error


def _sections(text: str) -> dict[str, str]:
    """The text of each top-level section of a configuration as the harness writes them, in block style.

    Runs of a study share most sections to the letter, so that few have to be parsed.
    """
    starts = [match.start() for match in re.finditer(r"^\w+:", text, flags=re.MULTILINE)]
    if text[: starts[0] if starts else None].strip():  # something else stands first, such as flow style
        config = parse_yaml(text)
        if not isinstance(config, dict):
            raise ValueError("it has no sections")
        return {key: yaml.safe_dump({key: value}) for key, value in config.items()}
    ends = [*starts[1:], len(text)]
    parts = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    sections = {part.partition(":")[0]: part for part in parts}
    if len(sections) < len(parts):
        raise ValueError("a section is there twice")
    return sections


def _reason(text: str, error: Exception) -> str:
    """Return why a configuration cannot be read, with its line in the whole text where YAML is at fault."""
    try:
        parse_yaml(text)
    except ValueError as found:
        return str(found)
    return (str(error).splitlines() or [type(error).__name__])[0]


@lru_cache(maxsize=4096)
def _flat(section: str) -> dict[str, Any]:
    """Return one section as dotted keys; the caller must not change it."""
    flat: dict[str, Any] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{prefix}{key}.", inner)
        else:
            flat[prefix[:-1]] = value

    collect("", parse_yaml(section) or {})
    return flat
