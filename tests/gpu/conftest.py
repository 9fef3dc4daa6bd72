"""Tests that need a CUDA device, marked ``gpu``: ``make test-gpu``.

ARCHBENCH_GPU_DEVICE=cpu runs on a CPU those that can be. It shows that the tests work, and nothing else.
"""

from __future__ import annotations

import os

import pytest
import torch

from archbench.experiments.runtime.device import configure_process


@pytest.fixture
def device() -> torch.device:
    """The device, in a process configured as for a run."""
    chosen = os.environ.get("ARCHBENCH_GPU_DEVICE", "cuda")
    if chosen == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    configure_process(threads=None, kernels="torch")
    return torch.device(chosen)


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The device, for what a CPU cannot run at all."""
    if device.type != "cuda":
        pytest.skip("a CPU cannot run this")
    return device
