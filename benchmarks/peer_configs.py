"""The models of ``transformers`` that are compared with, one for each family, of any size, no dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a model."""

    d_model: int
    layers: int
    vocab_size: int
    length: int
    """Longest sequence."""

    @property
    def heads(self) -> int:
        return max(1, self.d_model // 64)

    @property
    def gated_width(self) -> int:
        """8/3 d_model, in multiples of 8."""
        return -(-8 * self.d_model // 3 // 8) * 8


def dense_settings(shape: Shape) -> dict[str, Any]:
    """Return the settings that all configurations of ``transformers`` share."""
    return {
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.length,
    }


def llama(shape: Shape) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**dense_settings(shape), intermediate_size=shape.gated_width))


def gpt2(shape: Shape) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=shape.d_model,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_positions=shape.length,
            vocab_size=shape.vocab_size,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def bert(shape: Shape) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            **dense_settings(shape),
            intermediate_size=4 * shape.d_model,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def t5(shape: Shape) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            d_model=shape.d_model,
            d_kv=64,
            d_ff=4 * shape.d_model,
            num_layers=shape.layers,
            num_heads=shape.heads,
            vocab_size=shape.vocab_size,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def mixtral(shape: Shape) -> nn.Module:
    """Eight experts, two for a token, which together are as wide as a dense layer."""
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            **dense_settings(shape),
            num_key_value_heads=shape.heads,
            intermediate_size=shape.gated_width // 16 * 8,
            num_local_experts=8,
            num_experts_per_tok=2,
        )
    )


def mamba(shape: Shape) -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(
            hidden_size=shape.d_model,
            num_hidden_layers=shape.layers,
            vocab_size=shape.vocab_size,
            residual_in_fp32=False,
        )
    )


def mamba2(shape: Shape) -> nn.Module:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    return Mamba2ForCausalLM(
        Mamba2Config(
            hidden_size=shape.d_model,
            num_hidden_layers=shape.layers,
            vocab_size=shape.vocab_size,
            num_heads=2 * shape.d_model // 64,
            head_dim=64,
            state_size=64,
            n_groups=1,
            residual_in_fp32=False,
        )
    )


FAMILIES: dict[str, Callable[[Shape], nn.Module]] = {
    "decoder": llama,
    "gpt2": gpt2,
    "encoder": bert,
    "encoder_decoder": t5,
    "moe": mixtral,
    "mamba": mamba,
    "mamba2": mamba2,
}
"""Each family's model in transformers."""
