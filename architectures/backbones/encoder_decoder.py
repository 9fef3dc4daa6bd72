"""Encoder-decoder: a bidirectional encoder, and a causal decoder that also attends to it.

The defaults are T5 v1.1 (Raffel et al. 2020, arXiv 1910.10683): pre-norm RMSNorm,
relative position bias shared by the layers of a stack, none in cross-attention,
gated GELU; except that scores are scaled by 1/sqrt(head_dim), which T5 folds into
its initialisation (``attention.scale=1``). BART (Lewis et al. 2020, arXiv
1910.13461) is the same with learned positions and norms after the sublayers.

Shapes: B batch, T target length, S source length, D d_model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import (
    Backbone,
    Capabilities,
    Flops,
    ModelInputs,
    Output,
    gather_scored,
    init_normal,
    linear_flops,
)
from archbench.architectures.backbones.canon_positions import add_canon
from archbench.architectures.backbones.stack import advance
from archbench.architectures.backbones.transformer import (
    TransformerConfig,
    check_vocabulary,
    finish_logits,
    make_attention,
    make_feedforward,
    score_bias,
    shared_kernels,
)
from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.fast_paths import path
from archbench.architectures.layers.attention.multi_head import CrossAttention
from archbench.architectures.layers.block import Auxiliary, Block, add_losses, feedforwards, join_layers
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.cross_attention_block import CrossAttentionBlock
from archbench.architectures.layers.decode_steps import (
    CompiledDecodingState,
    compile_decode_steps,
    decoding_path,
    select_decode_steps,
)
from archbench.architectures.layers.embedding import Embedding
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.layer_pattern import check_pattern, expand_pattern
from archbench.architectures.layers.normalization import for_products, make_norm
from archbench.architectures.layers.positions import PositionsConfig


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig):
    """An encoder-decoder, T5-style by default. ``num_layers`` are those of the decoder."""

    num_encoder_layers: int | None = None
    """Layers of the encoder; null for as many as the decoder has."""
    norm_eps: float = 1e-6
    """Added to the mean square before the root, in every norm."""
    positions: PositionsConfig = field(default_factory=lambda: PositionsConfig(kind="relative"))
    """Position embeddings of each stack; cross-attention has none."""
    feedforward: FeedForwardConfig = field(default_factory=lambda: FeedForwardConfig(activation="gelu_tanh"))
    """Activation and gate."""
    encoder_feedforwards: list[str] | None = None
    """Pattern of ``feedforwards`` in the encoder; null for the same. Neither stack has layers without one."""
    encoder_heads: int | None = None
    """Attention heads of the encoder; null for as many as the decoder has."""
    encoder_d_ff: int | None = None
    """Hidden width of dense feed-forwards of the encoder; null for that of the decoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pattern("feedforwards", self.feedforwards, ["dense", "experts"])
        if self.encoder_feedforwards is not None:
            check_pattern("encoder_feedforwards", self.encoder_feedforwards, ["dense", "experts"])
        if self.num_encoder_layers is not None and self.num_encoder_layers < 1:
            raise ValueError(f"num_encoder_layers={self.num_encoder_layers} must be at least 1, or null")
        if self.attention.latent.kv_rank is not None:
            raise ValueError("attention.latent does not go with cross-attention: leave kv_rank null")
        if self.loops is not None:
            raise ValueError("loops does not go with an encoder-decoder: leave it null")
        if self.mixture_of_depths is not None:
            raise ValueError("mixture_of_depths does not go with an encoder-decoder: leave it null")
        if self.attention.differential:
            raise ValueError("attention.differential=true does not go with cross-attention: set it to false")
        if self.positions.scaling.depends_on_length:
            raise ValueError(
                f"positions.scaling.kind={self.positions.scaling.kind} goes with decoders and encoders only: "
                "set it to another kind, such as ntk"
            )
        if self.block.parallel:
            raise ValueError("block.parallel=true does not go with cross-attention")
        for name in ("encoder_heads", "encoder_d_ff"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1, or null")
        if self.encoder_heads is not None and self.attention.kv_heads != self.attention.num_heads:
            raise ValueError("encoder_heads needs attention.num_kv_heads=null: every head has its own keys")
        if self.encoder_heads is not None or self.encoder_d_ff is not None:
            assert self.encoder_side  # raises where the heads do not divide the width

    @property
    def encoder_layers(self) -> int:
        return self.num_encoder_layers or self.num_layers

    @property
    def deepest(self) -> int:
        return max(self.num_layers, self.encoder_layers)

    @property
    def encoder_side(self) -> EncoderDecoderConfig:
        """Return the settings of the blocks of the encoder."""
        attention = self.attention
        if self.encoder_heads is not None:
            attention = replace(attention, num_heads=self.encoder_heads, num_kv_heads=None)
        d_ff = self.encoder_d_ff or self.d_ff
        return replace(self, attention=attention, d_ff=d_ff, encoder_heads=None, encoder_d_ff=None)

    @property
    def encoder_feedforward_types(self) -> list[str]:
        """Return the type of the feed-forward of each layer of the encoder."""
        return expand_pattern(self.encoder_feedforwards or self.feedforwards, self.encoder_layers)


class TwoSidedEmbedding(nn.Module):
    """A token table shared by source and target, which have separate positions and norms."""

    def __init__(self, config: EncoderDecoderConfig, vocab_size: int, max_length: int) -> None:
        super().__init__()

        def side(tokens: nn.Embedding | None) -> Embedding:
            return Embedding(
                vocab_size,
                config.width,
                config.embedding,
                lambda: make_norm(config.block.norm, config.width, config.norm_eps),
                positions=config.positions.kind,
                max_length=max_length,
                dropout=config.block.dropout,
                tokens=tokens,
            )

        self.target = side(None)
        self.source = side(self.target.tokens)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, *, source: bool) -> Tensor:
        return (self.source if source else self.target)(tokens_BT, positions_BT)


