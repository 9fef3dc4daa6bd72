"""Read the configuration that a run left."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.yaml_state import parse_yaml

REMEDY = "delete it and run the study again"


class UnreadableError(DataError):
    """A file of a run folder is damaged, or comes from another version of archbench."""


DAMAGE = (ValueError, AttributeError, TypeError, KeyError)
"""Errors that reading a damaged YAML file can raise."""
DECIDING = ("backbone", "objective", "task", "scale", "budget", "optimizer")
"""Sections of a configuration that decide a run's result."""


def flat_config(
    folder: Path, sections: tuple[str, ...] = DECIDING, content: bytes | None = None
) -> Mapping[str, Any]:
    """Return sections of a run's configuration as dotted keys; empty where the run left none.

    Args:
        folder: the run folder.
        sections: of the configuration.
        content: of config.yaml, if it was read already.

    Raises:
        UnreadableError: config.yaml cannot be read, or is damaged.
    """
    path = folder / "config.yaml"
    try:
        text = (content or path.read_bytes()).decode()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path} cannot be read ({error}): {REMEDY}") from error
    try:
        parts = _sections(text)
        return {key: value for section in sections for key, value in _flat(parts.get(section, "")).items()}
    except DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        try:
            parse_yaml(text)
        except ValueError as syntax_error:  # with its line in the whole text
            reason = str(syntax_error)
        raise UnreadableError(f"{path} is no YAML ({reason}): {REMEDY}") from error


def readable_config(folders: Iterable[str], sections: tuple[str, ...] = DECIDING) -> Mapping[str, object]:
    """Return the configuration of the first of some run folders that has a readable one, else none."""
    for folder in folders:
        with contextlib.suppress(UnreadableError):  # the row of the run has the reason
            if config := flat_config(Path(folder), sections):
                return config
    return {}


def _sections(text: str) -> dict[str, str]:
    """Return the text of each top-level section of a configuration, in block style as the harness writes it.

    Runs of a study share most sections to the letter, so that few have to be parsed.
    """
    starts = [match.start() for match in re.finditer(r"^\w+:", text, flags=re.MULTILINE)]
    if text[: starts[0] if starts else None].strip():  # something else comes first, such as flow style
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


@lru_cache(maxsize=4096)
def _flat(section: str) -> Mapping[str, Any]:
    """Return one section as dotted keys."""
    flat: dict[str, object] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{prefix}{key}.", inner)
        else:
            flat[prefix[:-1]] = value

    collect("", parse_yaml(section) or {})
    return flat
