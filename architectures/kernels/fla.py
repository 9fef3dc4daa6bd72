"""Call the Triton kernels of flash-linear-attention (the package ``fla-core``) for scans with a matrix state.

Shapes: B batch, T length, H heads, K key width, V value width; in ``ssd`` P head_dim, G groups of heads, N
state size.

The kernels compute states in float32; their products of float32 operands are in TF32 on GPUs that have it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from architectures.kernels.backend import call_problem, kernel

DEVICES = ("cuda",)
"""Types of the devices that Triton compiles for."""
KERNELS = {
    "fla.ops.gla": ("chunk_gla", "q k v g initial_state output_final_state"),
    "fla.ops.gated_delta_rule": ("chunk_gated_delta_rule", "q k v g beta initial_state output_final_state"),
    "fla.ops.simple_gla": ("chunk_simple_gla", "q k v g scale initial_state output_final_state"),
}
"""The functions that are called, by module, and the parameters that the calls use."""
INSTALL = "pip install 'fla-core>=0.6'"


@functools.cache
def import_problem() -> str:
    """Return why the kernels cannot be called; empty where they can."""
    return call_problem(KERNELS)


def check_installed() -> None:
    """Raise ValueError where the kernels cannot be called."""
    if problem := import_problem():
        raise ValueError(
            f"scan=fla needs the package fla-core, which cannot be imported ({problem}): {INSTALL}, "
            "or set scan=auto"
        )


def resolve_path(path: str, operand: Tensor, unsupported: str = "") -> str:
    """Return the path that runs a scan with a matrix state: ``fla``, or the configured one.

    Args:
        path: the configured one. ``auto`` is ``fla`` where it is installed and supports the call, else
            ``torch``.
        operand: a tensor with the device and dtype of all operands.
        unsupported: what this call needs and the kernels do not support; empty if they support everything.

    Raises:
        ValueError: ``fla`` is configured and cannot run.
    """
    if path not in ("auto", "fla"):
        return path
    if operand.device.type not in DEVICES or operand.dtype == torch.float64:
        unsupported = f"{operand.dtype} on {operand.device.type} (only float32 or less on {DEVICES[0]})"
    if path == "fla":
        check_installed()
        if unsupported:
            raise ValueError(f"scan=fla cannot do {unsupported}: set scan=auto or scan=torch")
        return path
    return "torch" if unsupported or import_problem() else "fla"


def gated_linear_attention(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay_BTHK: Tensor, initial_BHKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run ``gated_linear_attention`` of ``architectures.layers.linear_attention.gla``."""
    return _call("fla.ops.gla", q_BTHK, k_BTHK, v_BTHV, log_decay_BTHK, initial_state=initial_BHKV)


def delta_rule(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None,
    initial_BHKV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run ``delta_rule`` of ``architectures.layers.linear_attention.delta_rule``.

    DeltaNet runs by the gated kernel with decays of one: the kernel without decays rejects float32.
    """
    if log_decay_BTH is None:
        log_decay_BTH = torch.zeros_like(beta_BTH)
    operands = (q_BTHK, k_BTHK, v_BTHV, log_decay_BTH, beta_BTH)
    return _call("fla.ops.gated_delta_rule", *operands, initial_state=initial_BHKV)


def ssd(
    x_BTHP: Tensor,
    delta_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    initial_BHPN: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run ``ssd`` of ``architectures.layers.ssm.ssd``: linear attention with one decay for each head, whose
    queries are C, whose keys are B and whose values are the inputs times the time step."""
    heads = x_BTHP.shape[2] // B_BTGN.shape[2]
    q_BTHN, k_BTHN = (part.repeat_interleave(heads, dim=2) for part in (C_BTGN, B_BTGN))
    y_BTHP, last_BHNP = _call(
        "fla.ops.simple_gla",
        q_BTHN,
        k_BTHN,
        x_BTHP * delta_BTH[..., None],
        delta_BTH * A_H,
        scale=1.0,
        initial_state=None if initial_BHPN is None else initial_BHPN.transpose(2, 3).contiguous(),
    )
    return y_BTHP, last_BHNP.transpose(2, 3)


def _call(module: str, *operands: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the output and the last state of a kernel."""
    function = kernel(module, KERNELS[module][0])
    return function(*operands, output_final_state=True, **options)  # type: ignore[no-any-return]
