"""The checks themselves: a model with a planted fault fails the one that is about it."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Capabilities, Flops, Parameters
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.stack import Stack, StackConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.block import FeedForward, Mixer
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.feedforward import DenseFeedForward
from archbench.architectures.layers.moe.config import ExpertsConfig
from tests.architectures.conformance import (
    check_batch_invariance,
    check_decoding,
    check_gradients,
    check_initialisation,
    check_no_leak,
    check_padding,
    check_sees_everything,
    enliven,
)
from tests.architectures.costs import check_flops, check_inactive, check_parameters, check_state_bytes

HEADS = AttentionConfig(num_heads=2, num_kv_heads=1)


class RunningMean(Mixer):
    """The mean of what came before, times a matrix: right, until a subclass breaks it."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        counts_T = torch.arange(1, x_BTD.shape[1] + 1)
        return self.out(x_BTD.cumsum(1) / counts_T[:, None])

    def start(self, batch_size: int, max_length: int) -> dict[str, Any]:
        return {"sum": self.out.weight.new_zeros(batch_size, 1, self.out.in_features)}

    def step(self, x_BTD: Tensor, state: dict[str, Any], context: Context) -> Tensor:
        sums_BTD = state["sum"] + x_BTD.cumsum(1)
        state["sum"] = sums_BTD[:, -1:]
        return self.out(sums_BTD / (context.positions_BT[..., None] + 1))

    def flops(self, length: int) -> Flops:
        return Flops(linear=2 * length * self.out.weight.numel())

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return self.out.in_features * bytes_per_element


class Toy(Stack):
    Config = StackConfig
    capabilities = Capabilities(causal=True, decodes=True)
    mixer: type[RunningMean] = RunningMean

    def make_mixer(self, layer: int) -> Mixer:
        return self.mixer(self.config.width)

    def make_feedforward(self, layer: int) -> FeedForward:
        return DenseFeedForward(self.config.width, 16)


def toy(mixer: type[RunningMean], **overrides: Any) -> Stack:
    """A toy with another mixer, and attributes or methods of the class replaced."""
    cls = type("Toy", (Toy,), {"mixer": mixer, **overrides})
    torch.manual_seed(0)
    return enliven(cls(StackConfig(d_model=8), vocab_size=11, max_length=64).double())  # type: ignore[return-value]


class Leaky(RunningMean):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.out(x_BTD.mean(1, keepdim=True).expand_as(x_BTD))


class FaintlyLeaky(RunningMean):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return super().forward(x_BTD, context) + 1e-12 * x_BTD.roll(-1, dims=1)


class PicksByTheFuture(RunningMean):
    """Like expert choice: what a position gets is decided by comparing it with all others."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        size_BT = x_BTD.norm(dim=-1)
        chosen_BT = size_BT >= size_BT.median(dim=1, keepdim=True).values
        return super().forward(x_BTD, context) * chosen_BT[..., None]


class MixesTheBatch(RunningMean):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return super().forward(x_BTD - x_BTD.mean(0), context)


class ForgetsThePosition(RunningMean):
    def step(self, x_BTD: Tensor, state: dict[str, Any], context: Context) -> Tensor:
        return super().step(x_BTD, state, Context.whole(x_BTD[..., 0], None, None))


class WrongInPieces(RunningMean):
    """Right token by token; a longer piece leaves only its first token in the state."""

    def step(self, x_BTD: Tensor, state: dict[str, Any], context: Context) -> Tensor:
        before = state["sum"]
        y_BTD = super().step(x_BTD, state, context)
        state["sum"] = before + x_BTD[:, :1]
        return y_BTD


class Dead(RunningMean):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.unused = nn.Linear(d_model, d_model)


class NotANumber(RunningMean):
    """The square root of zero has no gradient."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        y_BTD = super().forward(x_BTD, context)
        return y_BTD + (0 * y_BTD).sqrt()


def test_the_toy_itself_passes() -> None:
    model = toy(RunningMean)
    check_no_leak(model, 13)
    check_padding(model, 13)
    check_batch_invariance(model, 13)
    check_decoding(model, 13)
    check_gradients(model, 13, autocast=False)
    check_parameters(model, tied=False)
    check_inactive(model)
    check_flops(model, 13)
    check_state_bytes(model, 13)
    with pytest.raises(AssertionError, match=r"logits at 0 do not see .*\[0, 1\]"):
        check_sees_everything(model, 13)


