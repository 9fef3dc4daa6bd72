"""The learning rate of a step: a linear warm-up, then the schedule."""

from __future__ import annotations

import torch

from experiments.config.optimizer import OptimizerConfig, load_schedule


def learning_rate_factor(step: int, total: int, config: OptimizerConfig) -> float:
    """Return the learning rate at a step (counted from 0) of ``total``, as a fraction of its peak."""
    warmup = round(config.warmup_fraction * total)
    if step < warmup:
        return (step + 1) / warmup
    return load_schedule(config.schedule).factor(step, warmup, total, config)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, step: int, total: int, config: OptimizerConfig
) -> float:
    """Set the learning rate of every parameter group for a step, and return the main one."""
    factor = learning_rate_factor(step, total, config)
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak"]
    return factor * config.learning_rate
