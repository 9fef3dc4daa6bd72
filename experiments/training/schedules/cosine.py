"""Half a cosine from the peak to the last step (Loshchilov and Hutter 2017, arXiv 1608.03983)."""

from __future__ import annotations

import math

from archbench.experiments.config.optimizer import OptimizerConfig

SEVERAL_DECAYS = False


def factor(step: int, warmup: int, total: int, config: OptimizerConfig) -> float:
    """Return ``min_lr_ratio`` at the last step, and the mean of it and 1 half way."""
    progress = (step - warmup + 1) / max(1, total - warmup)
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
