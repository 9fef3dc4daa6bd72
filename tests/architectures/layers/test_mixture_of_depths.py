"""Mixture of depths against loops over tokens, written out for the block of the decoder.

Shapes: T length, D d_model, K selected tokens, H query heads, G key/value heads, E width of a head.
"""

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.mixture_of_depths import PREDICTOR_COEFFICIENT, RoutedBlock
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.mixers.rwkv7 import Config as RWKV7Config
from archbench.experiments.objectives.decoding.steps import problem
from archbench.experiments.training.parallel.block_wrapping import recompute
from tests.architectures.conformance import check_no_leak, enliven
from tests.architectures.models import build

HEADS, GROUPS, CAPACITY = 4, 2, 0.3
assert_close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
"""Up to the rounding of rotary tables, which are in float32."""


def decoder(**settings: Any) -> Decoder:
    attention = AttentionConfig(num_heads=HEADS, num_kv_heads=GROUPS)
    given = {"d_model": 16, "num_layers": 4, "attention": attention, "mixture_of_depths": CAPACITY}
    return Decoder(DecoderConfig(**{**given, **settings}), vocab_size=19, max_length=64).double()


def lively(**settings: Any) -> Decoder:
    torch.manual_seed(0)
    model = decoder(**settings)
    enliven(model)
    return model


def rotated(x_E: Tensor, position: int) -> Tensor:
    half = len(x_E) // 2
    angle = position * 10_000.0 ** (-torch.arange(half) / half)
    first, second = x_E[:half], x_E[half:]
    return torch.cat(
        [
            first * angle.cos() - second * angle.sin(),
            second * angle.cos() + first * angle.sin(),
        ]
    )


def change(block: Any, x_KD: list[Tensor], positions: list[int]) -> list[Tensor]:
    """Compute the output of a block on selected tokens, each of which sees those before it."""
    attention, ff = block.mixer, block.feedforward
    changes, keys, values = [], [], []
    for x_D, position in zip(x_KD, positions, strict=True):
        read_D = block.mixer_residual.before(x_D)
        k_GE, v_GE = (part(read_D).view(GROUPS, -1) for part in (attention.k, attention.v))
        keys.append([rotated(k_E, position) for k_E in k_GE])
        values.append(v_GE)
        heads = []
        for h, q_E in enumerate(attention.q(read_D).view(HEADS, -1)):
            g = h * GROUPS // HEADS
            score_K = torch.stack([rotated(q_E, position) @ k[g] for k in keys]) / math.sqrt(len(q_E))
            p_K = score_K.softmax(0)
            heads.append(sum(p * v[g] for p, v in zip(p_K, values, strict=True)))
        mixed_D = attention.out(torch.cat(heads))
        read_D = block.feedforward_residual.before(x_D + mixed_D)
        changes.append(mixed_D + ff.down(F.silu(ff.gate(read_D)) * ff.up(read_D)))
    return changes


def reference(model: Decoder, tokens: list[int], *, training: bool) -> tuple[Tensor, Tensor]:
    """Logits (T, V) of one document, and the sum of the losses of the predictors."""
    x = list(model.embedding(torch.tensor([tokens]), torch.arange(len(tokens))[None])[0])
    loss = torch.zeros((), dtype=torch.float64)
    for block in model.blocks:
        chosen, weights = list(range(len(tokens))), [torch.tensor(1.0)] * len(tokens)
        if isinstance(block, RoutedBlock):
            weights = [block.router.score.weight[0] @ x_D for x_D in x]
            first, _, last = block.router.predictor
            logits = [last(F.silu(first(x_D.detach())))[0] for x_D in x]
            if training:
                best = sorted(chosen, key=lambda t: -weights[t].item())
                chosen = sorted(best[: math.floor(CAPACITY * len(tokens))])
                targets = torch.tensor([float(t in chosen) for t in range(len(tokens))])
                p_T = torch.stack(logits).sigmoid()
                loss = loss - (targets * p_T.log() + (1 - targets) * (1 - p_T).log()).mean()
            else:
                chosen = [t for t in chosen if logits[t] > 0]
        for t, change_D in zip(chosen, change(block, [x[t] for t in chosen], chosen), strict=True):
            x[t] = x[t] + weights[t] * change_D
    return model.head(model.final(torch.stack(x))), PREDICTOR_COEFFICIENT * loss


