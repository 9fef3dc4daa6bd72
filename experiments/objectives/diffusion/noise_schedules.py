"""Noise schedules of masked diffusion: the masking probability at a time, and the weight of the loss.

At time t, from 0 (clean) to 1 (all masked), each token is masked with probability m(t) = 1 - alpha(t).
The bound on -log p is the mean over t of w(t) times the cross-entropy of the masked tokens, with
w(t) = -alpha'(t) / (1 - alpha(t)) = m'(t) / m(t) (Sahoo et al. 2024, MDLM, arXiv 2406.07524, equation 11;
Shi et al. 2024, MD4, arXiv 2406.04329, section 4). Its value does not depend on the schedule, only the
variance of its estimate does.

Shapes: X any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.experiments.runtime.errors import nearest

TIMES = ("shared_offset", "antithetic", "independent")


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """A noise schedule, and how times are drawn for training."""

    schedule: str = "linear"
    """``linear`` m = t (the log-linear schedule of MDLM, up to its epsilon), ``polynomial`` m = t^power
    (MD4), ``cosine`` m = cos(pi/2 (1 - t)) (MD4), ``geometric`` m = 1 - exp(-sigma_min^(1-t) sigma_max^t)
    (SEDD), ``mdlm_cosine`` m = 1 - cos(pi/2 t) (MDLM, and BD3LM's cosine), ``mdlm_cosine_squared``
    m = 1 - cos(pi/2 t)^2 (MDLM), ``bd3lm_log`` m = log2(1 + t) (BD3LM)."""
    power: float = 2.0
    """Of the polynomial schedule."""
    sigma_min: float = 1e-5
    """Of the geometric schedule, at time 0."""
    sigma_max: float = 20.0
    """Of the geometric schedule, at time 1."""
    times: str = "shared_offset"
    """``shared_offset`` one offset spreads the times of a batch evenly (MD4), ``antithetic`` one draw in
    each of as many equal intervals (MDLM), ``independent``. In block diffusion the times are dealt out to the
    blocks in random order; BD3LM's code deals them in order, so that a block always has a time of the same
    part of the range."""
    max_time: float = 1.0
    """Largest time drawn in training; the smallest is ``min_time``. A narrower range trains with less
    variance on what is then no bound any more (the clipped schedules of block diffusion)."""

    def __post_init__(self) -> None:
        for name, valid in (("schedule", SCHEDULES), ("times", TIMES)):
            if getattr(self, name) not in valid:
                value = getattr(self, name)
                raise ValueError(f"noise.{name}={value!r} is unknown{nearest(value, valid)}")
        if self.power <= 0:
            raise ValueError(f"noise.power={self.power} must be positive")
        if not 0 < self.sigma_min < self.sigma_max:
            raise ValueError(
                f"noise.sigma_min={self.sigma_min} must be positive, and less than "
                f"noise.sigma_max={self.sigma_max}"
            )
        if not 0 < self.max_time <= 1:
            raise ValueError(f"noise.max_time={self.max_time} must be in (0, 1]")


Schedule = Callable[[Tensor, NoiseConfig], Tensor]


def masked_fraction(time_X: Tensor, config: NoiseConfig) -> Tensor:
    """Return the probability m(t) that a token is masked."""
    return SCHEDULES[config.schedule][0](time_X, config)


def inverse_weight(time_X: Tensor, config: NoiseConfig) -> Tensor:
    """Return 1 / w(t) = m(t) / m'(t), which masked tokens' cross-entropies are divided by."""
    return SCHEDULES[config.schedule][1](time_X, config)


def _sigma(time_X: Tensor, config: NoiseConfig) -> Tensor:
    return config.sigma_min ** (1 - time_X) * config.sigma_max**time_X


SCHEDULES: dict[str, tuple[Schedule, Schedule]] = {
    "linear": (lambda t, c: t, lambda t, c: t),
    "polynomial": (lambda t, c: t**c.power, lambda t, c: t / c.power),
    # The sine of t is exact near 0, where the cosine of 1 - t cancels; so is that of half of it below.
    "cosine": (
        lambda t, c: torch.sin(math.pi / 2 * t),
        lambda t, c: 2 / math.pi * torch.tan(math.pi / 2 * t),
    ),
    "geometric": (
        lambda t, c: -torch.expm1(-_sigma(t, c)),
        lambda t, c: torch.expm1(sigma := _sigma(t, c)) / (sigma * math.log(c.sigma_max / c.sigma_min)),
    ),
    "mdlm_cosine": (
        lambda t, c: 2 * torch.sin(math.pi / 4 * t) ** 2,
        lambda t, c: 2 / math.pi * torch.tan(math.pi / 4 * t),
    ),
    "mdlm_cosine_squared": (
        lambda t, c: torch.sin(math.pi / 2 * t) ** 2,
        lambda t, c: torch.tan(math.pi / 2 * t) / math.pi,
    ),
    "bd3lm_log": (lambda t, c: torch.log1p(t) / math.log(2), lambda t, c: (1 + t) * torch.log1p(t)),
}
"""m(t) and m(t) / m'(t) of each schedule, by its name."""


def draw_times(count: int, min_time: float, config: NoiseConfig, generator: torch.Generator) -> Tensor:
    """Draw times (count,) from ``min_time`` to ``max_time``, each of them uniform by itself."""
    place_N = torch.arange(count) / count
    if config.times == "shared_offset":
        time_N = (torch.rand(1, generator=generator) + place_N) % 1
    elif config.times == "antithetic":
        time_N = torch.rand(count, generator=generator) / count + place_N
    else:
        time_N = torch.rand(count, generator=generator)
    return min_time + (config.max_time - min_time) * time_N


def time_grid(steps: int, config: NoiseConfig) -> Tensor:
    """Return masked fractions (steps + 1,) at equal steps of time from 1 (all masked) down to 0 (none)."""
    fraction_K = masked_fraction(torch.linspace(1, 0, steps + 1, dtype=torch.float64), config)
    fraction_K[0], fraction_K[-1] = 1.0, 0.0  # the geometric schedule all but reaches them
    return fraction_K
