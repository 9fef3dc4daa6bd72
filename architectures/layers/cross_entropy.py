"""Cross-entropy: by PyTorch's operations, or in one pass in C++.

Shapes: N rows, V columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.fast_paths import kernel, uses_cpp


def cross_entropy(logits_NV: Tensor, target_N: Tensor, never: int | None = None) -> Tensor:
    """Cross-entropy of each row (N,), in float32 for every dtype of the logits.

    ``never`` is a token that can never be right: its logit counts as minus infinity.
    """
    if uses_cpp("cross_entropy", logits_NV):
        return kernel("cross_entropy")(logits_NV, target_N, never)
    logits_NV = logits_NV.float()
    if never is not None:
        never_V = torch.arange(logits_NV.shape[-1], device=logits_NV.device) == never
        logits_NV = logits_NV.masked_fill(never_V, -torch.inf)
    return F.cross_entropy(logits_NV, target_N, reduction="none")
