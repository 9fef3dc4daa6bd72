"""Learning-rate schedules: warm-up, then cosine, warmup-stable-decay (WSD) or constant."""

from __future__ import annotations

import math

import torch

from experiments.config.schema import OptimizerConfig


def decayed_steps(total: int, config: OptimizerConfig) -> list[int]:
    """Return the steps, of ``total``, at which the learning rate has decayed: a run may end at each."""
    return [max(1, round(fraction * total)) for fraction in config.decay_end_fractions]


def learning_rate_factor(step: int, total: int, config: OptimizerConfig) -> float:
    """Return the learning rate at a step (counted from 0) of ``total``, as a fraction of its peak."""
    warmup = round(config.warmup_fraction * total)
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        ends = decayed_steps(total, config)
        end = next(e for e in ends if step < e)
        before = max((e for e in ends if e <= step), default=0)
        start = max(before, end - max(1, round(config.decay_fraction * end)))
        if step < start:
            return 1.0
        return 1 - (1 - config.min_lr_ratio) * (step - start + 1) / (end - start)
    progress = (step - warmup + 1) / max(1, total - warmup)
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


def set_learning_rate(
    optimizer: torch.optim.Optimizer, step: int, total: int, config: OptimizerConfig
) -> float:
    """Set the learning rate of every parameter group for a step, and return the main one."""
    factor = learning_rate_factor(step, total, config)
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak"]
    return factor * config.learning_rate
