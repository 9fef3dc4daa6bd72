"""Call the CUDA kernels of mamba-ssm and causal-conv1d.

Shapes: B batch, T length, C channels, N state size; H heads, P head_dim, G groups of heads.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.fast_paths import Scan, implements

PACKAGES = ("mamba_ssm", "causal_conv1d")
KERNELS = {
    "mamba_ssm.ops.selective_scan_interface": ("selective_scan_fn", "u delta A B C return_last_state"),
    "mamba_ssm.ops.triton.ssd_combined": (
        "mamba_chunk_scan_combined", "x dt A B C chunk_size initial_states seq_idx return_final_states"
    ),
    "causal_conv1d": ("causal_conv1d_fn", "x weight bias seq_idx activation"),
}  # fmt: skip
"""The functions that are called, by module, and the parameters that the calls use."""
DEVICES = ("cuda",)
"""Types of the devices that the packages have kernels for."""
CONVOLUTION_WIDTHS = range(2, 5)
"""Taps that causal-conv1d has kernels for."""
SCAN_STATES = 256
"""Largest state of a channel that mamba-ssm's selective scan supports."""
CONVOLUTION_CHANNELS = 8
"""Its channels-last layout needs multiples of this."""
INSTALL = "pip install --no-build-isolation 'mamba-ssm>=2.3.0,<2.3.2' 'causal-conv1d>=1.5'"


def check() -> None:
    """Raise ValueError where the kernels cannot be called."""
    if reason := import_problem():
        raise ValueError(
            f"scan=mamba_ssm needs the CUDA kernels of mamba-ssm and causal-conv1d, which cannot be imported "
            f"({reason}): {INSTALL}, or set scan=auto"
        )


def problem() -> str:
    """Return why the kernels cannot be called; empty where they can."""
    return import_problem()


@functools.cache
def import_problem() -> str:
    """Return why the kernels of mamba-ssm and causal-conv1d cannot be called; empty where they can."""
    return call_problem(KERNELS)


def call_problem(kernels: dict[str, tuple[str, str]]) -> str:
    """Return why one of these functions cannot be called as we do; empty where all can. See ``KERNELS``.

    They are really imported: an installed package may not fit the installed PyTorch, CUDA or transformers,
    and then fails with almost any error.
    """
    for module, (name, parameters) in kernels.items():
        try:
            signature = inspect.signature(kernel(module, name)).parameters
        except Exception as error:
            return f"{module}.{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if missing := [parameter for parameter in parameters.split() if parameter not in signature]:
            return f"{module}.{name} has no parameter {', '.join(missing)}"
    return ""


def installed() -> bool:
    """Return True where the kernels of mamba-ssm and causal-conv1d can be called."""
    return not import_problem()


def unable(scan: Scan) -> str:
    """Return the reason why the kernels cannot compute a scan; empty if they can."""
    if scan.unsupported:
        return scan.unsupported
    if scan.state > SCAN_STATES:
        return f"d_state={scan.state} (at most {SCAN_STATES})"
    if reason := convolution_unable(*scan.convolution, packed=scan.packed):
        return reason
    device, dtype = scan.operand.device.type, scan.operand.dtype
    if device not in DEVICES or dtype == torch.float64:
        return f"{dtype} on {device} (only float32 or less on cuda)"
    return ""


def preferred(scan: Scan) -> bool:
    """Return True where the kernels can be called, except in PyTorch's deterministic mode."""
    return installed() and not torch.are_deterministic_algorithms_enabled()


@implements("selective_scan", "mamba_ssm")
def selective_scan(
    u_BTC: Tensor, delta_BTC: Tensor, A_CN: Tensor, B_BTN: Tensor, C_BTN: Tensor
) -> tuple[Tensor, Tensor]:
    """Run ``selective_scan`` from the zero state by the kernel of Mamba; the last state has no gradient."""
    u, delta, B, C = (x.transpose(1, 2).contiguous() for x in (u_BTC, delta_BTC, B_BTN, C_BTN))
    module = "mamba_ssm.ops.selective_scan_interface"
    y_BCT, last_BCN = kernel(module, KERNELS[module][0])(u, delta, A_CN, B, C, return_last_state=True)
    return y_BCT.transpose(1, 2), last_BCN


@implements("ssd", "mamba_ssm")
def ssd(
    x_BTHP: Tensor,
    delta_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    initial_BHPN: Tensor | None,
    reset_BT: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Run ``ssd`` by the kernel of Mamba-2."""
    module = "mamba_ssm.ops.triton.ssd_combined"
    return kernel(module, KERNELS[module][0])(  # type: ignore[no-any-return]
        x_BTHP,
        delta_BTH,
        A_H,
        B_BTGN,
        C_BTGN,
        chunk_size=chunk,
        initial_states=initial_BHPN,
        seq_idx=None if reset_BT is None else reset_BT.cumsum(1, dtype=torch.int32),
        return_final_states=True,
    )


@implements("convolution", "mamba_ssm")
def causal_conv1d(
    x_BTC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, positions_BT: Tensor | None
) -> Tensor:
    """Return SiLU of the causal depthwise convolution, by the kernel of causal-conv1d.

    With separate documents, that kernel needs channels last and multiples of eight channels.
    """
    documents_BT = None
    if positions_BT is not None:
        documents_BT = (positions_BT == 0).expand(x_BTC.shape[:2]).cumsum(1, dtype=torch.int32)
    x_BCT = x_BTC.contiguous().transpose(1, 2)
    if x_BTC.shape[2] % CONVOLUTION_CHANNELS:
        assert documents_BT is None
        x_BCT = x_BCT.contiguous()
    y_BCT = kernel("causal_conv1d", KERNELS["causal_conv1d"][0])(
        x_BCT, weight_CK, bias_C, seq_idx=documents_BT, activation="silu"
    )
    return y_BCT.transpose(1, 2)


def convolution_unable(channels: int, width: int, *, packed: bool = False) -> str:
    """Return the reason why causal-conv1d cannot run this convolution; empty if it can. Width 0 is none."""
    if width and width not in CONVOLUTION_WIDTHS:
        return f"conv_width={width} (only {CONVOLUTION_WIDTHS.start} to {CONVOLUTION_WIDTHS.stop - 1})"
    if packed and channels % CONVOLUTION_CHANNELS:
        return f"packed documents with {channels} channels (only multiples of {CONVOLUTION_CHANNELS})"
    return ""


def kernel(module: str, name: str) -> Any:
    """Import a function of a package that may not be installed."""
    return getattr(importlib.import_module(module), name)