@pytest.mark.parametrize(
    ("mixer", "message"),
    [
        (Leaky, "see the future"),
        (FaintlyLeaky, "see the future"),
        (PicksByTheFuture, "after later tokens changed"),
    ],
)
def test_a_leak_is_found(mixer: type[RunningMean], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_no_leak(toy(mixer), 13)


def test_logits_shifted_by_one_are_found() -> None:
    def forward(self: Stack, tokens_BT: Tensor, **others: Any) -> Any:
        output = Stack.forward(self, tokens_BT, **others)
        late_BTV = output.logits_BTV.roll(1, dims=1).index_fill(1, torch.tensor([0]), 0.0)
        return dataclasses.replace(output, logits_BTV=late_BTV + 0 * output.logits_BTV)

    with pytest.raises(AssertionError, match="do not depend on the token at"):
        check_no_leak(toy(RunningMean, forward=forward), 13)


def test_ignored_padding_is_found() -> None:
    with pytest.raises(AssertionError, match="padded"):
        check_padding(toy(Leaky), 13)


def test_a_loss_that_counts_padding_is_found() -> None:
    def forward(self: Stack, tokens_BT: Tensor, **others: Any) -> Any:
        output = Stack.forward(self, tokens_BT, **others)
        return dataclasses.replace(output, auxiliary={"size": output.hidden_BTD.square().sum()})

    with pytest.raises(AssertionError, match="auxiliary losses"):
        check_padding(toy(RunningMean, forward=forward), 13)


def test_a_mixed_batch_is_found() -> None:
    with pytest.raises(AssertionError, match="in a batch"):
        check_batch_invariance(toy(MixesTheBatch), 13)


@pytest.mark.parametrize(
    ("mixer", "message"), [(ForgetsThePosition, "token by token"), (WrongInPieces, "in pieces")]
)
def test_a_wrong_cache_is_found(mixer: type[RunningMean], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_decoding(toy(mixer), 13)


@pytest.mark.parametrize(
    ("mixer", "message"), [(Dead, "unused.* has no gradient"), (NotANumber, "not finite")]
)
def test_a_parameter_that_cannot_learn_is_found(mixer: type[RunningMean], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_gradients(toy(mixer), 13, autocast=False)


def test_a_wrong_initialisation_is_found() -> None:
    def loud() -> Stack:
        model = Toy(StackConfig(d_model=64), vocab_size=11, max_length=64)
        with torch.no_grad():
            model.head.weight.mul_(50)
        return model

    def unseeded() -> Stack:
        model = Toy(StackConfig(d_model=8), vocab_size=11, max_length=64)
        fresh = torch.Generator()
        fresh.seed()
        with torch.no_grad():
            model.head.weight.normal_(generator=fresh)
        return model

    with pytest.raises(AssertionError, match="untrained loss"):
        check_initialisation(loud)
    with pytest.raises(AssertionError, match=r"same seed .*head\.weight"):
        check_initialisation(unseeded)
    with pytest.raises(AssertionError, match="seed changes nothing"):
        check_initialisation(lambda: toy(RunningMean).float())


def test_a_model_that_sees_half_is_not_bidirectional() -> None:
    class HalfSeeing(MaskedDiffusion):
        def make_mixer(self, layer: int) -> Mixer:
            return Attention(8, HEADS, causal=True)

    config = MaskedDiffusion.Config(d_model=8, attention=HEADS)
    with pytest.raises(AssertionError, match="do not see"):
        check_sees_everything(HalfSeeing(config, vocab_size=11, max_length=64), 13)


def test_wrong_costs_are_found() -> None:
    decoder = DecoderConfig(d_model=8, attention=HEADS)

    class Dense(Decoder):
        """Counts the pairs that the mask hides."""

        def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
            right = super().sequence_flops(length)
            return dataclasses.replace(right, attention=right.attention * 2 * length // (length + 1))

    class Headless(Decoder):
        def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
            return super().sequence_flops(length) + Flops(linear=-2 * length * self.head.weight.numel())

    class CachesEveryHead(Decoder):
        def state_bytes(self, length: int, source_length: int = 0) -> int:
            return 2 * super().state_bytes(length)

    class AllActive(MoE):
        def inactive_parameters(self) -> int:
            return 0

    class HeadIsBody(Decoder):
        def parameters_by_part(self) -> Parameters:
            right = super().parameters_by_part()
            return Parameters(embedding=right.embedding, body=right.body + right.head, head=0)

    with pytest.raises(AssertionError, match="attention FLOPs"):
        check_flops(Dense(decoder, vocab_size=11, max_length=16), 9)
    with pytest.raises(AssertionError, match="linear FLOPs"):
        check_flops(Headless(decoder, vocab_size=11, max_length=16), 9)
    with pytest.raises(AssertionError, match="state of"):
        check_state_bytes(CachesEveryHead(decoder, vocab_size=11, max_length=16), 9)
    with pytest.raises(AssertionError, match="parameters"):
        check_parameters(HeadIsBody(decoder, vocab_size=11, max_length=16), tied=False)
    with pytest.raises(AssertionError, match="tied"):
        check_parameters(Decoder(decoder, vocab_size=11, max_length=16), tied=True)
    experts = MoEConfig(d_model=8, attention=HEADS, experts=ExpertsConfig(num_experts=3))
    with pytest.raises(AssertionError, match="inactive parameters 0"):
        check_inactive(enliven(AllActive(experts, vocab_size=40, max_length=16).double()))
