"""The transformer stack: every variant of attention, positions and blocks, chosen by configuration only.

Decoder, encoder, mixture of experts and masked diffusion are this stack with
other defaults and other heads.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from archbench.architectures.backbones.stack import Stack, StackConfig
from archbench.architectures.fast_paths import path
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.attention.differential import DifferentialAttention
from archbench.architectures.layers.attention.forgetting import ForgettingAttention
from archbench.architectures.layers.attention.latent import LatentAttention
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.block import Block, BlockConfig, FeedForward, Mixer
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.embedding import Embedding, EmbeddingConfig
from archbench.architectures.layers.feedforward import DenseFeedForward, FeedForwardConfig
from archbench.architectures.layers.layer_pattern import (
    check_pattern,
    expand_pattern,
    format_pattern,
    unbuilt_types,
)
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.layers.normalization import make_norm
from archbench.architectures.layers.positions import (
    ALiBi,
    PositionsConfig,
    RelativePositionBias,
    relative_bias,
)


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The projection of the last hidden states to logits."""

    bias: bool = False
    """A bias for each token of the vocabulary."""
    softcap: float | None = None
    """Logits become c tanh(logits / c); null for none."""
    scale: bool = False
    """Hidden states are multiplied by d_model^-1/2 before the projection (T5 with a tied head)."""

    def __post_init__(self) -> None:
        if self.softcap is not None and self.softcap <= 0:
            raise ValueError(f"head.softcap={self.softcap} must be positive, or null")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(StackConfig):
    """Settings of a transformer."""

    d_ff: int | None = None
    """Hidden width of a dense feed-forward, and of an expert without ``experts.d_ff``; null for 4
    d_model, or 8/3 d_model where it is gated."""
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    """Heads, masks, caches."""
    positions: PositionsConfig = field(default_factory=PositionsConfig)
    """Position embeddings."""
    block: BlockConfig = field(default_factory=BlockConfig)
    """Norms, residual branches, dropout."""
    feedforward: FeedForwardConfig = field(default_factory=FeedForwardConfig)
    """Activation and gate."""
    feedforwards: list[str] = field(default_factory=lambda: ["dense"])
    """Pattern of the feed-forwards over the layers: ``dense``, ``experts`` (a mixture of experts), or
    ``none``. ``dense*3`` means three layers."""
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    """Mixture of experts of the layers ``experts``."""
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    """Scale, norm and segments of the token embeddings."""
    head: HeadConfig = field(default_factory=HeadConfig)
    """Bias, scale and soft cap of the logits."""
    vocab_size: int | None = None
    """Rows of the token table; null for the task's vocabulary, which must not be larger."""
    max_positions: int | None = None
    """Rows of the position table, where there is one; null for the task's length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d_ff", "vocab_size", "max_positions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be positive, or null")
        bias = self.positions.kind in ("alibi", "relative")
        if bias and (self.attention.latent.kv_rank is not None or self.attention.differential):
            name = "differential" if self.attention.differential else "latent"
            raise ValueError(
                f"positions.kind={self.positions.kind} does not go with attention.{name}: use rope"
            )
        check_pattern("feedforwards", self.feedforwards, [*FEEDFORWARDS])
        if self.loops is not None and "experts" in self.feedforward_types:
            raise ValueError(
                "loops does not go with experts: how many of them a token uses would depend on its routing"
            )
        if self.mixture_of_depths is not None:
            self._check_mixture_of_depths()

    def _check_mixture_of_depths(self) -> None:
        """Raise ValueError for settings that need all tokens of a sequence."""
        if "experts" in self.feedforward_types:
            raise ValueError("mixture_of_depths does not go with experts: use feedforwards=[dense]")
        if self.positions.kind in ("alibi", "relative") or self.positions.scaling.depends_on_length:
            raise ValueError(
                f"mixture_of_depths does not go with positions.kind={self.positions.kind} and "
                f"positions.scaling.kind={self.positions.scaling.kind}, which depend on all tokens: "
                "use positions.kind=rope with another scaling, such as none"
            )

    @property
    def feedforward_types(self) -> list[str]:
        """Return the type of the feed-forward of each layer."""
        return expand_pattern(self.feedforwards, self.num_layers)

    @property
    def deepest(self) -> int:
        """Return the number of layers of the deepest stack."""
        return self.num_layers

    @property
    def patterns(self) -> dict[str, list[str]]:
        """Return the patterns of layer types, by setting."""
        return {
            "feedforwards": self.feedforwards,
            "attention.layers": self.attention.layers,
            "positions.layers": self.positions.layers,
        }

    @property
    def warnings(self) -> list[str]:
        return super().warnings + [
            f"backbone.{key}={format_pattern(pattern)}: none of the {self.deepest} layers is "
            f"{' or '.join(sorted(unbuilt))}; a larger scale.depth or backbone.num_layers gives more layers"
            for key, pattern in self.patterns.items()
            if (unbuilt := unbuilt_types(pattern, self.deepest))
        ]

    @property
    def dense_width(self) -> int:
        """Hidden width of a dense feed-forward."""
        return self.d_ff or self.feedforward.standard_width(self.width)

    @property
    def expert_width(self) -> int:
        """Hidden width of one expert. By standard, k together are as wide as a dense layer."""
        standard = self.feedforward.standard_width(self.width) // self.experts.experts_per_token
        return self.experts.d_ff or self.d_ff or max(8, standard // 8 * 8)

    @property
    def width_multiple(self) -> int:
        if self.attention.head_dim is not None or self.attention.latent.kv_rank is not None:
            return 1
        pairs = 2 if self.positions.kind == "rope" else 1  # rotary embeddings turn pairs
        return pairs * self.attention.num_heads


class Transformer(Stack):
    """A stack of attention and feed-forward blocks."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, *, vocab_size: int, max_length: int) -> None:
        check_vocabulary(config, vocab_size)
        super().__init__(
            config, vocab_size=config.vocab_size or vocab_size, max_length=config.max_positions or max_length
        )
        self.score_bias = score_bias(config, bidirectional=not self.capabilities.causal)
        if isinstance(self.score_bias, RelativePositionBias):
            nn.init.normal_(self.score_bias.table.weight, 0.0, config.width**-0.5)

    def make_norm(self) -> nn.Module:
        return make_norm(self.config.block.norm, self.config.width, self.config.norm_eps)

    def make_embedding(self) -> nn.Module:
        c = self.config
        return Embedding(
            self.vocab_size,
            c.width,
            c.embedding,
            self.make_norm,
            positions=c.positions.kind,
            max_length=self.max_length,
            dropout=c.block.dropout,
        )

    def make_mixer(self, layer: int) -> Mixer:
        attention = make_attention(self.config, layer, causal=self.capabilities.causal)
        attention.place(layer, self.config.num_layers)
        return attention

    def make_feedforward(self, layer: int) -> FeedForward | None:
        return make_feedforward(
            self.config, self.config.feedforward_types[layer], causal=self.capabilities.causal
        )

    def make_block(self, layer: int) -> Block:
        c = self.config
        feedforward = self.make_feedforward(layer)
        skip = c.block.stochastic_depth * layer / max(c.num_layers - 1, 1)
        return self.block_class(layer)(
            self.make_mixer(layer), feedforward, self.make_norm, c.block, skip=skip, first=layer == 0
        )

    def make_final(self) -> nn.Module:
        return nn.Identity() if self.config.block.placement == "post" else self.make_norm()

    def make_head(self) -> nn.Linear:
        return nn.Linear(self.config.width, self.vocab_size, bias=self.config.head.bias)

    def residual_branches(self, count: int) -> int:
        return count if self.config.block.residual_scaling else 1

    def embed(self, tokens_BT: Tensor, context: Context, segments_BT: Tensor | None) -> Tensor:
        if context.documents_BT is not None and "experts" in self.config.feedforward_types:
            refuse_choosing_experts(self.config)
        return self.embedding(tokens_BT, context.positions_BT, segments_BT)

    def predict(self, hidden_BTD: Tensor) -> Tensor:
        return finish_logits(self.head, hidden_BTD, self.config)

    def reread_length(self) -> int | None:
        p = self.config.positions
        return p.scaling.original_length if p.kind == "rope" and p.scaling.kind == "longrope" else None

    def kernels(self) -> dict[str, str]:
        """Return the kernel of each type of attention layer, on the device of the parameters."""
        one = next(self.parameters())
        device = {"cuda": one.is_cuda, "native": path(one) == "cpp"}
        paths = super().kernels()
        for mixer in self.modules():
            if isinstance(mixer, Attention | LatentAttention):
                kind = "attention" if mixer.window is None else "local attention"
                paths[kind] = mixer.kernel(masked=mixer.window is not None, **device)
        return paths | shared_kernels(self)


