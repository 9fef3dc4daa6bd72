"""BLOOM (Le Scao et al. 2022, arXiv 2211.05100): ALiBi, a norm after the embedding, q, k, v fused by head."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import ByHead, Rule, Same, head, layered, linear


class Bloom(Checkpoint):
    """``BloomForCausalLM``."""

    backbone_class = Decoder
    model_types = ("bloom",)
    aliases: ClassVar[dict[str, str]] = {
        "n_embed": "hidden_size",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "apply_residual_connection_post_layernorm", False, default=False)
        width = required_value(hf, "hidden_size")
        config = DecoderConfig(
            d_model=width,
            d_ff=4 * width,
            num_layers=required_value(hf, "n_layer"),
            norm_eps=hf.get("layer_norm_epsilon", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", True),
            attention=AttentionConfig(
                num_heads=required_value(hf, "n_head"),
                bias=True,
                out_bias=True,
                dropout=hf.get("attention_dropout") or 0.0,
            ),
            positions=PositionsConfig(kind="alibi"),
            block=BlockConfig(norm="layernorm", dropout=hf.get("hidden_dropout") or 0.0),
            feedforward=FeedForwardConfig(activation="gelu_tanh", gated=False, bias=True),
            embedding=EmbeddingConfig(norm=True),
        )
        return Blueprint(
            backbone_class=Decoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf.get("seq_length", 2048),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        return {
            "architectures": ["BloomForCausalLM"],
            "model_type": "bloom",
            "vocab_size": model.vocab_size,
            "seq_length": model.max_length,
            "hidden_size": c.width,
            "n_layer": c.num_layers,
            "n_head": c.attention.num_heads,
            "layer_norm_epsilon": c.norm_eps,
            "tie_word_embeddings": c.tie_embeddings,
            "attention_dropout": c.attention.dropout,
            "hidden_dropout": c.block.dropout,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = decoder_config(model)
        by_head = partial(ByHead, num_heads=c.attention.num_heads)
        layer = [
            *linear("input_layernorm", "mixer_residual.before"),
            *linear("self_attention.query_key_value", "mixer.q", "mixer.k", "mixer.v", make=by_head),
            *linear("self_attention.dense", "mixer.out"),
            *linear("post_attention_layernorm", "feedforward_residual.before"),
            *linear("mlp.dense_h_to_4h", "feedforward.up"),
            *linear("mlp.dense_4h_to_h", "feedforward.down"),
        ]
        return [
            Same("transformer.word_embeddings.weight", ("embedding.tokens.weight",)),
            *linear("transformer.word_embeddings_layernorm", "embedding.norm"),
            *layered(c.num_layers, "transformer.h.{}.", "blocks.{}.", layer),
            *linear("transformer.ln_f", "final"),
            head("lm_head.weight", tied=c.tie_embeddings),
        ]

    @classmethod
    def current_name(cls, name: str) -> str:
        """Add the prefix: the files of the original BLOOM have no ``transformer.`` before their names."""
        return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
