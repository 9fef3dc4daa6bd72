"""From tokens to vectors: tables of tokens, positions and segments, norm, scale, dropout.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import EMBEDDING_STD, Backbone, init_normal
from archbench.architectures.layers.normalization import MakeNorm
from archbench.architectures.layers.positions import sinusoids


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """The input of a transformer, in addition to its token embedding."""

    norm: bool = False
    """Normalise the sum of the embeddings (BERT, BLOOM)."""
    scale: bool = False
    """Multiply token embeddings by sqrt(d_model) (Gemma, Vaswani et al. 2017)."""
    num_segments: int = 0
    """Rows of the segment table (BERT has 2); 0 for none."""

    def __post_init__(self) -> None:
        if self.num_segments < 0:
            raise ValueError(f"embedding.num_segments={self.num_segments} must not be negative")


class TooManyTokensError(ValueError):
    """A sequence is longer than the table of positions."""


class Embedding(nn.Module):
    """Sum of token, position and segment embeddings."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        config: EmbeddingConfig,
        make_norm: MakeNorm,
        *,
        positions: str,
        max_length: int,
        dropout: float,
        tokens: nn.Embedding | None = None,
    ) -> None:
        """``tokens`` is a token table to share; None makes a new one."""
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model) if tokens is None else tokens
        self.segments = nn.Embedding(config.num_segments, d_model) if config.num_segments else None
        self.norm = make_norm() if config.norm else None
        self.scale = d_model**0.5 if config.scale else None
        self.dropout = nn.Dropout(dropout)
        if positions in ("learned", "sinusoidal"):
            table = torch.empty(max_length, d_model, device=self.tokens.weight.device)
            if not table.is_meta:  # which has no values, and may be of any size
                table.copy_(2**0.5 * EMBEDDING_STD * sinusoids(max_length, d_model))
        if positions == "learned":
            # They begin as sinusoids: in these a shift is a linear map, so that a small model finds
            # "the token before" soon, not late.
            self.positions = nn.Parameter(table)
        elif positions == "sinusoidal":
            self.register_buffer("positions", table, persistent=False)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, segments_BT: Tensor | None = None) -> Tensor:
        x_BTD = self.tokens(tokens_BT)
        if self.scale is not None:
            x_BTD = x_BTD * torch.full((), self.scale, dtype=x_BTD.dtype, device=x_BTD.device)
        if hasattr(self, "positions"):
            self._check_length(positions_BT)
            x_BTD = x_BTD + self.positions[positions_BT]
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(tokens_BT) if segments_BT is None else segments_BT)
        elif segments_BT is not None:
            raise ValueError("segments given, but there is no table of them: set embedding.num_segments=2")
        return self.dropout(x_BTD if self.norm is None else self.norm(x_BTD))

    def _check_length(self, positions_BT: Tensor) -> None:
        # Positions are 0 .. T - 1 or those after what was decoded; the last is the largest.
        longest = int(positions_BT.max()) + 1 if positions_BT.device.type == "cpu" else positions_BT.shape[1]
        if longest > self.positions.shape[0]:
            raise TooManyTokensError(f"{longest} tokens given, positions exist for {self.positions.shape[0]}")


class ValueEmbedding(nn.Module):
    """A token embedding that embeds its first tokens as evenly spaced values from -1 to 1, by a linear layer.

    Long Range Arena reads pixels in this way: brightness 0 to 255 as a value.
    """

    def __init__(self, table: nn.Embedding, levels: int) -> None:
        super().__init__()
        self.table, self.levels = table, levels
        self.line = nn.Linear(1, table.embedding_dim, device=table.weight.device, dtype=table.weight.dtype)
        init_normal(self.line)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        value_BT = (2 * tokens_BT.clamp_max(self.levels - 1) / (self.levels - 1) - 1).to(
            self.line.weight.dtype
        )
        is_value_BT1 = (tokens_BT < self.levels)[..., None]
        return torch.where(is_value_BT1, self.line(value_BT[..., None]), self.table(tokens_BT))


def read_values(model: Backbone, levels: int) -> None:
    """Let a new model read its first ``levels`` tokens as values: see ``ValueEmbedding``."""
    if isinstance(model.embedding, nn.Embedding):
        model.embedding = ValueEmbedding(model.embedding, levels)
    else:
        model.embedding.tokens = ValueEmbedding(model.embedding.tokens, levels)  # type: ignore