def check_vocabulary(config: TransformerConfig, vocab_size: int) -> None:
    """Raise ValueError where the configured embedding is too small for a task."""
    if config.vocab_size is not None and config.vocab_size < vocab_size:
        raise ValueError(
            f"vocab_size={config.vocab_size} is smaller than the task's vocabulary of {vocab_size}"
        )


def make_attention(
    config: TransformerConfig, layer: int, *, causal: bool, attention: AttentionConfig | None = None
) -> Mixer:
    """Return the attention of a layer, with its window and positions; ``attention`` replaces the model's."""
    attention, positional = attention or config.attention, config.positions.at(layer)
    if attention.latent.kv_rank is not None:
        return LatentAttention(
            config.width,
            attention,
            causal=causal,
            positions=config.positions,
            positional=positional,
        )
    layer_class: Callable[..., Mixer] = Attention
    if attention.forget_gate:
        layer_class = ForgettingAttention
    elif attention.differential:
        layer_class = partial(DifferentialAttention, layer=layer)
    return layer_class(
        config.width,
        attention,
        causal=causal,
        window=attention.window_at(layer),
        positions=config.positions,
        positional=positional,
        norm=config.block.norm,
        norm_eps=config.norm_eps,
    )


def make_dense(config: TransformerConfig) -> FeedForward:
    """Return a dense feed-forward."""
    return DenseFeedForward(config.width, config.dense_width, config.feedforward)


