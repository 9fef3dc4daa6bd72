"""The scan of Mamba and of Mamba-2: the kernels of mamba-ssm beside ours, equal before they are timed.

Each path runs one layer, forward and backward. What it gives and the gradient of its input are first held
against the plain loop (``scan=reference``) in float32 on a short sequence; a path that differs is not timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from architectures.kernels.backend import PACKAGES, installed
from architectures.layers.context import Context
from architectures.layers.ssm.mamba import SelectiveConfig, SelectiveSSM
from architectures.layers.ssm.mamba2 import SSD, SSDConfig
from experiments.benchmark.timing import Stopwatch

LAYERS = ("mamba", "mamba2")
PATHS = ("torch", "mamba_ssm")
LIMIT = 1e-3
"""Largest difference from the plain loop, as a share of the largest value."""


def scan_cells(device: torch.device, tiny: bool) -> Iterator[Any]:
    """Both layers at two lengths on each path."""
    for kind in LAYERS:
        for length in (32,) if tiny else (1024, 4096):
            for path in PATHS:
                about = {"layer": kind, "length": length, "path": path}
                yield about, lambda a=(kind, path, length): measure(*a, device, tiny)


def measure(kind: str, path: str, length: int, device: torch.device, tiny: bool) -> dict[str, Any]:
    """How far a path is from the plain loop, and its seconds for forward and backward in bfloat16."""
    if path == "mamba_ssm" and not installed():
        return {"note": f"{PACKAGES[0]} or {PACKAGES[1]} not installed"}
    if path == "mamba_ssm" and device.type != "cuda":
        return {"note": f"{PACKAGES[0]} is for cuda"}
    d_model, batch = (32, 2) if tiny else (1024, 8)
    difference = differs(kind, path, d_model, device, 24 if tiny else 192)
    if difference > LIMIT:
        raise ValueError(f"differs from the plain loop by {difference:.1e}, allowed {LIMIT:.0e}")
    layer = make(kind, path, d_model, device)
    x_BTD = torch.randn(batch, length, d_model, device=device, requires_grad=True)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            y_BTD = layer(x_BTD, whole(x_BTD))
        y_BTD.float().sum().backward()

    watch = Stopwatch(device)
    watch.until_stable(step, 0.0 if tiny else 2.0)
    times = watch.repeat(step, 2 if tiny else 5, 0.0 if tiny else 1.0)
    return {"seconds": statistics.median(times), "repeats": len(times), "difference": difference}


def differs(kind: str, path: str, d_model: int, device: torch.device, length: int) -> float:
    """The largest difference of outputs and of input gradients, as a share of the largest value."""
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
        ((found - expected).abs().max() / expected.abs().max()).item()
        for expected, found in zip(*results, strict=True)
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
