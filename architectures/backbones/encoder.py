"""BERT-style encoder: bidirectional attention, learned positions, LayerNorm, GELU, a masked-LM head.

Devlin et al. 2019 (arXiv 1810.04805). By default the norms are before the
sublayers, which trains without a long warm-up; ``block.placement=post`` is BERT's
setting. RoPE, local layers and gated feed-forwards make it a ModernBERT (Warner et
al. 2024, arXiv 2412.13663).

Shapes: B batch, T length, N valid tokens of a batch, D d_model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Capabilities, ModelInputs, Output, linear_flops, no_source
from archbench.architectures.backbones.transformer import Transformer, TransformerConfig, finish_logits
from archbench.architectures.layers.activations import ACTIVATIONS
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.layer_pattern import format_pattern
from archbench.architectures.layers.positions import PositionsConfig


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """A BERT-style encoder."""

    attention: AttentionConfig = field(default_factory=lambda: AttentionConfig(bias=True, out_bias=True))
    """Heads and masks."""
    positions: PositionsConfig = field(default_factory=lambda: PositionsConfig(kind="learned"))
    """Position embeddings."""
    block: BlockConfig = field(default_factory=lambda: BlockConfig(norm="layernorm"))
    """Norms, residual branches, dropout."""
    feedforward: FeedForwardConfig = field(
        default_factory=lambda: FeedForwardConfig(activation="gelu", gated=False, bias=True)
    )
    """Activation and gate."""
    embedding: EmbeddingConfig = field(default_factory=lambda: EmbeddingConfig(norm=True))
    """Segments, norm and scale of the input."""
    transform_activation: str = "gelu"
    """Activation of the dense layer between the hidden states and the vocabulary."""
    transform_bias: bool = True
    """Bias of that dense layer."""
    unpad: bool = False
    """Concatenate the valid tokens of a padded batch, so that padding is not computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transform_activation not in ACTIVATIONS:
            raise ValueError(
                f"transform_activation={self.transform_activation!r} must be one of {', '.join(ACTIVATIONS)}"
            )
        if self.unpad and "experts" in self.feedforward_types:
            raise ValueError(
                f"unpad=true does not go with feedforwards={format_pattern(self.feedforwards)}: experts "
                "are balanced by sequence, and unpadded sequences lie end to end; use unpad=false"
            )
        if self.unpad and self.mixture_of_depths is not None:
            raise ValueError("mixture_of_depths selects tokens by sequence: use unpad=false")


class PredictionTransform(nn.Module):
    """Dense layer, activation and norm before the projection to the vocabulary."""

    def __init__(self, d_model: int, activation: str, bias: bool, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x_BTD)))


class Encoder(Transformer):
    """Bidirectional transformer encoder with a masked-language-model head."""

    Config = EncoderConfig
    capabilities = Capabilities(bidirectional=True, packs=True)
    config: EncoderConfig

    def make_final(self) -> nn.Module:
        final = super().make_final()
        c = self.config
        self.transform = PredictionTransform(
            c.width, c.transform_activation, c.transform_bias, self.make_norm()
        )
        return final

    def predict(self, hidden_BTD: Tensor) -> Tensor:
        return finish_logits(self.head, self.transform(hidden_BTD), self.config)

    def prediction_flops(self, length: int) -> int:
        return super().prediction_flops(length) + linear_flops(self.transform, length)

    def compute(self, inputs: ModelInputs) -> Output:
        if not self.config.unpad or inputs.valid_BT is None:
            return super().compute(inputs)
        no_source(inputs.source_BS, type(self).__name__)
        inputs.refuse(type(self).__name__, "time_B", "clean_BT")
        if inputs.documents_BT is not None:
            raise ValueError("unpad=true takes padded sequences of one document each, not packed ones")
        return self._unpadded(inputs.tokens_BT, inputs.valid_BT, inputs.segments_BT, inputs.scored_BT)

    def _unpadded(
        self, tokens_BT: Tensor, valid_BT: Tensor, segments_BT: Tensor | None, scored_BT: Tensor | None
    ) -> Output:
        """Run the blocks on one row of all valid tokens; return zeros at padding."""
        positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        context = Context(
            positions_BT=positions_BT[valid_BT][None],
            start=None,
            lengths=valid_BT.sum(1).tolist(),
            score_bias=self.score_bias,
        )
        segments_1N = None if segments_BT is None else segments_BT[valid_BT][None]
        scored_1N = None if scored_BT is None else scored_BT.to(valid_BT.device)[valid_BT][None]
        output = self.run(self.embed(tokens_BT[valid_BT][None], context, segments_1N), context, scored_1N)

        def padded(x_1ND: Tensor) -> Tensor:
            x_BTD = x_1ND.new_zeros(*valid_BT.shape, x_1ND.shape[-1])
            return x_BTD.masked_scatter(valid_BT[..., None], x_1ND)

        return Output(
            logits_BTV=padded(output.logits_BTV) if scored_BT is None else output.logits_BTV,
            hidden_BTD=padded(output.hidden_BTD),
            auxiliary=output.auxiliary,
        )
