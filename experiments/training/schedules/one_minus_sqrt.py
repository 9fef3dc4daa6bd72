"""Stable at the peak, then 1 less a square root (Hägele et al. 2024, arXiv 2405.18392, section 4)."""

from __future__ import annotations

import math

from archbench.experiments.config.optimizer import OptimizerConfig
from archbench.experiments.training.schedules.wsd import decay_steps

SEVERAL_DECAYS = True


def factor(step: int, warmup: int, total: int, config: OptimizerConfig) -> float:
    """Return 1, and in each decay 1 - sqrt(progress), brought to ``min_lr_ratio`` at its end."""
    done, steps = decay_steps(step, total, config)
    return 1.0 if done <= 0 else 1 - (1 - config.min_lr_ratio) * math.sqrt(done / steps)