@pytest.mark.parametrize("training", [True, False])
def test_the_forward_pass_and_its_gradients_are_those_of_loops(training: bool) -> None:
    model = lively(num_layers=2).train(training)
    tokens_BT = torch.randint(19, (2, 11))
    output = model(tokens_BT)
    expected, losses = zip(
        *(reference(model, row, training=training) for row in tokens_BT.tolist()), strict=True
    )
    assert_close(output.logits_BTV, torch.stack(expected))
    assert output.auxiliary.keys() == ({"depth_predictor"} if training else set())
    pairs = [(output.logits_BTV, output.auxiliary.values()), (torch.stack(expected), losses)]
    gradients = []
    for logits_BTV, auxiliary in pairs:
        model.zero_grad()
        (logits_BTV.square().sum() + sum(auxiliary)).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert training == any("predictor" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        assert_close(gradient, gradients[1][name], rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_documents_and_padded_rows_select_their_tokens_alone(training: bool) -> None:
    model = lively().train(training)
    sizes = [9, 2, 13, 7]
    tokens_BT = torch.randint(19, (2, sum(sizes)))
    documents_BT = torch.repeat_interleave(torch.tensor([5, 0, 3, 1]), torch.tensor(sizes)).expand(2, -1)
    packed_BTV = model(tokens_BT, documents_BT=documents_BT).logits_BTV
    valid_BT = torch.arange(sum(sizes)) < torch.tensor([[31], [11]])
    padded = model(tokens_BT, valid_BT=valid_BT)
    loss = 0.0
    for row, length in enumerate([31, 11]):
        tokens = tokens_BT[row].tolist()
        expected_TV, row_loss = reference(model, tokens[:length], training=training)
        assert_close(padded.logits_BTV[row, :length], expected_TV)
        loss = loss + row_loss
        start = 0
        for size in sizes:
            expected_TV, _ = reference(model, tokens[start : start + size], training=training)
            assert_close(packed_BTV[row, start : start + size], expected_TV)
            start += size
    if training:
        assert_close(padded.auxiliary["depth_predictor"], loss)


def test_decoding_keeps_only_the_selected_tokens() -> None:
    model = lively().eval()
    tokens_BT = torch.randint(19, (3, 23))
    state = model.start(3, 23)
    steps = [model.step(piece_BT, state) for piece_BT in tokens_BT.split([7, 1, 1, 5, 1, 8], dim=1)]
    expected = [reference(model, row, training=False)[0] for row in tokens_BT.tolist()]
    assert_close(torch.cat(steps, dim=1), torch.stack(expected).detach())
    counts_LB = torch.stack([state.layers[layer]["lengths"] for layer in (1, 3)])
    assert ((counts_LB > 0) & (counts_LB < 23)).all()


def test_training_selects_with_a_view_of_the_future_and_evaluation_does_not() -> None:
    model = lively()
    with pytest.raises(AssertionError, match="after later tokens changed"):
        check_no_leak(model.train(), 33)
    check_no_leak(model.eval(), 33)


def test_both_sides_select_by_weight_in_evaluation_too() -> None:
    model = enliven(build("encoder", torch.float64, mixture_of_depths=CAPACITY))
    tokens_BT = torch.randint(29, (2, 20))
    training, evaluation = (model.train(mode)(tokens_BT) for mode in (True, False))
    torch.testing.assert_close(training.logits_BTV, evaluation.logits_BTV)
    assert not training.auxiliary
    assert not any("predictor" in name for name, _ in model.named_parameters())


def test_the_predictor_learns_the_selection_without_changing_the_model() -> None:
    model = lively()
    router = model.blocks[1].router
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tokens_BT = torch.randint(19, (8, 40))
    losses = []
    before = {name: p.clone() for name, p in model.named_parameters()}
    for _ in range(60):
        loss = model(tokens_BT).auxiliary["depth_predictor"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if "predictor" in name}
    assert router.predictor is not None


def test_flops_are_those_of_the_selected_tokens() -> None:
    plain, routed = decoder(mixture_of_depths=None), decoder(mixture_of_depths=0.25)
    router = 2 * sum(p.numel() for name, p in routed.named_parameters() if "router" in name and p.dim() == 2)
    whole, part = (plain.blocks[0].flops(length) for length in (40, 10))
    expected = plain.sequence_flops(40).total + 2 * (part.total - whole.total) + 40 * router
    assert routed.sequence_flops(40).total == expected
    step, selected = (plain.blocks[0].step_flops(length).total for length in (40, 10))
    expected = plain.step_flops(40).total + 2 * (selected // 4 - step) + router
    assert abs(routed.step_flops(40).total - expected) <= 4
    assert routed.state_bytes(40) == plain.state_bytes(40) + 2 * 8


def test_a_seed_gives_the_same_weights_with_and_without_routers() -> None:
    torch.manual_seed(0)
    plain = decoder(mixture_of_depths=None).state_dict()
    torch.manual_seed(0)
    routed = decoder().state_dict()
    assert all(torch.equal(weight, routed[name]) for name, weight in plain.items())
    assert {name.split(".")[1] for name in routed.keys() - plain.keys()} == {"1", "3"}


def test_decoding_has_no_fixed_shapes() -> None:
    model = lively().eval()
    assert "how many tokens each block takes" in problem(model, model.start(1, 8))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("decoder", {"mixture_of_depths": 0.0}),
        ("decoder", {"mixture_of_depths": 1.0}),
        ("decoder", {"num_layers": 1}),
        ("moe", {}),
        ("encoder_decoder", {}),
        ("block_diffusion", {}),
        ("encoder", {"unpad": True}),
    ],
)
def test_what_it_does_not_go_with_is_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="mixture_of_depths"):
        build(name, **{"mixture_of_depths": 0.5, **settings})


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_biases_of_scores_by_distance_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=f"positions.kind={kind}"):
        build("decoder", mixture_of_depths=0.5, positions=PositionsConfig(kind=kind))


