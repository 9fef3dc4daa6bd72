"""An exponential moving average (EMA) of the weights.

The average of a parameter is one of the optimizer's moments, and is saved and resumed with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

AVERAGE = "average"
"""Key of a parameter's moving average among the optimizer's moments, with which it is saved and resumed."""


@torch.no_grad()
def update_average(optimizer: torch.optim.Optimizer, step: int, decay: float) -> None:
    """Move the averages towards the weights after a step (counted from 1); the first step creates them.

    The decay is at most (1 + step) / (10 + step), so that the average forgets where training began
    (Song et al. 2021, arXiv 2011.13456, and the published code of MDLM).
    """
    decay = min(decay, (1 + step) / (10 + step))
    for parameter, moments in optimizer.state.items():
        if AVERAGE not in moments:
            moments[AVERAGE] = parameter.detach().clone()
        else:
            moments[AVERAGE].lerp_(parameter.detach(), 1 - decay)


@torch.no_grad()
def exchange_averages(optimizer: torch.optim.Optimizer) -> None:
    """Swap weights and averages; a second call swaps them back."""
    for parameter, moments in optimizer.state.items():
        if AVERAGE in moments:
            weights = parameter.detach().clone()
            parameter.copy_(moments[AVERAGE])
            moments[AVERAGE].copy_(weights)


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Replace the weights of the model by their averages, if there are any, in the block."""
    exchange_averages(optimizer)
    try:
        yield
    finally:
        exchange_averages(optimizer)