class EncoderDecoder(Backbone):
    """Encoder-decoder transformer. ``tokens_BT`` is the decoder's input, ``source_BS`` the encoder's."""

    Config = EncoderDecoderConfig
    capabilities = Capabilities(encoder_decoder=True, decodes=True)
    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, *, vocab_size: int, max_length: int) -> None:
        check_vocabulary(config, vocab_size)
        vocab_size, max_length = config.vocab_size or vocab_size, config.max_positions or max_length
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        self.embedding = TwoSidedEmbedding(config, vocab_size, max_length)
        self.encoder_bias = score_bias(config.encoder_side, bidirectional=True)
        self.decoder_bias = score_bias(config, bidirectional=False)
        encoder_config = config.encoder_side
        self.encoder = nn.ModuleList(
            _encoder_block(encoder_config, layer) for layer in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(_decoder_block(config, layer) for layer in range(config.num_layers))
        post = config.block.placement == "post"
        self.encoder_norm = (
            nn.Identity() if post else make_norm(config.block.norm, config.width, config.norm_eps)
        )
        self.decoder_norm = (
            nn.Identity() if post else make_norm(config.block.norm, config.width, config.norm_eps)
        )
        self.head = nn.Linear(config.width, vocab_size, bias=config.head.bias)
        if config.tie_embeddings:
            self.head.weight = self.embedding.target.tokens.weight
        init_normal(self)
        self._scale_residual_branches()
        add_canon(self._encoder(), config.canon, config.width, causal=False)
        add_canon(self._decoder(), config.canon, config.width, causal=True)

    def _scale_residual_branches(self) -> None:
        encoder, decoder = 2 * self.config.encoder_layers, 3 * self.config.num_layers
        if not self.config.block.residual_scaling:
            encoder = decoder = 1
        for block, branches in [(b, encoder) for b in self._encoder()] + [
            (b, decoder) for b in self._decoder()
        ]:
            block.mixer.initialise(branches)
            if isinstance(block, CrossAttentionBlock):
                block.cross.initialise(branches)
            assert block.feedforward is not None
            block.feedforward.initialise(branches)

    def _encoder(self) -> list[Block]:
        return [block for block in self.encoder if isinstance(block, Block)]

    def _decoder(self) -> list[CrossAttentionBlock]:
        return [block for block in self.decoder if isinstance(block, CrossAttentionBlock)]

    def encode(self, source_BS: Tensor, valid_BS: Tensor | None) -> tuple[Tensor, Auxiliary]:
        """Return the encoder's last hidden states (B, S, D), and its auxiliary losses."""
        context = Context.whole(source_BS, valid_BS, None, self.encoder_bias)
        x_BSD = self.embedding(source_BS, context.positions_BT, source=True)
        auxiliary: Auxiliary = {}
        for block in self._encoder():
            x_BSD, extra = block(x_BSD, context)
            add_losses(auxiliary, extra)
        join_layers(auxiliary, len(x_BSD))
        return for_products(self.encoder_norm, x_BSD), auxiliary  # keys and values of every layer read it

    def compute(self, inputs: ModelInputs) -> Output:
        tokens_BT, source_BS, source_valid_BS = inputs.tokens_BT, inputs.source_BS, inputs.source_valid_BS
        if source_BS is None:
            raise ValueError("an encoder-decoder needs source_BS, the tokens its encoder reads")
        if inputs.documents_BT is not None or inputs.segments_BT is not None:
            raise ValueError("an encoder-decoder takes neither packed documents nor segments")
        inputs.refuse(type(self).__name__, "time_B", "clean_BT")
        source_BSD, auxiliary = self.encode(source_BS, source_valid_BS)
        decoder_losses: Auxiliary = {}
        context = Context.whole(tokens_BT, inputs.valid_BT, None, self.decoder_bias)
        x_BTD = self.embedding(tokens_BT, context.positions_BT, source=False)
        for block in self._decoder():
            x_BTD, extra = block(x_BTD, context, source_BSD, source_valid_BS)
            add_losses(decoder_losses, extra)
        join_layers(decoder_losses, len(x_BTD))
        add_losses(auxiliary, decoder_losses)
        x_BTD = self.decoder_norm(x_BTD)
        logits_BTV = finish_logits(self.head, gather_scored(x_BTD, inputs.scored_BT), self.config)
        return Output(logits_BTV=logits_BTV, hidden_BTD=x_BTD, auxiliary=auxiliary)

    @torch.no_grad()
    def start(
        self,
        batch_size: int,
        max_length: int,
        *,
        source_BS: Tensor | None = None,
        source_valid_BS: Tensor | None = None,
    ) -> DecodingState:
        if source_BS is None:
            raise ValueError("an encoder-decoder needs source_BS to start decoding")
        source_BSD, _ = self.encode(source_BS, source_valid_BS)
        layers: list[Any] = [
            {
                "self": block.start(batch_size, max_length),
                "source": block.cross.read(source_BSD, source_valid_BS),
            }
            for block in self._decoder()
        ]
        lengths = [0] * batch_size
        if self.training:
            return DecodingState(lengths=lengths, layers=layers)
        steps = compile_decode_steps(self._decoder(), max_length, self.decoder_bias)
        return CompiledDecodingState(lengths=lengths, layers=layers, steps=steps)

    @torch.no_grad()
    def step(self, tokens_BT: Tensor, state: DecodingState, valid_BT: Tensor | None = None) -> Tensor:
        context = Context.next(tokens_BT, state.lengths, valid_BT, self.decoder_bias)
        logits_BTV = self.step_with_context(context, tokens_BT, state)
        state.lengths = advance(state.lengths, tokens_BT, valid_BT)
        return logits_BTV

    def step_with_context(self, context: Context, tokens_BT: Tensor, state: DecodingState) -> Tensor:
        """Return the logits of ``step`` for tokens at the positions of a context; ``state.lengths`` stays."""
        x_BTD = self.embedding(tokens_BT, context.positions_BT, source=False)
        steps = select_decode_steps(self._decoder(), state, x_BTD, context)
        for step, layer in zip(steps, state.layers, strict=True):
            x_BTD = step(x_BTD, layer, context)
        return finish_logits(self.head, self.decoder_norm(x_BTD), self.config)

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        total = Flops(linear=linear_flops(self.head, length))
        for encoder_block in self._encoder():
            total = total + encoder_block.flops(source_length)
        for block in self._decoder():
            total = total + block.flops(length) + block.cross.cross_flops(length, source_length)
        return total

    def state_bytes(self, length: int, source_length: int = 0) -> int:
        size = self.bytes_per_element
        return sum(
            block.state_bytes(length, size) + block.cross.source_bytes(source_length, size)
            for block in self._decoder()
        )

    def kernels(self) -> dict[str, str]:
        one = next(self.parameters())
        attention = self._decoder()[0].cross.kernel(masked=False, cuda=one.is_cuda, native=path(one) == "cpp")
        decoding = decoding_path(self._decoder(), self.decoder_bias)
        return {"attention": attention, "decoding": decoding} | shared_kernels(self)

    def after_step(self) -> None:
        for part in feedforwards(self):
            part.after_step()

    def forget_step(self) -> None:
        for part in feedforwards(self):
            part.forget_step()

    def inactive_parameters(self) -> int:
        return sum(part.inactive_parameters() for part in feedforwards(self))


def _encoder_block(config: EncoderDecoderConfig, layer: int) -> Block:
    skip = config.block.stochastic_depth * layer / max(config.encoder_layers - 1, 1)
    attention = make_attention(config, layer, causal=False)
    attention.place(layer, config.encoder_layers)
    return Block(
        attention,
        make_feedforward(config, config.encoder_feedforward_types[layer], causal=False),
        lambda: make_norm(config.block.norm, config.width, config.norm_eps),
        config.block,
        skip=skip,
        first=layer == 0,
    )


def _decoder_block(config: EncoderDecoderConfig, layer: int) -> CrossAttentionBlock:
    feedforward = make_feedforward(config, config.feedforward_types[layer], causal=True)
    assert feedforward is not None
    attention = make_attention(config, layer, causal=True)
    attention.place(layer, config.num_layers)
    return CrossAttentionBlock(
        attention,
        CrossAttention(config.width, config.attention, norm=config.block.norm, norm_eps=config.norm_eps),
        feedforward,
        lambda: make_norm(config.block.norm, config.width, config.norm_eps),
        config.block,
        skip=config.block.stochastic_depth * layer / max(config.num_layers - 1, 1),
        first=layer == 0,
    )
