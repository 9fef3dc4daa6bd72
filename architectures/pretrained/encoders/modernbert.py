"""ModernBERT: ``ModernBertForMaskedLM`` (Warner et al. 2024, arXiv 2412.13663).

Pre-norm without biases, RoPE with a different base in the local layers, gated
GELU, no norm before the first attention.
"""

from __future__ import annotations

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.pretrained.attention_keys import (
    read_layer_rope,
    read_layer_types,
    write_layer_rope,
    write_layer_types,
)
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_activation,
    required_value,
    write_activation,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, Stacked, head, layered, linear


class ModernBert(Checkpoint):
    """``ModernBertForMaskedLM``."""

    backbone_class = Encoder
    model_types = ("modernbert",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        bias, norm_bias = hf.get("attention_bias", False), hf.get("norm_bias", False)
        period = hf.get("global_attn_every_n_layers", 3)
        max_length = hf.get("max_position_embeddings", 8192)
        half_window = hf.get("sliding_window")  # transformers reads it after local_attention, and instead
        config = EncoderConfig(
            d_model=required_value(hf, "hidden_size"),
            d_ff=required_value(hf, "intermediate_size"),
            num_layers=required_value(hf, "num_hidden_layers"),
            norm_eps=hf.get("norm_eps", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", True),
            attention=AttentionConfig(
                num_heads=required_value(hf, "num_attention_heads"),
                bias=bias,
                out_bias=bias,
                window=hf.get("local_attention", 128) if half_window is None else 2 * half_window,
                layers=read_layer_types(hf, default=["global", *["local"] * (period - 1)]),
                dropout=hf.get("attention_dropout", 0.0),
            ),
            positions=read_layer_rope(
                hf,
                max_length=max_length,
                base=hf.get("global_rope_theta", 160_000.0),
                local_base=hf.get("local_rope_theta", 10_000.0),
                scales_both=True,
            ),
            block=BlockConfig(norm="layernorm" if norm_bias else "layernorm_no_bias", first_norm=False),
            feedforward=FeedForwardConfig(
                activation=read_activation(hf, "hidden_activation", "gelu"), bias=hf.get("mlp_bias", False)
            ),
            embedding=EmbeddingConfig(norm=True),
            head=HeadConfig(bias=hf.get("decoder_bias", True)),
            transform_activation=read_activation(hf, "classifier_activation", "gelu"),
            transform_bias=hf.get("classifier_bias", False),
        )
        return Blueprint(
            backbone_class=Encoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=max_length,
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, Encoder)
        c = model.config
        rope = write_layer_rope(c.positions, c.width // c.attention.num_heads)
        if "truncate" in rope:
            raise ValueError("positions.scaling.truncate=false, a key that its class does not take")
        return {
            "architectures": ["ModernBertForMaskedLM"],
            "model_type": "modernbert",
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_length,
            "hidden_size": c.width,
            "intermediate_size": c.d_ff or c.feedforward.standard_width(c.width),
            "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.attention.num_heads,
            "hidden_activation": write_activation(c.feedforward.activation),
            "norm_eps": c.norm_eps,
            "norm_bias": c.block.norm == "layernorm",
            "attention_bias": c.attention.bias,
            "mlp_bias": c.feedforward.bias,
            "decoder_bias": c.head.bias,
            "classifier_activation": write_activation(c.transform_activation),
            "classifier_bias": c.transform_bias,
            "layer_types": write_layer_types(c.attention, c.num_layers),
            "local_attention": c.attention.window or 128,
            "rope_parameters": rope,
            "attention_dropout": c.attention.dropout,
            "embedding_dropout": c.block.dropout,
            "tie_word_embeddings": c.tie_embeddings,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        }

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
