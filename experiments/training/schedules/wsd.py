"""Stable at the peak, then a straight line down (WSD: Hu et al. 2024, arXiv 2404.06395)."""

from __future__ import annotations

from archbench.experiments.config.optimizer import OptimizerConfig

SEVERAL_DECAYS = True


def factor(step: int, warmup: int, total: int, config: OptimizerConfig) -> float:
    """Return 1, and in each decay a line down to ``min_lr_ratio``."""
    done, steps = decay_steps(step, total, config)
    return 1.0 if done <= 0 else 1 - (1 - config.min_lr_ratio) * done / steps


def decay_steps(step: int, total: int, config: OptimizerConfig) -> tuple[int, int]:
    """Return the steps of the next decay done after ``step``, 0 or less before it begins, and its length."""
    ends = config.decayed_steps(total)
    end = next(e for e in ends if step < e)
    previous_end = max((e for e in ends if e <= step), default=0)
    start = max(previous_end, end - max(1, round(config.decay_fraction * end)))
    return step - start + 1, end - start
