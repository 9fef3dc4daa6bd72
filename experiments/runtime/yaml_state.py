"""Reads the YAML that runs leave, of which any may be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from experiments.runtime.errors import ConfigError, RunError

DEEPEST = 100
"""Levels of nesting at most. A configuration has about six."""
SURELY_FLAT = 4096
"""Characters up to which no text is nested so deeply that libyaml ends the process: a level takes one."""


def check_nesting(text: str) -> None:
    """Raise ValueError for text that is nested deeply, on which libyaml would end the process.

    It builds each level within the one above, on the stack, and does not look at how much of that is left.
    Its events, which are read here, are no deeper than each other.
    """
    if len(text) <= SURELY_FLAT:
        return
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise ValueError("nested too deeply")


def read_yaml(path: Path, remedy: str, error: type[RunError] = ConfigError) -> dict[str, Any]:
    """Return a YAML file of a run as plain values.

    Args:
        path: of the file.
        remedy: what a person can do about a damaged file.
        error: the class of what is raised.

    Raises:
        RunError: the file is missing, unreadable, no YAML, nested deeply, or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        check_nesting(text)
        found = OmegaConf.to_container(OmegaConf.create(text))
    except Exception as problem:  # whatever a damaged file makes the reader of YAML say
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise error(f"{path}: cannot be read ({reason}): {remedy}") from problem
    if not isinstance(found, dict):
        raise error(f"{path}: cannot be read (it has no sections): {remedy}")
    return {str(key): value for key, value in found.items()}
