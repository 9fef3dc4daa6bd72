"""Detect that a finished run has diverged: its score is NaN, or worse than the uniform distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.tasks.metrics import Metric, Reference
from experiments.tasks.task import UNIFORM

FEW_STEPS = 100
UNTRAINED = 1.25
"""A model with its first weights needs more bits than the uniform code (up to 8% more were measured), so
a run of fewer than ``FEW_STEPS`` steps is allowed this multiple of it."""


def divergence(metric: Metric, references: Sequence[Reference], steps: int) -> str | None:
    """Return the reason why the score of a run shows that it diverged; None if it did not.

    A model that needs more bits than the uniform code, which gives all tokens of the vocabulary the same
    probability, has learned something false. Tasks without such a code have no threshold, and pseudo-
    likelihoods count tokens without text, such as the marks of removed spans.

    Args:
        metric: the score of the run.
        references: those of its task.
        steps: optimizer steps of the run.
    """
    if not math.isfinite(metric.value):
        return f"the {metric.split} {metric.name} is {metric.value}, no finite number"
    comparable = [] if metric.likelihood == "pseudo" else references
    uniform = next((r for r in comparable if r.name == UNIFORM and r.metric == metric.name), None)
    limit = math.inf if uniform is None else uniform.value * (1 if steps >= FEW_STEPS else UNTRAINED)
    if uniform is not None and metric.value > limit:
        return (
            f"the {metric.split} {metric.name} is {metric.value:.4g}, above the {uniform.value:.4g} of the "
            "uniform code, which knows nothing: lower the learning rate"
        )
    return None
