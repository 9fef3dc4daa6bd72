"""A straight line from the peak to the last step."""

from __future__ import annotations

from archbench.experiments.config.optimizer import OptimizerConfig

SEVERAL_DECAYS = False


def factor(step: int, warmup: int, total: int, config: OptimizerConfig) -> float:
    """Return ``min_lr_ratio`` at the last step."""
    return 1 - (1 - config.min_lr_ratio) * (step - warmup + 1) / max(1, total - warmup)
