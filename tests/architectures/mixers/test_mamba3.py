"""Mamba-3 against a state of complex numbers that turns at every step.

Shapes: B batch, T length, D d_model, H heads, R inputs of a head, P head_dim, N state size.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.layers.context import Context
from archbench.architectures.mixers.mamba3 import Mamba3, Mamba3Config, heavy_tailed
from tests.architectures.conformance import enliven

EPS = 1e-3
SETTINGS = [
    {},
    {"num_groups": 2, "rotary_fraction": 1.0},
    {"mimo_rank": 3, "output_norm": True},
    {"mimo_rank": 2, "num_groups": 4, "chunk": 8},
]


def mixer(**settings: object) -> Mamba3:
    torch.manual_seed(0)
    made = Mamba3(12, Mamba3Config(num_heads=4, d_state=8, **settings), norm_eps=EPS)  # type: ignore[arg-type]
    made.initialise(1)
    return enliven(made).double()  # type: ignore[arg-type, return-value]


def complex_numbers(layer: Mamba3, shared_C: Tensor, norm_N: Tensor, bias_HRN: Tensor) -> Tensor:
    """B or C of one token (H, R, N / 2), each pair of numbers as a complex one."""
    groups = layer.config.num_groups
    shared_RGN = shared_C.view(layer.config.mimo_rank, groups, layer.d_state)
    normed_RGN = shared_RGN * (shared_RGN.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm_N
    heads = [normed_RGN[:, h * groups // layer.config.num_heads] for h in range(layer.config.num_heads)]
    return torch.view_as_complex((torch.stack(heads) + bias_HRN).unflatten(-1, (-1, 2)).contiguous())


def definition(layer: Mamba3, x_TD: Tensor) -> Tensor:
    H, R, P = layer.config.num_heads, layer.config.mimo_rank, layer.head_dim
    h = torch.zeros(H, P, layer.d_state // 2, dtype=torch.complex128)
    u, outputs = torch.zeros_like(h), []
    ones = torch.ones(H, R, P).double()
    up_x, up_gate, down = (layer.up_x_HRP, layer.up_gate_HRP, layer.down_HRP) if R > 1 else (ones, ones, ones)
    for x_D in x_TD:
        gate, x, B, C, dt, rate, weight, angle = (layer.input.weight @ x_D).split(layer.parts)
        x_HRP, gate_HRP = x.view(H, 1, P) * up_x, gate.view(H, 1, P) * up_gate
        B_HRN = complex_numbers(layer, B, layer.B_norm_N, layer.B_bias_HRN)
        C_HRN = complex_numbers(layer, C, layer.C_norm_N, layer.C_bias_HRN)
        delta = F.softplus(dt + layer.dt_bias_H)
        A = -torch.where(rate > 0, 1 + rate, 1 / (1 - rate))
        turn = torch.zeros(h.shape[-1]).double()
        turn[: len(angle)] = math.pi * angle.tanh()
        transition = torch.exp(
            delta[:, None] * torch.complex(A[:, None].expand(-1, len(turn)), -turn.expand(H, -1))
        )
        lamda = weight.sigmoid()
        new_u = torch.einsum("hrp,hrn->hpn", x_HRP.to(B_HRN.dtype), B_HRN)
        h = transition[:, None] * (h + ((1 - lamda) * delta)[:, None, None] * u)
        h, u = h + (lamda * delta)[:, None, None] * new_u, new_u
        y_HRP = torch.einsum("hpn,hrn->hrp", h, C_HRN.conj()).real + layer.D_H[:, None, None] * x_HRP
        if layer.norm_HP is not None:
            y_HRP = y_HRP * (y_HRP.square().mean(-1, keepdim=True) + EPS).rsqrt() * layer.norm_HP[:, None]
        outputs.append(layer.out.weight @ (y_HRP * F.silu(gate_HRP) * down).sum(1).flatten())
    return torch.stack(outputs)


@pytest.mark.parametrize("scan", ["torch", "reference"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_is_the_recurrence_of_a_complex_state(settings: dict[str, object], scan: str) -> None:
    layer = mixer(scan=scan, **settings)
    x_BTD = torch.randn(2, 37, 12, dtype=torch.float64)
    with torch.no_grad():
        y_BTD = layer(x_BTD, Context.whole(x_BTD[..., 0], None, None))
        expected_BTD = torch.stack([definition(layer, x_TD) for x_TD in x_BTD])
    torch.testing.assert_close(y_BTD, expected_BTD, atol=1e-12, rtol=1e-12)


def test_angles_keep_their_digits_in_float32_over_long_sequences() -> None:
    layer = mixer(rotary_fraction=1.0).float()
    with torch.no_grad():
        layer.dt_bias_H.fill_(1.0)
    x_BTD = torch.randn(1, 5000, 12)
    context = Context.whole(x_BTD[..., 0], None, None)
    with torch.no_grad():
        found, state = layer.read(x_BTD, None, context)
        expected = layer.double()(x_BTD.double(), context)
    assert (found.double() - expected).abs().max() < 1e-5 * expected.abs().max()
    assert 0 <= state["angle"].min() <= state["angle"].max() <= 2 * math.pi + 1e-6


def test_rates_of_decay_are_positive_and_smooth() -> None:
    x = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0], requires_grad=True)
    rate = heavy_tailed(x)
    assert rate.tolist() == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0])
    (slope,) = torch.autograd.grad(rate.sum(), x)
    assert slope.tolist() == pytest.approx([1 / 16, 1 / 4, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scan": "cuda"}, "scan='cuda' must be one of auto, cpp, torch, reference"),
        ({"mimo_rank": 0}, "mimo_rank=0 must be positive"),
        ({"d_state": 5}, "d_state=5 must be even"),
        ({"num_groups": 3}, "num_heads=8 must be a multiple of num_groups=3"),
        ({"rotary_fraction": 0.3}, "rotary_fraction=0.3 must be 0.5 or 1"),
        ({"dt_min": 1.0}, "dt_min=1.0 and dt_max=0.1 must satisfy"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mamba3Config(**settings)  # type: ignore[arg-type]


def test_heads_must_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="num_heads=8 must divide 2 d_model=20"):
        Mamba3(10, Mamba3Config())
