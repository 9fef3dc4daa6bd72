"""Encoder-decoder: a bidirectional encoder, and a causal decoder that also attends to it.

Raffel et al. 2020 (arXiv 1910.10683): pre-norm RMSNorm, relative position bias
shared by the layers of a stack, none in cross-attention; gated GELU feed-forward
as in version 1.1. Unlike T5, scores are scaled by 1/sqrt(head_dim).

Shapes: B batch, T target length, S source length, D d_model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.backbone import (
    Backbone,
    BackboneConfig,
    Capabilities,
    DecodingState,
    Flops,
    Output,
    init_normal,
    linear_flops,
)
from architectures.layers.attention import Attention, validate_heads
from architectures.layers.feedforward import swiglu_width
from architectures.layers.positions import RelativePositionBias


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(BackboneConfig):
    """A T5-style encoder-decoder."""

    num_encoder_layers: int = 1
    """Layers that read the source."""
    num_decoder_layers: int = 1
    """Layers that write the target."""
    num_heads: int = 4
    """Attention heads."""
    d_ff: int | None = None
    """Hidden width of the gated feed-forward; null for 8/3 d_model rounded up to a multiple of 8."""
    num_buckets: int = 32
    """Buckets of the relative position bias."""
    max_distance: int = 128
    """Distance from which all positions share a bucket."""
    norm_eps: float = 1e-6
    """Added to the mean square before the root, in every norm."""
    tied: bool = False
    """Share the embedding table with the projection to the vocabulary."""

    def __post_init__(self) -> None:
        if self.num_encoder_layers < 1 or self.num_decoder_layers < 1:
            raise ValueError("num_encoder_layers and num_decoder_layers must be at least 1")
        validate_heads(self.num_heads, self.num_heads)
        super().__post_init__()
        if self.d_ff is not None and self.d_ff < 1:
            raise ValueError(f"d_ff={self.d_ff} must be positive, or null for the standard proportion")
        if self.num_buckets < 4 or self.num_buckets % 4 or self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"num_buckets={self.num_buckets} must be a multiple of 4 and "
                f"max_distance={self.max_distance} more than half of it"
            )

    @property
    def width_multiple(self) -> int:
        return self.num_heads


class GatedGELU(nn.Module):
    """``down(gelu(gate(x)) * up(x))`` with the tanh form of GELU, as in T5 v1.1."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.gate(x), approximate="tanh") * self.up(x))


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a source to attend to, feed-forward; all pre-norm."""

    def __init__(self, config: EncoderDecoderConfig, *, decoder: bool) -> None:
        super().__init__()
        d_model, heads = config.width, config.num_heads

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(d_model, eps=config.norm_eps)

        self.self_norm = norm()
        self.self_attention = Attention(d_model, num_heads=heads, num_kv_heads=heads, causal=decoder)
        if decoder:
            self.cross_norm = norm()
            self.cross_attention = Attention(d_model, num_heads=heads, num_kv_heads=heads, causal=False)
        self.feedforward_norm = norm()
        self.feedforward = GatedGELU(d_model, config.d_ff or swiglu_width(d_model))

    def rest(self, x_BTD: Tensor, source: dict[str, Any] | None) -> Tensor:
        """Everything after self-attention."""
        if source is not None:
            cross = self.cross_attention.cross(
                self.cross_norm(x_BTD), source["k"], source["v"], source["valid"]
            )
            x_BTD = x_BTD + cross
        return x_BTD + self.feedforward(self.feedforward_norm(x_BTD))

    def read_source(self, source_BSD: Tensor, valid_BS: Tensor | None) -> dict[str, Any]:
        """Keys and values of the source, computed once and never extended."""
        positions_S = torch.arange(source_BSD.shape[1], device=source_BSD.device)
        k_BHSE, v_BHSE = self.cross_attention.keys_values(source_BSD, positions_S)
        return {"k": k_BHSE, "v": v_BHSE, "valid": valid_BS}

    def forward(
        self, x_BTD: Tensor, valid_BT: Tensor | None, bias: Tensor, source: dict[str, Any] | None
    ) -> Tensor:
        x_BTD = x_BTD + self.self_attention(self.self_norm(x_BTD), valid_BT, bias_BHTS=bias)
        return self.rest(x_BTD, source)

    def step(self, x_BTD: Tensor, state: dict[str, Any], position: int, bias: Tensor) -> Tensor:
        x_BTD = x_BTD + self.self_attention.step(
            self.self_norm(x_BTD), state["self"], position, bias_BHTS=bias
        )
        return self.rest(x_BTD, state["source"])


class EncoderDecoder(Backbone):
    """Encoder-decoder transformer. ``tokens_BT`` is the decoder's input, ``source_BS`` the encoder's."""

    Config = EncoderDecoderConfig
    capabilities = Capabilities(encoder_decoder=True, decodes=True)
    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        self.embedding = nn.Embedding(vocab_size, config.width)

        def bias(bidirectional: bool) -> RelativePositionBias:
            return RelativePositionBias(
                config.num_heads,
                bidirectional=bidirectional,
                num_buckets=config.num_buckets,
                max_distance=config.max_distance,
            )

        self.encoder_bias, self.decoder_bias = bias(True), bias(False)
        self.encoder = nn.ModuleList(Layer(config, decoder=False) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(Layer(config, decoder=True) for _ in range(config.num_decoder_layers))
        self.encoder_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.decoder_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        init_normal(self)
        self._scale_residual_branches()

    @torch.no_grad()
    def _scale_residual_branches(self) -> None:
        branches = {
            "encoder": 2 * self.config.num_encoder_layers,
            "decoder": 3 * self.config.num_decoder_layers,
        }
        for stack, count in branches.items():
            for layer in getattr(self, stack):
                for part in layer.modules():
                    if isinstance(part, Attention):
                        part.out.weight.mul_(count**-0.5)
                    elif isinstance(part, GatedGELU):
                        part.down.weight.mul_(count**-0.5)

    def encode(self, source_BS: Tensor, valid_BS: Tensor | None) -> Tensor:
        """The encoder's last hidden states (B, S, D)."""
        positions_S = torch.arange(source_BS.shape[1], device=source_BS.device)
        bias = self.encoder_bias(positions_S, positions_S)
        x_BSD = self.embedding(source_BS)
        for layer in _layers(self.encoder):
            x_BSD = layer(x_BSD, valid_BS, bias, None)
        return self.encoder_norm(x_BSD)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        valid_BT: Tensor | None = None,
        source_BS: Tensor | None = None,
        source_valid_BS: Tensor | None = None,
    ) -> Output:
        if source_BS is None:
            raise ValueError("an encoder-decoder needs source_BS, the tokens its encoder reads")
        source_BSD = self.encode(source_BS, source_valid_BS)
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        bias = self.decoder_bias(positions_T, positions_T)
        x_BTD = self.embedding(tokens_BT)
        for layer in _layers(self.decoder):
            x_BTD = layer(x_BTD, valid_BT, bias, layer.read_source(source_BSD, source_valid_BS))
        x_BTD = self.decoder_norm(x_BTD)
        return Output(logits_BTV=self.head(x_BTD), hidden_BTD=x_BTD)

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
        source_BSD = self.encode(source_BS, source_valid_BS)
        layers = [
            {
                "self": layer.self_attention.start(batch_size, max_length),
                "source": layer.read_source(source_BSD, source_valid_BS),
            }
            for layer in _layers(self.decoder)
        ]
        return DecodingState(length=0, layers=layers)

    @torch.no_grad()
    def step(self, tokens_BT: Tensor, state: DecodingState) -> Tensor:
        end = state.length + tokens_BT.shape[1]
        query_T = torch.arange(state.length, end, device=tokens_BT.device)
        bias = self.decoder_bias(query_T, torch.arange(end, device=tokens_BT.device))
        x_BTD = self.embedding(tokens_BT)
        for layer, layer_state in zip(_layers(self.decoder), state.layers, strict=True):
            x_BTD = layer.step(x_BTD, layer_state, state.length, bias)
        state.length = end
        return self.head(self.decoder_norm(x_BTD))

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        total = Flops(linear=linear_flops(self.head, length))
        for layer in _layers(self.encoder):
            total = total + layer.self_attention.flops(source_length)
            total = total + Flops(linear=linear_flops(layer.feedforward, source_length))
        for layer in _layers(self.decoder):
            total = total + layer.self_attention.flops(length)
            total = total + Flops(linear=linear_flops(layer.feedforward, length))
            total = total + _cross_flops(layer.cross_attention, length, source_length)
        return total

    def state_bytes(self, length: int, source_length: int = 0) -> int:
        size = self.bytes_per_element
        return sum(
            layer.self_attention.state_bytes(length, size)
            + layer.cross_attention.state_bytes(source_length, size)
            for layer in _layers(self.decoder)
        )

    def kernels(self) -> dict[str, str]:
        return {"attention": "torch scaled_dot_product_attention"}


def _layers(stack: nn.ModuleList) -> list[Layer]:
    return [layer for layer in stack if isinstance(layer, Layer)]


def _cross_flops(cross: Attention, length: int, source_length: int) -> Flops:
    """Queries and outputs for each target token, keys and values for each source token."""
    own = linear_flops(cross.q, length) + linear_flops(cross.out, length)
    read = linear_flops(cross.k, source_length) + linear_flops(cross.v, source_length)
    return Flops(linear=own + read, attention=cross.pair_flops(length * source_length))
