"""Tasks and models so small that the right answers are known.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, BackboneConfig, Flops, ModelInputs, Output
from archbench.architectures.backbones.bidirectional_ssm import (
    BidirectionalHybrid,
    BidirectionalHybridConfig,
    BidirectionalMamba,
    BidirectionalMambaConfig,
)
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.task import Batch, Task

CAUSAL = {
    "decoder": (Decoder, DecoderConfig(d_model=16, attention=AttentionConfig(num_kv_heads=2))),
    "moe": (
        MoE,
        MoEConfig(
            d_model=16, attention=AttentionConfig(num_heads=2), experts=ExpertsConfig(balance_coefficient=1.0)
        ),
    ),
    "mamba": (Mamba, MambaConfig(d_model=8, d_state=4)),
    "s4": (S4, S4Config(d_model=8, d_state=8)),
}
OTHERS = {
    "encoder": (Encoder, EncoderConfig(d_model=16)),
    "masked_diffusion": (MaskedDiffusion, MaskedDiffusionConfig(d_model=16)),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig(d_model=16)),
}
RECURRENT_BOTH_WAYS = {
    "mamba_bidirectional": (BidirectionalMamba, BidirectionalMambaConfig(d_model=8, d_state=4)),
    "hybrid_bidirectional": (
        BidirectionalHybrid,
        BidirectionalHybridConfig(d_model=16, layers=["mamba", "attention"]),
    ),
}


class Symbols(Task):
    """A task that has symbols, sentinels and labels, but no examples of its own."""

    sequence_length = 16
    metric = "bits_per_byte"
    has_labels = True
    fingerprint = "symbols"

    def __init__(self, num_symbols: int = 10, num_sentinels: int = 0, labels: Sequence[int] = ()) -> None:
        self.vocabulary = Vocabulary(num_symbols=num_symbols, num_sentinels=num_sentinels)
        self.labels = labels

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        raise AssertionError("not asked for")

    def num_examples(self, split: str) -> int | None:
        return None


class Rule(Backbone):
    """A model that is a rule: logits (B, T, V) as a function of the tokens it is shown."""

    Config = BackboneConfig

    def __init__(self, vocab_size: int, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__(BackboneConfig(), vocab_size=vocab_size, max_length=1024)
        self.rule = rule
        self.unused = nn.Parameter(torch.zeros(()))
        self.shown: list[Tensor] = []

    def compute(self, inputs: ModelInputs) -> Output:
        self.shown.append(inputs.tokens_BT)
        logits_BTV = self.rule(inputs.tokens_BT)
        return Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV)

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        return Flops()


def uniform_model(vocabulary: Vocabulary) -> Rule:
    """Every token equally likely."""
    return Rule(vocabulary.size, lambda tokens_BT: torch.zeros(*tokens_BT.shape, vocabulary.size))


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    """One generator for each sequence."""
    return [torch.Generator().manual_seed(1000 * seed + row) for row in range(count)]


def whole(tokens_BT: Tensor, valid_BT: Tensor | None = None) -> Batch:
    """Text of one byte a token."""
    everywhere_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    valid_BT = everywhere_BT if valid_BT is None else valid_BT
    return Batch(
        tokens_BT=tokens_BT,
        context_BT=tokens_BT,
        answer_BT=everywhere_BT,
        valid_BT=valid_BT,
        bytes_BT=valid_BT.long(),
        whole=True,
    )


def random_text(rows: int, length: int, num_symbols: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return whole(torch.randint(num_symbols, (rows, length), generator=generator))


def padded_text(lengths: Sequence[int], vocabulary: Vocabulary, seed: int = 0) -> Batch:
    """Texts of different lengths, padded on the right."""
    tokens_BT = random_text(len(lengths), max(lengths), vocabulary.num_symbols, seed).tokens_BT
    valid_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return whole(tokens_BT.masked_fill(~valid_BT, vocabulary.pad), valid_BT)


def build(name: str, vocab_size: int, max_length: int = 64) -> Backbone:
    """A tiny backbone in float64, with weights large enough that its predictions are far from uniform."""
    cls, config = (CAUSAL | OTHERS | RECURRENT_BOTH_WAYS)[name]
    torch.manual_seed(0)
    model = cls(config, vocab_size=vocab_size, max_length=max_length).double()
    with torch.no_grad():
        model.head.weight.mul_(20)
    return model


class Joint:
    """An explicit distribution over sequences of four of three symbols, and the model that knows it."""

    LENGTH, SYMBOLS = 4, 3

    def __init__(self, seed: int = 0) -> None:
        self.task = Symbols(self.SYMBOLS)
        generator = torch.Generator().manual_seed(seed)
        weights = -torch.rand(*[self.SYMBOLS] * self.LENGTH, generator=generator, dtype=torch.float64).log()
        self.probability = weights / weights.sum()
        self.sequences_NT = torch.cartesian_prod(*[torch.arange(self.SYMBOLS)] * self.LENGTH)
        self.nats_N = -self.probability.flatten().log()

    def conditionals(self, tokens_BT: Tensor) -> Tensor:
        """p(x_i | the tokens shown), (B, T, V) float64, for each masked position i."""
        open_BT1 = (tokens_BT == self.task.vocabulary.mask)[..., None]
        shown_BTV = torch.nn.functional.one_hot(tokens_BT.clamp_max(self.SYMBOLS - 1), self.SYMBOLS)
        fits_BTV = torch.where(open_BT1, 1, shown_BTV).double()
        rest_BWXYZ = torch.einsum("wxyz,bw,bx,by,bz->bwxyz", self.probability, *fits_BTV.unbind(1))
        axes = range(1, self.LENGTH + 1)
        marginals = [rest_BWXYZ.sum([a for a in axes if a != axis]) for axis in axes]
        p_BTV = torch.stack(marginals, dim=1)
        return p_BTV / p_BTV.sum(-1, keepdim=True)

    def sharpened(self, tokens_BT: Tensor) -> Tensor:
        """Logits that belong to no joint distribution: the true conditionals, sharper the more is shown."""
        sharpness_B11 = 1 + (tokens_BT != self.task.vocabulary.mask).sum(1)[:, None, None]
        logits_BTV = self.model(mask_logit=5.0).rule(tokens_BT)
        logits_BTV[..., : self.SYMBOLS] *= sharpness_B11
        return logits_BTV

    def model(self, mask_logit: float = -1e4) -> Rule:
        """True conditionals for the symbols; special tokens impossible, unless the mask is a trap."""
        vocabulary = self.task.vocabulary

        def rule(tokens_BT: Tensor) -> Tensor:
            p_BTV = self.conditionals(tokens_BT)
            special = torch.full((*tokens_BT.shape, vocabulary.size - self.SYMBOLS), -1e4, dtype=p_BTV.dtype)
            special[..., vocabulary.mask - self.SYMBOLS] = mask_logit
            return torch.cat([p_BTV.log().clamp_min(-1e4), special], dim=-1)

        return Rule(vocabulary.size, rule)


def assert_unbiased(estimates_N: Tensor, exact: float | Tensor) -> None:
    """The mean of independent estimates is within four of its standard errors of the truth."""
    error_N = estimates_N - exact
    assert error_N.std() > 0
    assert error_N.mean().abs() < 4 * error_N.std() / math.sqrt(len(error_N))
