"""Block diffusion language model: blocks one after another, the tokens of each filled in together.

Arriola et al. 2025 (BD3LM, arXiv 2503.09573). A token attends to its full block and to previous blocks. In
training there are two copies of the sequence: each noisy block attends to itself and to clean copies of
previous blocks, so that all blocks are trained in one pass (section 3.1). With blocks of one token it is
causal, with one block for everything it is ``MaskedDiffusion``; the weights are the same.

Shapes: B batch, T length, S keys, D d_model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.backbone import (
    Capabilities,
    Flops,
    ModelInputs,
    Output,
    gather_scored,
    no_source,
)
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.layer_pattern import format_pattern


@dataclass(frozen=True, kw_only=True)
class BlockDiffusionConfig(MaskedDiffusionConfig):
    """A mask predictor by blocks."""

    block_length: int = 4
    """Tokens of a block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_length < 1:
            raise ValueError(f"block_length={self.block_length} must be at least 1")
        if self.canon is not None:
            raise ValueError(
                f"canon={self.canon}: block diffusion has no canon layers, as a convolution would cross the "
                "boundaries of its blocks; set it to null"
            )
        if self.mixture_of_depths is not None:
            raise ValueError(
                "mixture_of_depths compares the tokens of a sequence, and block diffusion generates them in "
                "blocks: leave it null"
            )
        if self.shifted or self.time_embedding:
            raise ValueError("block diffusion takes shifted=false and time_embedding=false")
        if self.positions.scaling.depends_on_length:
            raise ValueError(
                f"positions.scaling.kind={self.positions.scaling.kind}: block diffusion keeps the keys of "
                "its blocks, which would change with the length; set it to another kind, such as ntk"
            )
        if self.attention.has_local_layers:
            raise ValueError(
                f"attention.layers={format_pattern(self.attention.layers)}: block diffusion has no "
                "windows, set it to [global]"
            )


class BlockDiffusion(MaskedDiffusion):
    """Transformer that attends to previous blocks and to the full current block."""

    Config = BlockDiffusionConfig
    capabilities = Capabilities(blockwise=True)
    config: BlockDiffusionConfig

    def compute(self, inputs: ModelInputs) -> Output:
        tokens_BT, valid_BT, clean_BT = inputs.tokens_BT, inputs.valid_BT, inputs.clean_BT
        no_source(inputs.source_BS, type(self).__name__)
        if inputs.documents_BT is not None:
            raise ValueError("block diffusion cannot keep packed documents apart")
        T = tokens_BT.shape[1]
        index_T = torch.arange(T, device=tokens_BT.device)
        block_T = index_T // self.config.block_length
        if clean_BT is None:
            read_BT, positions_1T, visible = tokens_BT, index_T[None], block_T[None, :] <= block_T[:, None]
        else:
            read_BT, positions_1T = torch.cat([tokens_BT, clean_BT], dim=1), index_T.repeat(2)[None]
            visible = two_copies(block_T)
            valid_BT = None if valid_BT is None else valid_BT.repeat(1, 2)
        context = Context(
            positions_BT=positions_1T,
            valid_BT=valid_BT,
            visible=visible[None, None],
            score_bias=self.score_bias,
        )
        x_BTD, auxiliary = self.run_blocks(self.embed(read_BT, context, inputs.segments_BT), context)
        hidden_BTD = self.final(x_BTD[:, :T])
        logits_BTV = self.predict(gather_scored(hidden_BTD, inputs.scored_BT))
        return Output(logits_BTV=logits_BTV, hidden_BTD=hidden_BTD, auxiliary=auxiliary)

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        """Return the FLOPs of one copy; a noisy sequence with its clean copy costs twice as much, but for
        the head."""
        total, pairs = super().sequence_flops(length), self.pairs(length)
        return Flops(linear=total.linear, attention=total.attention * pairs // length**2, mixer=total.mixer)

    def pairs(self, length: int) -> int:
        """(query, key) pairs of one sequence that the mask allows."""
        num_blocks, rest = divmod(length, self.config.block_length)
        return self.config.block_length**2 * num_blocks * (num_blocks + 1) // 2 + rest * length

    def start(
        self,
        batch_size: int,
        max_length: int,
        *,
        source_BS: Tensor | None = None,
        source_valid_BS: Tensor | None = None,
    ) -> DecodingState:
        """Return an empty state, with space for ``max_length`` tokens, in full blocks."""
        no_source(source_BS, type(self).__name__)
        layers: list[Any] = [block.start(batch_size, max_length) for block in self._passes()]
        return DecodingState(lengths=[0] * batch_size, layers=layers)

    def denoise(self, tokens_BT: Tensor, state: DecodingState) -> Tensor:
        """Return the logits (B, T, V) of the next, still noisy block of each row.

        What the block leaves in the caches is overwritten by the next step. Clean blocks are read
        by ``step``, which only accepts full blocks.
        """
        lengths = state.lengths
        logits_BTV = self.step(tokens_BT, state)
        state.lengths = lengths
        return logits_BTV

    @property
    def block_length(self) -> int:
        return self.config.block_length

    def next_context(self, tokens_BT: Tensor, lengths: list[int], valid_BT: Tensor | None) -> Context:
        context = super().next_context(tokens_BT, lengths, valid_BT)
        size = self.config.block_length
        context.reach_BT = (context.positions_BT // size + 1) * size - 1
        return context

    def state_bytes(self, length: int, source_length: int = 0) -> int:
        return sum(block.state_bytes(length, self.bytes_per_element) for block in self._passes())


def two_copies(block_T: Tensor) -> Tensor:
    """True (2T, 2T) where a token of the noisy copy, which comes first, or of the clean one may attend.

    Noisy tokens attend to noisy tokens of their block and clean tokens of previous blocks, clean tokens to
    clean tokens of blocks up to theirs (BD3LM, section 3.1 and figure 3).
    """
    query_T1, key_1T = block_T[:, None], block_T[None, :]
    noisy = torch.cat([query_T1 == key_1T, key_1T < query_T1], dim=1)
    clean = torch.cat([torch.zeros_like(query_T1 == key_1T), key_1T <= query_T1], dim=1)
    return torch.cat([noisy, clean])
