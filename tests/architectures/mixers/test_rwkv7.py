"""RWKV-7 against the equations of its paper, written out token by token.

Shapes: B batch, T length, D d_model, H heads, K width of a head, C = H K channels.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.backbones.bidirectional_ssm import BidirectionalHybrid, BidirectionalHybridConfig
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.context import Context
from archbench.architectures.mixers.rwkv7 import RWKV7, LowRank, RWKV7Config
from archbench.experiments.training.parallel.block_wrapping import recompute
from tests.architectures.conformance import enliven

EPS = 1e-3


def mixer(index: int, count: int = 2, d_model: int = 12, **settings: object) -> RWKV7:
    """A layer with weights far from their initial values, in float64."""
    torch.manual_seed(index)
    made = RWKV7(d_model, RWKV7Config(num_heads=2, **settings), norm_eps=EPS)  # type: ignore[arg-type]
    made.place(index, count)
    made.initialise(1)
    return enliven(made).double()  # type: ignore[arg-type, return-value]


def two_factors(part: LowRank, x_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return the projection to the rank, and the second factor."""
    return part.down.weight @ x_D, part.up.weight


def definition(layer: RWKV7, x_TD: Tensor, first_TC: Tensor | None) -> tuple[Tensor, Tensor]:
    """Section 4 of the paper with the memory of a head as values by keys; returns the values too."""
    heads, last_D = layer.heads, torch.zeros_like(x_TD[0])
    memory = torch.zeros(heads, layer.width, layer.width).double()
    outputs, values = [], []
    for t, x_D in enumerate(x_TD):
        x_r, x_w, x_k, x_v, x_a, x_g = (x_D + (last_D - x_D) * mu_D for mu_D in layer.shift_6D)
        last_D = x_D
        r, k, v = (part.weight @ x for part, x in ((layer.r, x_r), (layer.k, x_k), (layer.v, x_v)))
        if first_TC is not None:
            assert layer.residual is not None
            low, high = two_factors(layer.residual, x_v)
            v = v + (first_TC[t] - v) * (layer.residual.up.bias + high @ low).sigmoid()
        values.append(v)
        low, high = two_factors(layer.decay, x_w)
        w = torch.exp(-math.exp(-0.5) * (layer.decay.up.bias + high @ low.tanh()).sigmoid())
        low, high = two_factors(layer.rate, x_a)
        a = (layer.rate.up.bias + high @ low).sigmoid()
        low, high = two_factors(layer.gate, x_g)
        g = high @ low.sigmoid()
        removed = F.normalize((k * layer.removal_C).view(heads, -1), dim=-1)
        k = (k * (1 + (a - 1) * layer.key_rate_C)).view(heads, -1)
        r, v, w, a = (z.view(heads, -1) for z in (r, v, w, a))
        reads = []
        for h in range(heads):
            transition = torch.diag(w[h]) - torch.outer(removed[h], a[h] * removed[h])
            memory[h] = memory[h] @ transition + torch.outer(v[h], k[h])
            read = memory[h] @ r[h]
            own = slice(h * layer.width, (h + 1) * layer.width)
            y = (read - read.mean()) / (read.var(unbiased=False) + layer.width * EPS).sqrt()
            y = y * layer.norm.weight[own] + layer.norm.bias[own]
            reads.append(y + (r[h] * k[h] * layer.bonus_HK[h]).sum() * v[h])
        outputs.append(layer.out.weight @ (torch.cat(reads) * g))
    return torch.stack(outputs), torch.stack(values)


@pytest.mark.parametrize("scan", ["torch", "reference"])
def test_two_layers_are_the_equations_of_the_paper(scan: str) -> None:
    first, second = mixer(0, scan=scan), mixer(1, scan=scan)
    x_BTD = torch.randn(2, 37, 12, dtype=torch.float64)
    context = Context.whole(x_BTD[..., 0], None, None)
    with torch.no_grad():
        ours = [layer(x_BTD, context) for layer in (first, second)]
        for row, x_TD in enumerate(x_BTD):
            expected_TD, values_TC = definition(first, x_TD, None)
            torch.testing.assert_close(ours[0][row], expected_TD, atol=1e-12, rtol=1e-12)
            expected_TD, _ = definition(second, x_TD, values_TC)
            torch.testing.assert_close(ours[1][row], expected_TD, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("value_residual", [True, False])
def test_all_layers_of_the_type_but_the_first_have_a_value_residual(value_residual: bool) -> None:
    config = HybridConfig(
        d_model=16,
        num_layers=4,
        layers=["mamba", "rwkv7", "attention+rwkv7", "rwkv7"],
        rwkv7=RWKV7Config(value_residual=value_residual),
    )
    model = Hybrid(config, vocab_size=9, max_length=9)
    parts = [part for part in model.modules() if isinstance(part, RWKV7)]
    assert [part.residual is not None for part in parts] == [False, value_residual, value_residual]
    assert [(part.layer, part.layers) for part in parts] == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_values_reach_later_layers_also_where_blocks_are_recomputed(bidirectional: bool) -> None:
    kind, settings = Hybrid, HybridConfig
    if bidirectional:
        kind, settings = BidirectionalHybrid, BidirectionalHybridConfig
    config = settings(d_model=16, num_layers=3, layers=["rwkv7", "mamba", "rwkv7"])
    torch.manual_seed(0)
    model = enliven(kind(config, vocab_size=9, max_length=20).double())
    tokens_BT = torch.randint(9, (2, 20))
    first = model.blocks[0].mixer.past if bidirectional else model.blocks[0].mixer
    assert isinstance(first, RWKV7)
    results = []
    for recomputed in (False, True):
        for block in model.blocks if recomputed else []:
            recompute(block)
        logits_BTV = model(tokens_BT).logits_BTV
        results.append(
            [logits_BTV, *torch.autograd.grad(logits_BTV.square().sum(), list(model.parameters()))]
        )
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        first.v.weight.zero_()
        assert not torch.equal(model(tokens_BT).logits_BTV, results[0][0])


def test_standard_ranks_are_those_of_the_published_model() -> None:
    """Of RWKV-7 with 0.1B parameters."""
    config = RWKV7Config(num_heads=12).resolved(768)
    ranks = (config.decay_rank, config.rate_rank, config.value_rank, config.gate_rank)
    assert ranks == (64, 64, 32, 128)


def test_initial_values() -> None:
    """The first layer mixes most of the token before into its input, and decays differ most in the last."""
    first, last = (RWKV7(64, RWKV7Config()) for _ in range(2))
    for index, layer in enumerate((first, last)):
        layer.place(index, 2)
        layer.initialise(1)
        assert torch.all(layer.shift_6D[:, 0] == 1.0)
        assert layer.shift_6D.min() >= 0.0
    assert torch.all(first.shift_6D[1, 1:] > last.shift_6D[1, 1:])
    rates = [torch.exp(-math.exp(-0.5) * layer.decay.up.bias.sigmoid()) for layer in (first, last)]
    assert all(rate.min() > math.exp(-math.exp(-0.5)) and rate.max() > 0.999 for rate in rates)
    assert last.residual is not None
    assert last.residual.up.bias.tolist() == pytest.approx(torch.linspace(0.93, 0.53, 64).tolist())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scan": "chunked"}, "scan='chunked' must be one of auto, fla, cpp, torch, reference"),
        ({"num_heads": 0}, "num_heads=0 must be positive"),
        ({"gate_rank": 0}, "gate_rank=0 must be positive"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RWKV7Config(**settings)  # type: ignore[arg-type]
