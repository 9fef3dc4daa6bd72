"""Which kernels are used on an instruction set without a table."""

import json

import pytest
import torch

from archbench.architectures.kernels.cpu import build, where


@pytest.fixture(scope="session", autouse=True)
def every_kernel_was_measured_to_be_faster(tmp_path_factory):
    """There PyTorch computes everything until the machine is measured, and these tests would test nothing."""
    if build.problem() or build.instruction_set() in where.SMALLEST:
        yield
        return
    labels = [
        where.label(dtype, trained) for dtype in (torch.float32, torch.bfloat16) for trained in (True, False)
    ]
    file = tmp_path_factory.mktemp("measured") / "kernels.json"
    file.write_text(json.dumps({kernel: dict.fromkeys(labels, 2 * where.GAIN) for kernel in where.KERNELS}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, "measured_file", lambda: file)
        where.measured_here.cache_clear()
        yield
    where.measured_here.cache_clear()
