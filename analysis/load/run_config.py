"""Read the configuration that a run left."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from experiments.config.legacy import upgrade
from experiments.runtime.errors import DataError
from experiments.runtime.yaml_state import check_nesting


class UnreadableError(DataError):
    """A file of a run folder is damaged, or comes from another version of archbench."""


DAMAGE = (yaml.YAMLError, ValueError, AttributeError, TypeError, KeyError, RecursionError, OSError)
"""Errors that reading a damaged YAML file, or old names in it, can raise."""
DECIDING = ("backbone", "objective", "task", "scale", "budget", "optimizer")
"""Sections of a configuration that decide a run's result."""


def flat_config(folder: Path, sections: tuple[str, ...] = DECIDING) -> dict[str, Any]:
    """Sections of a run's configuration as dotted keys; empty where the run left none.

    Raises UnreadableError.
    """
    path = folder / "config.yaml"
    try:
        parts = _sections(path.read_text(encoding="utf-8"))
        return {key: value for section in sections for key, value in _flat(parts.get(section, "")).items()}
    except FileNotFoundError:
        return {}
    except DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnreadableError(f"{path} is no YAML ({reason}): delete it and run the study again") from error


def _sections(text: str) -> dict[str, str]:
    """The text of each top-level section of a configuration as the harness writes them, in block style.

    Runs of a study share most sections to the letter, so that few have to be parsed.
    """
    starts = [match.start() for match in re.finditer(r"^\w+:", text, flags=re.MULTILINE)]
    if text[: starts[0] if starts else None].strip():  # something else stands first, such as flow style
        check_nesting(text)
        config = yaml.CSafeLoader(text).get_single_data()
        if not isinstance(config, dict):
            raise ValueError("it has no sections")
        return {key: yaml.safe_dump({key: value}) for key, value in config.items()}
    ends = [*starts[1:], len(text)]
    parts = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    return {part.partition(":")[0]: part for part in parts}


@lru_cache(maxsize=4096)
def _flat(section: str) -> dict[str, Any]:
    """Return one section as dotted keys; the caller must not change it."""
    flat: dict[str, Any] = {}
    check_nesting(section)

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{prefix}{key}.", inner)
        else:
            flat[prefix[:-1]] = value

    collect("", upgrade(yaml.CSafeLoader(section).get_single_data() or {}))
    return flat
