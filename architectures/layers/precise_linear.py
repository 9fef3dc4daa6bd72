"""The linear layer of routers, whose rounding would change choices.

Shapes: ... any, D width of the input, E width of the output.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PreciseLinear(nn.Linear):
    """A linear layer that computes in at least float32, also under autocast."""

    low_precision_parameters = ()

    def forward(self, x_D: Tensor) -> Tensor:
        """Return the output (..., E) of the input (..., D), in at least float32."""
        with torch.autocast(x_D.device.type, enabled=False):
            dtype = torch.promote_types(x_D.dtype, torch.float32)
            bias_E = None if self.bias is None else self.bias.to(dtype)
            return F.linear(x_D.to(dtype), self.weight.to(dtype), bias_E)
