"""A backbone that is one stack of blocks: embedding, N blocks, final norm, head.

Every family but the encoder-decoder is such a stack; each chooses the mixer and
the feed-forward of its layers.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from archbench.architectures.backbone import (
    Backbone,
    BackboneConfig,
    Capabilities,
    Flops,
    ModelInputs,
    Output,
    gather_scored,
    init_normal,
    linear_flops,
    no_source,
)
from archbench.architectures.backbones.canon_positions import add_canon
from archbench.architectures.decoding_state import DecodingState, History
from archbench.architectures.layers.block import (
    Block,
    FeedForward,
    Mixer,
    add_losses,
    feedforwards,
    join_layers,
)
from archbench.architectures.layers.canon import check_letters
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.decode_steps import (
    CompiledDecodingState,
    compile_decode_steps,
    decoding_path,
    select_decode_steps,
)
from archbench.architectures.layers.mixture_of_depths import RoutedBlock, check_carried
from archbench.architectures.layers.normalization import RMSNorm


@dataclass(frozen=True, kw_only=True)
class StackConfig(BackboneConfig):
    """Settings of every stack of blocks."""

    num_layers: int = 2
    """Number of blocks."""
    loops: int | None = None
    """The blocks are applied this many times in turn, with the same weights (Dehghani et al. 2019, arXiv
    1807.03819; without their step embeddings). Null for once."""
    norm_eps: float = 1e-5
    """Added to the mean square before the root, in every norm."""
    tie_embeddings: bool = False
    """Share the embedding table with the projection to the vocabulary."""
    mixture_of_depths: float | None = None
    """Every other block, from the second on, processes only this fraction of the tokens of a sequence, chosen
    by a learned router (Raposo et al. 2024, arXiv 2404.02258), such as 0.125. Null for all tokens."""
    canon: str | None = None
    """Positions of canon layers, which add a convolution over 4 tokens to their input (Allen-Zhu 2025): ``A``
    before the mixer, ``B`` on its projected inputs (queries, keys and values), ``C`` before the feed-forward,
    ``D`` in the hidden layer of a dense feed-forward; such as ``ABCD``. Null for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_letters(self.canon)
        if self.num_layers < 1:
            raise ValueError(f"num_layers={self.num_layers} must be at least 1")
        if self.loops is not None and self.loops < 2:
            raise ValueError(f"loops={self.loops} must be at least 2, or null for once")
        if self.mixture_of_depths is not None:
            if not 0 < self.mixture_of_depths < 1:
                raise ValueError(
                    f"mixture_of_depths={self.mixture_of_depths} must be between 0 and 1, or be null"
                )
            if self.num_layers < 2:
                raise ValueError(
                    f"mixture_of_depths={self.mixture_of_depths} is for every other block, from the second "
                    f"on: num_layers={self.num_layers} must be at least 2"
                )


