"""ModernBERT: ``ModernBertForMaskedLM`` (Warner et al. 2024, arXiv 2412.13663).

Pre-norm without biases, RoPE with a different base in the local layers, gated
GELU, no norm before the first attention.
"""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.pretrained.attention_keys import layer_rope, layer_types
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    TOKENS,
    Beside,
    Field,
    Part,
    Settings,
    Table,
    Written,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, Stacked, head, layered, linear


def read_window(hf: HFConfig) -> Settings:
    """Return the window. ``sliding_window`` is half of it, and read instead."""
    half = hf.get("sliding_window")
    return {"attention.window": hf["local_attention"] if half is None else 2 * half}


def write_window(config: EncoderConfig, keys: HFConfig) -> HFConfig:
    """Return the window, also where no layer has it."""
    return {"local_attention": config.attention.window or 128}


def check_truncation(config: EncoderConfig, keys: HFConfig) -> HFConfig:
    """Raise ValueError for a key of rotary scaling that their class does not take."""
    if "truncate" in keys["rope_parameters"]:
        raise ValueError("positions.scaling.truncate=false, a key that its class does not take")
    return {}


class ModernBert(Checkpoint):
    """``ModernBertForMaskedLM``."""

    backbone_class = Encoder
    model_types = ("modernbert",)
    architecture = "ModernBertForMaskedLM"
    fields: ClassVar[Table] = {
        "hidden_size": Field("d_model"),
        "intermediate_size": Field("d_ff"),
        "num_hidden_layers": Field("num_layers"),
        "norm_eps": Field("norm_eps", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "num_attention_heads": Field("attention.num_heads"),
        "attention_bias": Field("attention.bias", False, also="attention.out_bias"),
        "local_attention": Part(read_window, write_window, default=128),
        "sliding_window": Beside(),
        "global_attn_every_n_layers": Beside(3),
        "layer_types": layer_types(
            lambda hf: ["global", *["local"] * (hf["global_attn_every_n_layers"] - 1)]
        ),
        "attention_dropout": Field("attention.dropout", 0.0),
        "max_position_embeddings": Field("max_length", 8192),
        "global_rope_theta": Beside(160_000.0),
        "local_rope_theta": Beside(10_000.0),
        "rope_parameters": layer_rope("global_rope_theta", "local_rope_theta", scales_both=True),
        "truncate": Part(write=check_truncation),
        "norm_bias": Field(
            "block.norm",
            False,
            read=lambda bias: "layernorm" if bias else "layernorm_no_bias",
            write=lambda norm: norm == "layernorm",
        ),
        "hidden_activation": Field("feedforward.activation", "gelu", names=ACTIVATIONS),
        "mlp_bias": Field("feedforward.bias", False),
        "decoder_bias": Field("head.bias", True),
        "classifier_activation": Field("transform_activation", "gelu", names=ACTIVATIONS),
        "classifier_bias": Field("transform_bias", False),
        "embedding_dropout": Written(ours="block.dropout"),
        "vocab_size": Field("vocab_size"),
        **TOKENS,
        "cls_token_id": Written(None),
        "sep_token_id": Written(None),
    }
    fixed: ClassVar[Settings] = {"block.first_norm": False, "embedding.norm": True}

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Encoder)
        layer = [
            *linear("attn_norm", "mixer_residual.before"),
            *linear("attn.Wqkv", "mixer.q", "mixer.k", "mixer.v", make=Stacked),
            *linear("attn.Wo", "mixer.out"),
            *linear("mlp_norm", "feedforward_residual.before"),
            *linear("mlp.Wi", "feedforward.gate", "feedforward.up", make=Stacked),
            *linear("mlp.Wo", "feedforward.down"),
        ]
        return [
            Same("model.embeddings.tok_embeddings.weight", ("embedding.tokens.weight",)),
            *linear("model.embeddings.norm", "embedding.norm"),
            *layered(model.config.num_layers, "model.layers.{}.", "blocks.{}.", layer),
            *linear("model.final_norm", "final"),
            *linear("head.dense", "transform.dense"),
            *linear("head.norm", "transform.norm"),
            head("decoder.weight", tied=model.config.tie_embeddings),
            Same("decoder.bias", ("head.bias",)),
        ]
