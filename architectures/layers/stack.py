"""A backbone that is one stack of blocks: embedding, N blocks, final norm, head.

Decoder, mixture of experts, S4, Mamba and the masked diffusion model are such
stacks; each says which mixer and which feed-forward its layers have.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from architectures.backbone import (
    Backbone,
    BackboneConfig,
    DecodingState,
    Flops,
    Output,
    init_normal,
    linear_flops,
    no_source,
)
from architectures.layers.block import Block, FeedForward, Mixer


@dataclass(frozen=True, kw_only=True)
class StackConfig(BackboneConfig):
    """What every stack of blocks has."""

    num_layers: int = 2
    """Number of blocks."""
    norm_eps: float = 1e-5
    """Added to the mean square before the root, in every norm."""
    tied: bool = False
    """Share the embedding table with the projection to the vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers < 1:
            raise ValueError(f"num_layers={self.num_layers} must be at least 1")


class Stack(Backbone):
    """Embedding, blocks, final norm, head."""

    config: StackConfig

    def __init__(self, config: StackConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        self.embedding = self.make_embedding()
        self.blocks = nn.ModuleList(self._make_block() for _ in range(config.num_layers))
        self.final = self.make_final()
        self.head = nn.Linear(config.width, vocab_size, bias=False)
        if config.tied:
            self.head.weight = self._token_table().weight
        init_normal(self)
        for part in self.modules():
            if isinstance(part, Mixer | FeedForward):
                part.initialise(config.num_layers)

    @abstractmethod
    def make_mixer(self) -> Mixer:
        """A new mixer for one layer."""

    @abstractmethod
    def make_feedforward(self) -> FeedForward | None:
        """A new feed-forward for one layer; None where the mixer is the whole block."""

    def make_norm(self) -> nn.Module:
        """A new norm, of the kind this family uses."""
        return nn.RMSNorm(self.config.width, eps=self.config.norm_eps)

    def make_embedding(self) -> nn.Module:
        """The module that turns tokens (B, T) into vectors (B, T, D)."""
        return nn.Embedding(self.vocab_size, self.config.width)

    def make_final(self) -> nn.Module:
        """What stands between the last block and the projection to the vocabulary."""
        return self.make_norm()

    def _token_table(self) -> nn.Embedding:
        """The embedding of vocabulary size among the tables of ``embedding``."""
        tables = [m for m in self.embedding.modules() if isinstance(m, nn.Embedding)]
        return next(table for table in tables if table.num_embeddings == self.vocab_size)

    def _make_block(self) -> Block:
        feedforward = self.make_feedforward()
        norm = None if feedforward is None else self.make_norm()
        return Block(self.make_mixer(), feedforward, self.make_norm(), norm)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        valid_BT: Tensor | None = None,
        source_BS: Tensor | None = None,
        source_valid_BS: Tensor | None = None,
    ) -> Output:
        no_source(source_BS, type(self).__name__)
        x_BTD = self.embedding(tokens_BT)
        auxiliary: dict[str, Tensor] = {}
        for block in self.blocks:
            x_BTD, extra = block(x_BTD, valid_BT)
            for name, value in extra.items():
                auxiliary[name] = auxiliary[name] + value if name in auxiliary else value
        x_BTD = self.final(x_BTD)
        return Output(logits_BTV=self.head(x_BTD), hidden_BTD=x_BTD, auxiliary=auxiliary)

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        total = Flops(linear=linear_flops(self.final, length) + linear_flops(self.head, length))
        for block in self._blocks():
            total = total + block.flops(length)
        return total

    def start(
        self,
        batch_size: int,
        max_length: int,
        *,
        source_BS: Tensor | None = None,
        source_valid_BS: Tensor | None = None,
    ) -> DecodingState:
        no_source(source_BS, type(self).__name__)
        if not self.capabilities.decodes:
            return super().start(batch_size, max_length)
        return DecodingState(
            length=0, layers=[block.mixer.start(batch_size, max_length) for block in self._blocks()]
        )

    @torch.no_grad()
    def step(self, tokens_BT: Tensor, state: DecodingState) -> Tensor:
        x_BTD = self.embedding(tokens_BT)
        for block, layer_state in zip(self._blocks(), state.layers, strict=True):
            x_BTD = block.step(x_BTD, layer_state, state.length)
        state.length += tokens_BT.shape[1]
        return self.head(self.final(x_BTD))

    def state_bytes(self, length: int, source_length: int = 0) -> int:
        if not self.capabilities.decodes:
            return 0
        return sum(b.mixer.state_bytes(length, self.bytes_per_element) for b in self._blocks())