def make_experts(config: TransformerConfig) -> FeedForward:
    """Return a feed-forward of experts."""
    return Experts(config.width, config.expert_width, config.experts, config.feedforward)


FEEDFORWARDS: dict[str, Callable[[TransformerConfig], FeedForward | None]] = {
    "dense": make_dense,
    "experts": make_experts,
    "none": lambda config: None,
}
"""The constructor of each type of feed-forward."""


def make_feedforward(config: TransformerConfig, kind: str, *, causal: bool) -> FeedForward | None:
    """Return a feed-forward of a type.

    Raises:
        ValueError: if the layer is ``causal`` but its experts would compare a token with later ones.
    """
    if kind == "experts" and causal and config.experts.choice == "expert":
        raise ValueError(
            "experts.choice=expert compares a token with later ones, and these layers are causal: use "
            "experts.choice=token, or a bidirectional backbone"
        )
    return FEEDFORWARDS[kind](config)


def refuse_choosing_experts(config: TransformerConfig) -> None:
    """Raise ValueError where packed documents would see each other through their experts."""
    if config.experts.choice == "expert":
        raise ValueError(
            "experts.choice=expert compares all tokens of a sequence, those of other documents too: use "
            "experts.choice=token, or objective.separate_documents=false"
        )


def shared_kernels(model: nn.Module) -> dict[str, str]:
    """Return the kernels of pointwise operations and of experts, if there are any."""
    paths = [part.kernel() for part in model.modules() if isinstance(part, Experts)]
    return {"pointwise": path(next(model.parameters()))} | ({"experts": paths[0]} if paths else {})


def score_bias(config: TransformerConfig, *, bidirectional: bool) -> nn.Module | None:
    """Return the module that ALiBi or T5's relative positions add to the scores; None for other positions.

    A layer may have another module instead.
    """
    p = config.positions
    if p.kind == "alibi":
        return ALiBi(config.attention.num_heads)
    if p.kind == "relative" and not p.by_layer:
        return relative_bias(p, config.attention.num_heads, bidirectional=bidirectional)
    return None


def finish_logits(head: nn.Module, hidden_BTD: Tensor, config: TransformerConfig) -> Tensor:
    """Return the logits of hidden states, with the scale and soft cap of the head."""
    if config.head.scale:
        hidden_BTD = hidden_BTD * config.width**-0.5
    logits_BTV = head(hidden_BTD)
    cap = config.head.softcap
    return logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)
