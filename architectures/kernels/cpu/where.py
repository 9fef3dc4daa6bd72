"""Where each C++ kernel is used: where it was measured to be faster than PyTorch, by instruction set.

The values are those of docs/performance/kernels.md, measured by ``benchmarks/kernels.py`` and
``benchmarks/attention.py``. For an instruction set that is not in these tables,
``kernels.cpu.measure`` times each kernel once and stores the ratios next to the compiled
library; a kernel that is faster there is used as with AVX2. Until then PyTorch computes everything.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from archbench.architectures.kernels.cpu import build

NEVER = 2**62
GAIN = 1.15
"""A kernel that this machine measured is used where it is this many times as fast as PyTorch."""
KERNELS = (
    "attention", "rms_norm", "rotary", "silu gated", "gelu gated", "gelu_tanh gated", "gelu_tanh",
    "cross_entropy", "scan", "skip and gate", "linear attention",
)  # fmt: skip
"""Those that have a row. A scan is that of Mamba or Mamba-2 with its convolution, and with its norm where it
has one; skip and gate are what follows a scan without a norm. Linear attention is every recurrence of
``delta_ops``."""


@dataclass(frozen=True)
class Smallest:
    """The least number of input elements from which a kernel is used."""

    fp32_training: int = 0
    fp32_inference: int = 0
    bf16_training: int = 0
    bf16_inference: int = 0

    def of(self, dtype: torch.dtype, trained: bool) -> int:
        if dtype == torch.bfloat16:
            return self.bf16_training if trained else self.bf16_inference
        return self.fp32_training if trained else self.fp32_inference


@dataclass(frozen=True, kw_only=True)
class AttentionRule:
    """Queries and keys from which attention is used, by what is hidden; and up to which products of them."""

    causal: int = NEVER
    hidden: int = NEVER
    """Under a mask that hides much."""
    masked: int = NEVER
    """Under any other mask."""
    whole: int = NEVER
    """Where every query sees every key."""
    uneven: int = NEVER
    """In any case, where 4 does not divide the width of a head: PyTorch's backward pass is slow there."""
    capped: int = 32
    """With a soft cap, in any case: PyTorch has no fused kernel."""
    largest_hidden: int = NEVER
    """Keys times width of a head up to which, causal or under a mask that hides much."""
    largest: int = NEVER
    """The same under other masks and without one."""

    @property
    def shortest(self) -> int:
        """Below it the kernel is never used."""
        return min(self.causal, self.hidden, self.masked, self.whole, self.uneven, self.capped)


SMALLEST = {
    "avx512": {
        "rms_norm": Smallest(),
        "rotary": Smallest(),
        "silu gated": Smallest(2**16, 2**16, 2**18, 2**18),
        "gelu gated": Smallest(2**14, 2**18, NEVER, NEVER),
        "gelu_tanh gated": Smallest(2**14, 2**14, 2**14, 2**14),
        "gelu_tanh": Smallest(2**14, 2**14, 2**16, 2**14),
        "cross_entropy": Smallest(2**18, 2**18, 2**18, 2**18),
        "scan": Smallest(),
        "skip and gate": Smallest(2**18, 2**18, 2**18, 2**18),
        "linear attention": Smallest(),
    },
    "avx2": {
        "rms_norm": Smallest(),
        "rotary": Smallest(),
        "silu gated": Smallest(2**16, 2**16, NEVER, NEVER),
        "gelu gated": Smallest(2**14, 2**21, 2**21, 2**21),
        "gelu_tanh gated": Smallest(2**14, 2**14, 2**14, 2**14),
        "gelu_tanh": Smallest(2**14, 2**14, 2**14, 2**14),
        "cross_entropy": Smallest(2**18, 2**18, 2**18, 2**18),
        "scan": Smallest(),
        "skip and gate": Smallest(2**18, 2**18, 2**18, 2**18),
        "linear attention": Smallest(),
    },
}
ATTENTION = {
    "avx512": {
        (torch.float32, True): AttentionRule(causal=64, hidden=128, masked=128, uneven=24),
        (torch.float32, False): AttentionRule(causal=128, hidden=128, masked=1024),
        # Limits of a processor with matrix instructions for bfloat16 (AMX), which PyTorch uses.
        (torch.bfloat16, True): AttentionRule(
            causal=32, hidden=32, masked=32, whole=32, uneven=24, largest_hidden=512 * 64, largest=256 * 64
        ),
        (torch.bfloat16, False): AttentionRule(),
    },
    "avx2": {
        (torch.float32, True): AttentionRule(causal=64, hidden=128, masked=128, uneven=64),
        (torch.float32, False): AttentionRule(causal=128, hidden=128, masked=1024),
        (torch.bfloat16, True): AttentionRule(causal=32, hidden=32, masked=32, whole=32, uneven=24),
        (torch.bfloat16, False): AttentionRule(causal=64, hidden=128, masked=1024),
    },
}


def faster(kernel: str, x: Tensor, *, trained: bool) -> bool:
    """Return True where a kernel is faster than PyTorch for an input of this size and precision."""
    table = SMALLEST.get(build.instruction_set())
    if table is None:
        table = SMALLEST["avx2"]
        if not _measured_faster(kernel, x.dtype, trained):
            return False
    return x.numel() >= table[kernel].of(x.dtype, trained)


def attention_rule(dtype: torch.dtype, *, trained: bool) -> AttentionRule:
    """Return where attention is faster than PyTorch's."""
    table = ATTENTION.get(build.instruction_set())
    if table is None:
        if not _measured_faster("attention", dtype, trained):
            return AttentionRule(capped=NEVER)
        table = ATTENTION["avx2"]
    return table[dtype, trained]


def label(dtype: torch.dtype, trained: bool) -> str:
    """Return the name of a column of what was measured here."""
    return f"{'bf16' if dtype == torch.bfloat16 else 'fp32'} {'training' if trained else 'inference'}"


def measured_file() -> Path:
    """Return the file of the ratios that were measured on this machine, next to the library."""
    return build.library_file().with_suffix(".json")


@functools.cache
def measured_here() -> dict[str, dict[str, float]]:
    """Return how many times as fast as PyTorch each kernel was, by ``label``; empty if not measured.

    A damaged file counts as none: the kernels are measured again.
    """
    try:
        ratios: dict[str, dict[str, float]] = json.loads(measured_file().read_text())
        intact = all(ratio > 0 for row in ratios.values() for ratio in row.values())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return ratios if intact else {}


def _measured_faster(kernel: str, dtype: torch.dtype, trained: bool) -> bool:
    return measured_here().get(kernel, {}).get(label(dtype, trained), 0.0) >= GAIN
