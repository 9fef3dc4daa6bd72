"""Measure the C++ kernels where the processor's instruction set is not in the table.

``architectures.kernels.cpu.where`` lists by instruction set where each kernel is faster than PyTorch. On
another instruction set, such as NEON, each kernel is timed against PyTorch once, for about a second in all,
and the ratios are stored next to the compiled library. ``archbench doctor`` prints them.
``benchmarks/kernels.py`` times the same cases in more sizes.

Shapes: B batch, H heads, T length, E head width, C channels, N state, K width of keys and of values.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.kernels.cpu import build, where
from archbench.architectures.kernels.cpu.mamba_ops import cpp_finish
from archbench.architectures.kernels.cpu.transformer_ops import (
    cpp_activation,
    cpp_attention,
    cpp_cross_entropy,
    cpp_rms_norm,
    cpp_rotate,
)
from archbench.architectures.layers.activations import ACTIVATIONS
from archbench.architectures.layers.linear_attention.delta_rule import delta_rule
from archbench.architectures.layers.linear_attention.dplr import dplr
from archbench.architectures.layers.positions import Rotary, rotate_by_torch
from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution
from archbench.architectures.layers.ssm.selective_scan import selective_scan
from archbench.architectures.layers.ssm.ssd import ssd

TURNS = 4
TURN_SECONDS = 0.002
PRECISIONS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two ways to compute one thing."""

    kernel: str
    """Of ``where.KERNELS``."""
    size: str
    operands: list[Tensor]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]


def attention_case(B: int, H: int, T: int, E: int, dtype: torch.dtype, *, causal: bool = True) -> Case:
    return Case(
        kernel="attention",
        size=f"{'causal, ' if causal else ''}B {B}, H {H}, T {T}, E {E}",
        operands=[torch.randn(B, T, H, E, dtype=dtype).transpose(1, 2) for _ in range(3)],
        ours=partial(cpp_attention, scale=E**-0.5, causal=causal),
        theirs=partial(F.scaled_dot_product_attention, is_causal=causal),
    )


def norm_case(rows: int, width: int, dtype: torch.dtype) -> Case:
    return Case(
        kernel="rms_norm",
        size=f"{rows} x {width}",
        operands=[torch.randn(rows, width, dtype=dtype), torch.rand(width)],
        ours=lambda x, weight: cpp_rms_norm(x, weight, 1e-6, x.dtype),
        theirs=lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-6).to(x.dtype),
    )


def activation_case(name: str, rows: int, width: int, dtype: torch.dtype, *, gated: bool) -> Case:
    by_torch = ACTIVATIONS[name].by_torch
    return Case(
        kernel=f"{name} gated" if gated else name,
        size=f"{rows} x {width}",
        operands=[torch.randn(rows, width, dtype=dtype) for _ in range(1 + gated)],
        ours=partial(cpp_activation, name),
        theirs=(lambda x, other: by_torch(x) * other) if gated else by_torch,
    )


def rotary_case(B: int, H: int, T: int, E: int, dtype: torch.dtype) -> Case:
    cos, sin = Rotary(dim=E, base=10000.0).tables(torch.arange(T)[None])
    return Case(
        kernel="rotary",
        size=f"B {B}, H {H}, T {T}, E {E}",
        operands=[torch.randn(B, T, H, E, dtype=dtype)],
        ours=lambda x: cpp_rotate(x, cos.flatten(0, 2), sin.flatten(0, 2), interleaved=False),
        theirs=lambda x: rotate_by_torch(x.transpose(1, 2), cos, sin, interleaved=False).transpose(1, 2),
    )


def entropy_case(rows: int, columns: int, dtype: torch.dtype) -> Case:
    target = torch.randint(columns, (rows,))
    return Case(
        kernel="cross_entropy",
        size=f"{rows} x {columns}",
        operands=[torch.randn(rows, columns, dtype=dtype)],
        ours=lambda x: cpp_cross_entropy(x, target),
        theirs=lambda x: F.cross_entropy(x.float(), target, reduction="none"),
    )


