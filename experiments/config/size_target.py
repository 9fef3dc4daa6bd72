"""The target of the chosen axis: a scale's YAML, or a study, names a size for each axis that it supports."""

from __future__ import annotations

from typing import Any

from experiments.config.schema import AXES
from experiments.runtime.errors import ConfigError, nearest

AXIS_UNITS = {
    "flops": "training FLOPs per token",
    "non_embedding": "parameters without embedding and LM head",
    "active_non_embedding": "those of them that a token uses",
    "total": "parameters in all",
}
"""Unit of a target, by axis."""


def with_target(section: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``scale`` with ``target``, that of its axis, in place of ``targets``.

    A section without ``targets`` is one that a run stored; it comes back as it is. No target at all leaves
    every width as its YAML says.

    Raises:
        ConfigError: there are targets, but none for the axis, or one is no positive whole number.
    """
    if "targets" not in section:
        return section
    axis, targets = section.get("axis"), section["targets"] or {}
    if "target" in section:
        raise ConfigError(
            f"scale.target={section['target']}: a target belongs to its axis: write "
            f"scale.targets.{axis}={section['target']} ({AXIS_UNITS.get(str(axis), 'the axis')})"
        )
    if not isinstance(targets, dict):
        raise ConfigError(f"scale.targets={targets} must name a size for each axis: {{flops: 900000}}")
    for name in targets:
        if name not in AXES:
            raise ConfigError(f"scale.targets.{name}: there is no such axis{nearest(str(name), AXES)}")
    named = {name: _whole(name, size) for name, size in targets.items() if size is not None}
    if named and axis in AXES and axis not in named:
        raise ConfigError(
            f"scale.axis={axis}: no target is named for it, only for {', '.join(sorted(named))}: choose one "
            f"of these, or give scale.targets.{axis}, in {AXIS_UNITS[axis]}"
        )
    kept = {key: value for key, value in section.items() if key != "targets"}
    return {**kept, "target": named.get(str(axis))}


def _whole(axis: str, size: Any) -> int:
    """Return a target as an integer; 3e6 is one too."""
    number = isinstance(size, int | float) and not isinstance(size, bool)
    if not number or size < 1 or size != int(size):
        raise ConfigError(f"scale.targets.{axis}={size} must be a positive whole number, or null")
    return int(size)
