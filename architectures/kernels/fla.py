"""Call the Triton kernels of flash-linear-attention (the package ``fla-core``) for scans with a matrix state.

Shapes: B batch, T length, H heads, K key width, V value width, S updates of all tokens; in ``ssd`` P
head_dim, G groups of heads, N state size.

The kernels compute states in float32; their products of float32 operands are in TF32 on GPUs that have it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.fast_paths import Scan, implements
from archbench.architectures.kernels.mamba_ssm import call_problem, kernel

DEVICES = ("cuda",)
"""Types of the devices that Triton compiles for."""
WIDTHS = range(16, 257)
"""Widths of keys that the kernels have blocks for; values may be wider."""
FORGET = -64.0
"""Logarithms of decays below are replaced by it. The kernels subtract sums of logarithms, which minus
infinity would turn into nan, and a larger number would cost more digits."""
KERNELS = {
    "fla.ops.gla": ("chunk_gla", "q k v g initial_state output_final_state"),
    "fla.ops.gated_delta_rule": ("chunk_gated_delta_rule", "q k v g beta initial_state output_final_state"),
    "fla.ops.kda": ("chunk_kda", "q k v g beta initial_state output_final_state"),
    "fla.ops.rwkv7": ("chunk_rwkv7", "r w k v a b initial_state output_final_state"),
    "fla.ops.simple_gla": ("chunk_simple_gla", "q k v g scale initial_state output_final_state"),
}
"""The functions that are called, by module, and the parameters that the calls use."""
INSTALL = "pip install 'fla-core>=0.6'"


@functools.cache
def import_problem() -> str:
    """Return why the kernels cannot be called; empty where they can."""
    return call_problem(KERNELS) or _wrong_triton()


def _wrong_triton() -> str:
    """Return why the kernels refuse this version of Triton on this GPU; empty if they do not."""
    utils = importlib.import_module("fla.utils")
    if utils.IS_NVIDIA_HOPPER and utils.TRITON_ABOVE_3_4_0 and not utils.TRITON_ABOVE_3_7_1:
        return "Triton from 3.4.0 to 3.7.0 computes wrong gradients on Hopper GPUs: update triton"
    return ""


def problem() -> str:
    """Return why the kernels cannot be called; empty where they can."""
    return import_problem()


def check() -> None:
    """Raise ValueError where the kernels cannot be called."""
    if reason := import_problem():
        raise ValueError(
            f"scan=fla needs the kernels of fla-core, which cannot be used ({reason}): {INSTALL}, "
            "or set scan=auto"
        )


def unable(scan: Scan) -> str:
    """Return the reason why the kernels cannot compute a scan; empty if they can."""
    device, dtype = scan.operand.device.type, scan.operand.dtype
    if device not in DEVICES or dtype == torch.float64:
        return f"{dtype} on {device} (only float32 or less on {DEVICES[0]})"
    return scan.unsupported or ("" if scan.heads is None else unsupported_widths(*scan.heads))


def preferred(scan: Scan) -> bool:
    """Return True where the kernels can be called, except in PyTorch's deterministic mode."""
    return not torch.are_deterministic_algorithms_enabled() and not import_problem()


def unsupported_widths(key: int, value: int) -> str:
    """Return the reason why the kernels cannot run heads of these widths; empty if they can."""
    if key in WIDTHS and value >= WIDTHS.start:
        return ""
    return f"heads with keys of width {key} and values of width {value} (only {WIDTHS.start} to {WIDTHS[-1]})"


@implements("gated_linear_attention", "fla")
def gated_linear_attention(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay_BTHK: Tensor, initial_BHKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run ``gated_linear_attention`` of ``architectures.layers.linear_attention.gla``."""
    log_decay_BTHK = log_decay_BTHK.clamp_min(FORGET)
    return _call("fla.ops.gla", q_BTHK, k_BTHK, v_BTHV, log_decay_BTHK, initial_BHKV)


@implements("delta_rule", "fla")
def delta_rule(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHV: Tensor,
    beta_BSH: Tensor,
    log_decay: Tensor | None,
    initial_BHKV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run ``delta_rule`` of ``architectures.layers.linear_attention.delta_rule``.

    Decays of heads run by the gated kernel: without decays they are one, and of multiple updates of a token
    the first decays and the last is read. The kernels without decays and of multiple updates reject float32.
    """
    if log_decay is None:
        log_decay = torch.zeros_like(q_BTHK[..., 0], dtype=torch.float32)
    log_decay = log_decay.clamp_min(FORGET)
    if log_decay.dim() == 4:
        return _call("fla.ops.kda", q_BTHK, k_BSHK, v_BSHV, log_decay, beta_BSH, initial_BHKV)
    updates = k_BSHK.shape[1] // q_BTHK.shape[1]
    q_BSHK, log_decay_BSH = q_BTHK, log_decay
    if updates > 1:
        q_BSHK = F.pad(q_BTHK[:, :, None], (0, 0, 0, 0, updates - 1, 0)).flatten(1, 2)
        log_decay_BSH = F.pad(log_decay[:, :, None], (0, 0, 0, updates - 1)).flatten(1, 2)
    operands = (q_BSHK, k_BSHK, v_BSHV, log_decay_BSH, beta_BSH)
    y_BSHV, last_BHKV = _call("fla.ops.gated_delta_rule", *operands, initial_BHKV)
    return y_BSHV[:, updates - 1 :: updates], last_BHKV


@implements("dplr", "fla")
def dplr(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    a_BTHK: Tensor,
    b_BTHK: Tensor,
    log_decay_BTHK: Tensor,
    initial_BHKV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run ``dplr`` of ``architectures.layers.linear_attention.dplr``."""
    log_decay_BTHK = log_decay_BTHK.clamp_min(FORGET)
    operands = (q_BTHK, log_decay_BTHK, k_BTHK, v_BTHV, a_BTHK, b_BTHK)
    return _call("fla.ops.rwkv7", *operands, initial_BHKV)


@implements("ssd", "fla")
def ssd(
    x_BTHP: Tensor,
    delta_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    initial_BHPN: Tensor | None,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run ``ssd`` of ``architectures.layers.ssm.ssd``: linear attention with one decay for each head, whose
    queries are C, whose keys are B and whose values are the inputs times the time step."""
    heads = x_BTHP.shape[2] // B_BTGN.shape[2]
    log_decay_BTH = (delta_BTH * A_H).clamp_min(FORGET)
    if reset_BT is not None:
        log_decay_BTH = log_decay_BTH.masked_fill(reset_BT[..., None], FORGET)
    q_BTHN, k_BTHN = (part.repeat_interleave(heads, dim=2) for part in (C_BTGN, B_BTGN))
    y_BTHP, last_BHNP = _call(
        "fla.ops.simple_gla",
        q_BTHN,
        k_BTHN,
        x_BTHP * delta_BTH[..., None],
        log_decay_BTH,
        None if initial_BHPN is None else initial_BHPN.transpose(2, 3).contiguous(),
        scale=1.0,
    )
    return y_BTHP, last_BHNP.transpose(2, 3)


def _call(module: str, *operands: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the output and the last state of a kernel; the last operand is the initial state."""
    *inputs, initial = operands
    function = kernel(module, KERNELS[module][0])
    return function(*inputs, initial_state=initial, output_final_state=True, **options)  # type: ignore[no-any-return]
