"""What a scale names for others: a size for each axis, and the budget that follows from a size.

A scale's YAML has three mappings that are no settings of a run. ``targets`` names a size for each axis, of
which one becomes ``scale.target``; ``heads`` and ``published`` are read by the YAML files of backbones,
budgets and optimizers. A budget in tokens of a parameter, or a batch in tokens, becomes ``budget.tokens`` and
``budget.batch_size``. What is kept of a run has the numbers alone.
"""

from __future__ import annotations

import math
from typing import Any

from experiments.config.schema import AXES
from experiments.config.structured import whole_number_hint
from experiments.runtime.errors import ConfigError, nearest

AXIS_UNITS = {
    "flops": "training FLOPs per token",
    "non_embedding": "parameters without embedding and LM head",
    "active_non_embedding": "those of them that a token uses",
    "total": "parameters in all",
}
"""Unit of a target, by axis."""

READ_BY_OTHERS = ("targets", "heads", "published")
"""Keys of a scale's YAML that other YAML files and this module read."""


def with_target(section: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``scale`` with ``target``, that of its axis, in place of ``targets``.

    A section without ``targets`` is one that a run stored; it comes back as it is. No target at all leaves
    every width as its YAML says.

    Raises:
        ConfigError: there are targets, but none for the axis, or one is no positive whole number.
    """
    if "targets" not in section:
        return {key: value for key, value in section.items() if key not in READ_BY_OTHERS}
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
    kept = {key: value for key, value in section.items() if key not in READ_BY_OTHERS}
    return {**kept, "target": named.get(str(axis))}


def with_tokens(budget: dict[str, Any], scale: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``budget`` with ``tokens`` and ``batch_size`` in place of what they follow from.

    Args:
        budget: ``tokens_per_parameter`` takes the place of its ``tokens``, and ``batch_tokens`` that of its
            ``batch_size``.
        scale: whose ``targets.total`` are the parameters; so all models of a scale train on equally many
            tokens.
        task: whose ``sequence_length`` divides a batch in tokens, rounded to whole sequences.

    Raises:
        ConfigError: both are given, or what they follow from is missing or no positive number.
    """
    kept = {
        key: value for key, value in budget.items() if key not in ("tokens_per_parameter", "batch_tokens")
    }
    if (each := budget.get("tokens_per_parameter")) is not None:
        _alone(budget, "tokens_per_parameter", "tokens")
        parameters = (scale.get("targets") or {}).get("total")
        if parameters is None:
            raise ConfigError(
                f"budget.tokens_per_parameter={each}: the scale names no number of parameters: give "
                "scale.targets.total, or budget.tokens and leave tokens_per_parameter null"
            )
        kept["tokens"] = max(1, round(_positive("tokens_per_parameter", each) * _whole("total", parameters)))
    if (size := budget.get("batch_tokens")) is not None:
        _alone(budget, "batch_tokens", "batch_size")
        length = task.get("sequence_length")
        if not isinstance(length, int) or length < 1:
            raise ConfigError(
                f"budget.batch_tokens={size}: the task has no task.sequence_length to divide it by: give "
                "budget.batch_size and leave batch_tokens null"
            )
        kept["batch_size"] = max(1, round(_positive("batch_tokens", size) / length))
    return kept


def _alone(budget: dict[str, Any], key: str, other: str) -> None:
    if budget.get(other) is not None:
        raise ConfigError(
            f"budget.{key}={budget[key]} beside budget.{other}={budget[other]}: they say the same twice; set "
            f"budget.{key}=null or budget.{other}=null"
        )


def _positive(key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ConfigError(f"budget.{key}={value} must be a positive number, or null")
    return float(value)


def _whole(axis: str, size: Any) -> int:
    """Return a target as an integer; 3e6 is one too."""
    number = isinstance(size, int | float) and not isinstance(size, bool)
    if not number or size < 1 or size != int(size):
        key = f"scale.targets.{axis}"
        hint = whole_number_hint(key, str(size))
        raise ConfigError(f"{key}={size} must be a positive whole number, or null{hint}")
    return int(size)