VALUES = AttentionConfig(num_heads=2, value_residual=True)
NO_VALUES = {"rwkv7": RWKV7Config(value_residual=False)}


@pytest.mark.parametrize("kind", ["attention", "rwkv7"])
def test_values_of_some_tokens_cannot_be_read_by_later_layers(kind: str) -> None:
    layers = ["gla", kind, "gla", kind]
    with pytest.raises(ValueError, match=f"layer 4 reads the {kind} values of layer 2") as raised:
        hybrid(layers, attention=VALUES)
    for advised in (hybrid([kind, "gla"] * 2, attention=VALUES), hybrid(layers, **NO_VALUES)):
        assert advised(torch.randint(29, (1, 8))).logits_BTV.isfinite().all()
    assert "value_residual=false" in str(raised.value)


@pytest.mark.parametrize(
    "layers",
    [["gla", "gla", "rwkv7"], ["gla", "gla", "attention"], ["gla", "rwkv7"], ["gla", "attention"],
     ["rwkv7", "gla", "rwkv7"]],
)  # fmt: skip
def test_blocks_that_are_computed_again_see_the_values_of_the_first_pass(layers: list[str]) -> None:
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        model = hybrid(layers, attention=VALUES).double().train()
        if again:
            for block in model.blocks:
                recompute(block)
        model(torch.randint(29, (2, 12))).logits_BTV.square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    assert len(found[0]) == len(found[1]) > 0
    assert all(map(torch.equal, *found))


def hybrid(layers: list[str], **settings: Any) -> Backbone:
    return build("hybrid", mixture_of_depths=0.5, layers=layers, num_layers=len(layers), **settings)