class Stack(Backbone):
    """Embedding, blocks, final norm, head."""

    config: StackConfig

    def __init__(self, config: StackConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        self.embedding = self.make_embedding()
        self.score_bias: nn.Module | None = None  # makes a bias of attention scores from positions
        self.blocks = nn.ModuleList(self.make_block(layer) for layer in range(config.num_layers))
        check_carried(self._blocks())
        self.final = self.make_final()
        self.head = self.make_head()
        if config.tie_embeddings:
            self.head.weight = token_table(self.embedding, self.vocab_size).weight
        if not self.head.weight.is_meta:  # on the meta device only sizes are needed, many times
            self.initialise()
        # Added last, so that a seed gives all other layers the same weights with them as without.
        causal = self.capabilities.causal
        add_canon(self._blocks(), config.canon, config.width, causal=causal)
        for block in self._blocks():
            if isinstance(block, RoutedBlock):
                assert config.mixture_of_depths is not None
                block.add_router(config.width, config.mixture_of_depths, causal=causal)

    def initialise(self) -> None:
        """Draw the initial weights of all layers."""
        init_normal(self)
        branches = sum(block.num_branches for block in self._passes())
        for part in self.modules():
            if isinstance(part, Mixer | FeedForward):
                part.initialise(self.residual_branches(branches))

    @abstractmethod
    def make_mixer(self, layer: int) -> Mixer:
        """Return a new mixer for a layer."""

    @abstractmethod
    def make_feedforward(self, layer: int) -> FeedForward | None:
        """Return a new feed-forward for a layer; None where the mixer is the full block."""

    def make_block(self, layer: int) -> Block:
        """Return a new block for a layer."""
        feedforward = self.make_feedforward(layer)
        return self.block_class(layer)(self.make_mixer(layer), feedforward, self.make_norm)

    def block_class(self, layer: int) -> type[Block]:
        """Return the class of the block of a layer."""
        routed = self.config.mixture_of_depths is not None and layer % 2 == 1
        return RoutedBlock if routed else Block

    def make_norm(self) -> nn.Module:
        """Return a new norm of the type of this family."""
        return RMSNorm(self.config.width, eps=self.config.norm_eps)

    def make_embedding(self) -> nn.Module:
        """Return the module that turns tokens (B, T) into vectors (B, T, D)."""
        return nn.Embedding(self.vocab_size, self.config.width)

    def make_final(self) -> nn.Module:
        """Return the module between the last block and the hidden states that are returned."""
        return self.make_norm()

    def make_head(self) -> nn.Linear:
        """Return the projection to the vocabulary."""
        return nn.Linear(self.config.width, self.vocab_size, bias=False)

    def residual_branches(self, count: int) -> int:
        """Return the number of branches by which output projections are scaled down at initialisation."""
        return count

    def embed(self, tokens_BT: Tensor, context: Context, segments_BT: Tensor | None) -> Tensor:
        """Return the input of the first block."""
        if segments_BT is not None:
            raise ValueError(f"{type(self).__name__} has no segments")
        return self.embedding(tokens_BT)

    def predict(self, hidden_BTD: Tensor) -> Tensor:
        """Return logits (B, T, V) of the last hidden states."""
        return self.head(hidden_BTD)

    def prediction_flops(self, length: int) -> int:
        """Return the FLOPs of ``predict``."""
        return linear_flops(self.head, length)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _passes(self) -> list[Block]:
        """Return the blocks in the order in which they are applied: all of them in each loop."""
        return self._blocks() * (self.config.loops or 1)

    def compute(self, inputs: ModelInputs) -> Output:
        inputs.refuse(type(self).__name__, "time_B", "clean_BT")
        context = self.whole_context(inputs)
        x_BTD = self.embed(inputs.tokens_BT, context, inputs.segments_BT)
        return self.run(x_BTD, context, inputs.scored_BT)

    def whole_context(self, inputs: ModelInputs) -> Context:
        """Return the context of full sequences. Raises ValueError for a source, or for packed documents
        that the model cannot keep apart."""
        no_source(inputs.source_BS, type(self).__name__)
        if inputs.documents_BT is not None and not self.capabilities.packs:
            raise ValueError(f"{type(self).__name__} cannot keep packed documents apart")
        return Context.whole(inputs.tokens_BT, inputs.valid_BT, inputs.documents_BT, self.score_bias)

    def run(self, x_BTD: Tensor, context: Context, scored_BT: Tensor | None = None) -> Output:
        """Run the blocks, and predict from the output of the last."""
        x_BTD, auxiliary = self.run_blocks(x_BTD, context)
        hidden_BTD = self.final(x_BTD)
        logits_BTV = self.predict(gather_scored(hidden_BTD, scored_BT))
        return Output(logits_BTV=logits_BTV, hidden_BTD=hidden_BTD, auxiliary=auxiliary)

    def run_blocks(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output of the last block, before the final norm, and auxiliary losses."""
        auxiliary: dict[str, Tensor] = {}
        for block in self._passes():
            x_BTD, extra = block(x_BTD, context)
            add_losses(auxiliary, extra)
        # With balance=all_layers, the layers return sums and no loss: this computes the loss from them.
        join_layers(auxiliary, len(x_BTD))
        return x_BTD, auxiliary

    def after_step(self) -> None:
        for part in feedforwards(self):
            part.after_step()

    def forget_step(self) -> None:
        for part in feedforwards(self):
            part.forget_step()

    def inactive_parameters(self) -> int:
        return sum(part.inactive_parameters() for part in feedforwards(self))

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        total = Flops(linear=linear_flops(self.final, length) + self.prediction_flops(length))
        for block in self._passes():
            total = total + block.flops(length)
        return total

    def step_flops(self, length: int, source_length: int = 0) -> Flops:
        total = super().step_flops(length)
        for block in self._passes():
            total = total + block.step_flops(length) - (block.flops(length + 1) - block.flops(length))
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
        layers: list[Any] = [block.start(batch_size, max_length) for block in self._passes()]
        lengths = [0] * batch_size
        limit = self.reread_length()
        history = None
        if limit is not None and limit < max_length:
            history = History(rows=[[] for _ in lengths], max_length=max_length)
        if self.training:
            return DecodingState(lengths=lengths, layers=layers, history=history)
        steps = compile_decode_steps(self._passes(), max_length, self.score_bias)
        return CompiledDecodingState(lengths=lengths, layers=layers, history=history, steps=steps)

    def reread_length(self) -> int | None:
        """Return the length above which a sequence has other activations from its first token on, so that
        the step that exceeds it reads all tokens again; None for none."""
        return None

    def kernels(self) -> dict[str, str]:
        return (
            {"decoding": decoding_path(self._passes(), self.score_bias)} if self.capabilities.decodes else {}
        )

    @torch.no_grad()
    def step(self, tokens_BT: Tensor, state: DecodingState, valid_BT: Tensor | None = None) -> Tensor:
        if self.capabilities.causal and not self.capabilities.decodes:
            return super().step(tokens_BT, state, valid_BT)
        if state.history is not None and self._exceeds_reread_length(tokens_BT, state, valid_BT):
            return self._read_again(state, tokens_BT.shape[1])
        context = self.next_context(tokens_BT, state.lengths, valid_BT)
        logits_BTV = self.step_with_context(context, tokens_BT, state)
        state.lengths = advance(state.lengths, tokens_BT, valid_BT)
        return logits_BTV

    def _exceeds_reread_length(
        self, tokens_BT: Tensor, state: DecodingState, valid_BT: Tensor | None
    ) -> bool:
        """Add tokens to the history; return True if a sequence with previous tokens exceeds the length."""
        limit = self.reread_length()
        assert state.history is not None
        assert limit is not None
        new = tokens_BT.tolist()
        if valid_BT is not None:
            new = [row[:count] for row, count in zip(new, valid_BT.sum(1).tolist(), strict=True)]
        state.history.rows = [[*old, *row] for old, row in zip(state.history.rows, new, strict=True)]
        return any(
            0 < read <= limit < len(row) for read, row in zip(state.lengths, state.history.rows, strict=True)
        )

    def _read_again(self, state: DecodingState, count: int) -> Tensor:
        """Read the history into empty layers; return the logits (B, T, V) of the last ``count`` tokens."""
        assert state.history is not None
        rows, device = state.history.rows, next(self.parameters()).device
        first_B1 = torch.tensor(state.lengths, device=device)[:, None]
        tokens_BT = pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True)
        length_B1 = torch.tensor([[len(row)] for row in rows], device=device)
        index_1T = torch.arange(tokens_BT.shape[1], device=device)[None]
        fresh = self.start(len(rows), state.history.max_length)
        context = self.next_context(tokens_BT, fresh.lengths, index_1T < length_B1)
        logits_BTV = self.step_with_context(context, tokens_BT, fresh)
        state.layers, state.lengths = fresh.layers, [len(row) for row in rows]
        last_BT = (first_B1 + index_1T[:, :count]).clamp_max(tokens_BT.shape[1] - 1)
        return logits_BTV.gather(1, last_BT[..., None].expand(-1, -1, logits_BTV.shape[-1]))

    def step_with_context(self, context: Context, tokens_BT: Tensor, state: DecodingState) -> Tensor:
        """Return the logits of ``step`` for tokens at the positions of a context; ``state.lengths`` stays."""
        x_BTD = self.embed(tokens_BT, context, None)
        steps = select_decode_steps(self._passes(), state, x_BTD, context)
        for step, layer in zip(steps, state.layers, strict=True):
            x_BTD = step(x_BTD, layer, context)
        return self.predict(self.final(x_BTD))

    def next_context(self, tokens_BT: Tensor, lengths: list[int], valid_BT: Tensor | None) -> Context:
        """Return the context of the tokens that follow the first ``lengths`` of each row."""
        return Context.next(tokens_BT, lengths, valid_BT, self.score_bias)

    def state_bytes(self, length: int, source_length: int = 0) -> int:
        if not self.capabilities.decodes:
            return 0
        bytes_per_element = self.bytes_per_element
        return sum(block.state_bytes(length, bytes_per_element) for block in self._passes())


@dataclass(frozen=True, kw_only=True)
class RecurrentStackConfig(StackConfig):
    """A stack of recurrent mixers without feed-forwards."""

    vocab_size: int | None = None
    """Rows of the token table; null for the task's vocabulary, which must not be larger."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ValueError(f"vocab_size={self.vocab_size} must be positive, or null")


class RecurrentStack(Stack):
    """Only recurrent mixers, each in its residual branch."""

    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: RecurrentStackConfig

    def __init__(self, config: RecurrentStackConfig, *, vocab_size: int, max_length: int) -> None:
        rows = config.vocab_size or vocab_size
        if rows < vocab_size:
            raise ValueError(f"vocab_size={rows} is smaller than the task's vocabulary of {vocab_size}")
        super().__init__(config, vocab_size=rows, max_length=max_length)

    def make_feedforward(self, layer: int) -> FeedForward | None:
        return None


def token_table(embedding: nn.Module, vocab_size: int) -> nn.Embedding:
    """The token table among the tables of ``embedding``: the first, of vocabulary size."""
    tables = [m for m in embedding.modules() if isinstance(m, nn.Embedding)]
    return next(table for table in tables if table.num_embeddings == vocab_size)


def advance(lengths: list[int], tokens_BT: Tensor, valid_BT: Tensor | None) -> list[int]:
    """Tokens read by each row after one more piece."""
    new = [tokens_BT.shape[1]] * len(lengths) if valid_BT is None else valid_BT.sum(1).tolist()
    return [old + more for old, more in zip(lengths, new, strict=True)]
