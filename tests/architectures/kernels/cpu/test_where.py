"""Where the C++ kernels are used, and what decides on an instruction set that nobody measured."""

import pytest
import torch

from archbench.architectures import fast_paths
from archbench.architectures.fast_paths import Scan, scan_path
from archbench.architectures.kernels.attention import blockwise
from archbench.architectures.kernels.cpu import build, where

pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())


@pytest.fixture
def unmeasured(monkeypatch, tmp_path):
    """A processor that is in no table; the file of what it measured."""
    monkeypatch.setattr(build, "instruction_set", lambda: "neon")
    monkeypatch.setattr(where, "measured_file", lambda: tmp_path / "kernels.json")
    where.measured_here.cache_clear()
    yield tmp_path / "kernels.json"
    where.measured_here.cache_clear()


@pytest.mark.parametrize("name", where.SMALLEST)
def test_small_inputs_are_left_to_pytorch(name, monkeypatch):
    monkeypatch.setattr(build, "instruction_set", lambda: name)
    small, large = torch.zeros(2**10), torch.zeros(2**18)
    for kernel in ("silu gated", "gelu_tanh", "cross_entropy", "skip and gate"):
        assert not where.faster(kernel, small, trained=True)
        assert where.faster(kernel, large, trained=True)
    assert where.faster("rms_norm", small, trained=False)
    assert fast_paths.uses_cpp("silu gated", large)
    assert not fast_paths.uses_cpp("silu gated", small)


def test_every_table_has_every_kernel():
    kernels = set(where.KERNELS) - {"attention"}
    assert all(set(table) == kernels for table in where.SMALLEST.values())
    assert where.ATTENTION.keys() == where.SMALLEST.keys()


def test_an_unmeasured_processor_computes_by_pytorch_until_it_has_measured(unmeasured):
    x, streams = torch.zeros(1000, 64), [torch.zeros(2, 2, 256, 16, requires_grad=True) for _ in range(3)]
    assert not where.faster("rms_norm", x, trained=True)
    assert scan_path("auto", Scan(operand=x), ("cpp",)) == "torch"
    assert blockwise(*streams, scale=1.0, causal=True) is None
    unmeasured.write_text(
        '{"rms_norm": {"fp32 training": 1.2, "fp32 inference": 1.1}, '
        '"attention": {"fp32 training": 1.3}, "scan": {"fp32 inference": 3.0}}'
    )
    where.measured_here.cache_clear()
    assert where.faster("rms_norm", x, trained=True)
    assert not where.faster("rms_norm", x, trained=False)
    assert not where.faster("rotary", x, trained=True)
    assert scan_path("auto", Scan(operand=x), ("cpp",)) == "cpp"
    assert blockwise(*streams, scale=1.0, causal=True) is not None
    with torch.no_grad():
        assert blockwise(*streams, scale=1.0, causal=True) is None
