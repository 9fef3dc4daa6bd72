"""Tests that need a CUDA device, marked ``gpu``: ``make test-gpu``.

ARCHBENCH_GPU_DEVICE=cpu runs on a CPU those that can be. It shows that the tests work, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def device() -> Iterator[torch.device]:
    """The device, with float32 products in float32: TF32 keeps 10 bits of 23."""
    chosen = os.environ.get("ARCHBENCH_GPU_DEVICE", "cuda")
    if chosen == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield torch.device(chosen)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The device, for what a CPU cannot run at all."""
    if device.type != "cuda":
        pytest.skip("a CPU cannot run this")
    return device
