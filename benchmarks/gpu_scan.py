"""The scan of Mamba and of Mamba-2: the kernels of mamba-ssm and ours, compared before they are timed.

Each path runs one layer, forward and backward. Its output and the gradient of its input are first compared
with the plain loop (``scan=reference``) in float32 on a short sequence; a path that differs is not timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from archbench.architectures.kernels.mamba_ssm import PACKAGES, import_problem
from archbench.architectures.layers.context import Context
from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM
from archbench.architectures.mixers.mamba2 import SSD, SSDConfig
from archbench.experiments.benchmark.timing import Stopwatch

LAYERS = ("mamba", "mamba2")
PATHS = ("torch", "mamba_ssm")
LIMIT = 1e-3
"""Largest difference from the plain loop, as a share of the largest value."""


def scan_cells(device: torch.device, tiny: bool) -> Iterator[Any]:
    """Both layers at two lengths on each path."""
    for kind in LAYERS:
        for length in lengths(tiny):
            for path in PATHS:
                about = {"layer": kind, "length": length, "path": path}
                yield about, lambda a=(kind, path, length): measure(*a, device, tiny)


def warm_cells(device: torch.device, tiny: bool) -> Iterator[Any]:
    """Run each layer of mamba-ssm forward and backward, so that its kernels are compiled and cached on disk.

    Those of Mamba-2 are tuned over some two hundred configurations, which can need minutes.
    """
    for kind in LAYERS:
        yield {"layer": kind, "path": "mamba_ssm"}, lambda kind=kind: warm(kind, device, tiny)


def warm(kind: str, device: torch.device, tiny: bool) -> dict[str, Any]:
    """Seconds of the first steps of a layer."""
    if (note := unable("mamba_ssm", device)) is not None:
        return {"note": note}
    began = time.perf_counter()
    differs(kind, "mamba_ssm", *sizes(tiny)[::2], device)
    for length in lengths(tiny):
        stepper(kind, "mamba_ssm", length, device, tiny)()
    return {"seconds_once": time.perf_counter() - began}


def unable(path: str, device: torch.device) -> str | None:
    """Why a path cannot run here; None where it can."""
    if path == "mamba_ssm" and (problem := import_problem()):
        return f"{PACKAGES[0]} or {PACKAGES[1]} cannot be imported: {problem}"
    if path == "mamba_ssm" and device.type != "cuda":
        return f"{PACKAGES[0]} is for cuda"
    return None


def lengths(tiny: bool) -> tuple[int, ...]:
    return (32,) if tiny else (1024, 4096)


def sizes(tiny: bool) -> tuple[int, int, int]:
    """Width, batch, and the length at which paths are compared."""
    return (32, 2, 24) if tiny else (1024, 8, 192)


def stepper(kind: str, path: str, length: int, device: torch.device, tiny: bool) -> Callable[[], None]:
    """Return a function that runs a layer forward and backward in bfloat16."""
    d_model, batch, _ = sizes(tiny)
    layer = make(kind, path, d_model, device)
    x_BTD = torch.randn(batch, length, d_model, device=device, requires_grad=True)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            y_BTD = layer(x_BTD, whole(x_BTD))
        y_BTD.float().sum().backward()

    return step


def measure(kind: str, path: str, length: int, device: torch.device, tiny: bool) -> dict[str, Any]:
    """Return the error of a path against the plain loop, and its seconds forward and backward in bfloat16."""
    if (note := unable(path, device)) is not None:
        return {"note": note}
    d_model, _, short = sizes(tiny)
    difference = differs(kind, path, d_model, short, device)
    if difference > LIMIT:
        raise ValueError(f"differs from the plain loop by {difference:.1e}, allowed {LIMIT:.0e}")
    step = stepper(kind, path, length, device, tiny)
    watch = Stopwatch(device)
    watch.until_stable(step, 0.0 if tiny else 2.0)
    times = watch.repeat(step, 2 if tiny else 5, 0.0 if tiny else 1.0)
    return {"seconds": statistics.median(times), "repeats": len(times), "difference": difference}


def differs(kind: str, path: str, d_model: int, length: int, device: torch.device) -> float:
    """The largest difference of outputs and of input gradients, as a fraction of the largest value."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    plain = make(kind, "reference", d_model, device)
    tested = make(kind, path, d_model, device)
    tested.load_state_dict(plain.state_dict())
    results = []
    x_BTD = torch.randn(2, length, d_model, device=device)
    weight_BTD = torch.randn_like(x_BTD)
    for layer in (plain, tested):
        own_BTD = x_BTD.clone().requires_grad_()
        y_BTD: Tensor = layer(own_BTD, whole(own_BTD))
        (y_BTD * weight_BTD).sum().backward()
        assert own_BTD.grad is not None
        results.append((y_BTD.detach(), own_BTD.grad))
    return max(
        ((actual - expected).abs().max() / expected.abs().max()).item()
        for expected, actual in zip(*results, strict=True)
    )


def make(kind: str, path: str, d_model: int, device: torch.device) -> nn.Module:
    """A layer on a path."""
    with torch.device(device):
        layer: SelectiveSSM | SSD
        if kind == "mamba":
            layer = SelectiveSSM(d_model, SelectiveConfig(scan=path))
        else:
            layer = SSD(d_model, SSDConfig(num_heads=max(2, d_model // 32), d_state=16, scan=path))
        layer.initialise(1)
    return layer


def whole(x_BTD: Tensor) -> Context:
    return Context(positions_BT=torch.arange(x_BTD.shape[1], device=x_BTD.device)[None])