def scan_cases(B: int, T: int, C: int, N: int) -> Iterator[Case]:
    """The scans of Mamba and Mamba-2, and what surrounds them."""
    size = f"B {B}, T {T}, C {C}, N {N}"
    case = partial(Case, kernel="scan")
    u, delta, A = torch.randn(B, T, C), torch.rand(B, T, C), -torch.rand(C, N)
    B_BTN, C_BTN = torch.randn(B, T, N), torch.randn(B, T, N)

    def scan(*operands: Tensor, path: str) -> Tensor:
        return selective_scan(*operands, path=path)[0]

    def dual(*operands: Tensor, path: str) -> Tensor:
        return ssd(*operands, path=path)[0]

    ways: dict[str, Any] = {"ours": partial(scan, path="cpp"), "theirs": partial(scan, path="torch")}
    yield case(size=f"Mamba, {size}", operands=[u, delta, A, B_BTN, C_BTN], **ways)
    H, P = max(1, C // 32), 32
    groups = [torch.randn(B, T, 1, 4 * N) for _ in range(2)]
    operands = [torch.randn(B, T, H, P), torch.rand(B, T, H), -torch.rand(H), *groups]
    ways = {"ours": partial(dual, path="cpp"), "theirs": partial(dual, path="torch")}
    yield case(size=f"Mamba-2, B {B}, T {T}, H {H}, P {P}, N {4 * N}", operands=operands, **ways)
    convolution = CausalConvolution(C, 4)
    torch.nn.init.normal_(convolution.weight_CK)
    ways = {
        way: partial(convolution.activated, path=path) for way, path in (("ours", "cpp"), ("theirs", "torch"))
    }
    yield case(size=f"convolution, {size}", operands=[torch.randn(B, T, C)], **ways)
    streams = [*(torch.randn(B, T, C) for _ in range(3)), torch.rand(C)]
    yield case(
        size=f"skip, gate and norm, {size}",
        operands=[*streams, torch.rand(C)],
        ours=lambda *x: cpp_finish(*x[:4], norm="after_gate", weight_C=x[4], eps=1e-5),
        theirs=lambda y, x, gate, D, w: F.rms_norm((y + D * x) * F.silu(gate), w.shape, w, 1e-5),
    )
    yield Case(
        kernel="skip and gate",
        size=size,
        operands=[x.clone() for x in streams],
        ours=cpp_finish,
        theirs=lambda y, x, gate, D: (y + D * x) * F.silu(gate),
    )


def linear_cases(B: int, T: int, H: int, K: int) -> Iterator[Case]:
    """The recurrences of linear attention, with values as wide as keys."""
    streams = [torch.randn(B, T, H, K) for _ in range(3)]
    decay_BTHK = -torch.rand(B, T, H, K)

    def rule(*operands: Tensor, path: str) -> Tensor:
        return delta_rule(*operands, unit_keys=True, path=path)[0]

    def diagonal(*operands: Tensor, path: str) -> Tensor:
        return dplr(*operands, path=path)[0]

    operands = {
        "gated delta rule": (rule, [torch.rand(B, T, H), decay_BTHK[..., 0].clone()]),
        "KDA": (rule, [torch.rand(B, T, H), decay_BTHK]),
        "RWKV-7": (diagonal, [0.1 * torch.randn(B, T, H, K), 0.1 * torch.randn(B, T, H, K), decay_BTHK]),
    }
    for name, (scan, others) in operands.items():
        yield Case(
            kernel="linear attention",
            size=f"{name}, B {B}, T {T}, H {H}, K {K}",
            operands=[x.clone() for x in (*streams, *others)],
            ours=partial(scan, path="cpp"),
            theirs=partial(scan, path="torch"),
        )


def short_cases() -> Iterator[tuple[torch.dtype, Case]]:
    """Yield a case of each kernel and precision, in the sizes of the smallest models."""
    for dtype in PRECISIONS:
        yield dtype, attention_case(4, 4, 128, 16, dtype)
        yield dtype, norm_case(1024, 64, dtype)
        yield dtype, rotary_case(4, 4, 256, 16, dtype)
        for name in ("silu", "gelu", "gelu_tanh"):
            yield dtype, activation_case(name, 1024, 256, dtype, gated=True)
        yield dtype, activation_case("gelu_tanh", 1024, 256, dtype, gated=False)
        yield dtype, entropy_case(1024, 256, dtype)
    for case in (*scan_cases(4, 128, 128, 16), *linear_cases(4, 64, 2, 16)):
        yield torch.float32, case


def compare(
    case: Case, *, trained: bool, turns: int = TURNS, seconds: float = TURN_SECONDS
) -> list[list[float]]:
    """Return the processor seconds of ours and of theirs in each turn, taken in an order that alternates."""
    operands = [x.requires_grad_() for x in case.operands]
    with torch.no_grad():
        slope = torch.randn_like(case.ours(*operands))

    def run(way: Callable[..., Tensor], repeats: int) -> float:
        begin = time.process_time()
        for _ in range(repeats):
            if trained:
                torch.autograd.grad(way(*operands), operands, slope)
            else:
                way(*operands)
        return (time.process_time() - begin) / repeats

    with torch.set_grad_enabled(trained):
        repeats = max(1, round(seconds / max(1e-6, run(case.theirs, 2), run(case.ours, 2))))
        pairs = []
        for turn in range(turns):
            ways = (case.ours, case.theirs)[:: 1 if turn % 2 else -1]
            pair = [run(way, repeats) for way in ways]
            pairs.append(pair[:: 1 if turn % 2 else -1])
    return pairs


def measure() -> dict[str, dict[str, float]]:
    """Return the speed of each kernel relative to PyTorch, over all its cases."""
    seconds: dict[tuple[str, str], list[list[float]]] = {}
    for dtype, case in short_cases():
        for trained in (True, False):
            shortest = [min(repeats) for repeats in zip(*compare(case, trained=trained), strict=True)]
            seconds.setdefault((case.kernel, where.label(dtype, trained)), []).append(shortest)
    ratios: dict[str, dict[str, float]] = {kernel: {} for kernel in where.KERNELS}
    for (kernel, column), cases in seconds.items():
        cpp_seconds, torch_seconds = map(sum, zip(*cases, strict=True))
        ratios[kernel][column] = round(torch_seconds / cpp_seconds, 2)
    return ratios


def measure_unless_known() -> None:
    """Measure the kernels on an instruction set that is not in the tables, unless this machine has before."""
    if build.problem() or build.instruction_set() in where.SMALLEST or where.measured_here():
        return
    file, threads = where.measured_file(), torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        text = json.dumps(measure(), indent=1)
    torch.set_num_threads(threads)
    # Complete when it appears; whoever is first decides for all later processes.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    where.measured_here.cache_clear()
    if where.measured_here():
        os.unlink(written.name)
        return
    file.unlink(missing_ok=True)  # a damaged one
    with contextlib.suppress(FileExistsError):
        os.link(written.name, file)
    os.unlink(written.name)
    where.measured_here.cache_clear()
