"""Mixed precision, and the mode in which a model is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference(model: nn.Module, device: torch.device, precision: str) -> Iterator[None]:
    """Within it the model is in evaluation mode, without gradients, in the precision of training."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast(device, precision):
            yield
    finally:
        model.train(was_training)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of ``device.precision``; disabled for ``fp32``."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
