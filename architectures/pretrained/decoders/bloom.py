"""BLOOM (Le Scao et al. 2022, arXiv 2211.05100): ALiBi, a norm after the embedding, q, k, v fused by head."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.fields import OPTIONAL, Field, Only, Settings, Table, Written
from archbench.architectures.pretrained.tensor_rules import ByHead, Rule, Same, head, layered, linear


class Bloom(Checkpoint):
    """``BloomForCausalLM``."""

    backbone_class = Decoder
    model_types = ("bloom",)
    architecture = "BloomForCausalLM"
    aliases: ClassVar[dict[str, str]] = {
        "n_embed": "hidden_size",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    fields: ClassVar[Table] = {
        "apply_residual_connection_post_layernorm": Only(False),
        "hidden_size": Field("d_model"),
        "n_inner": Field("d_ff", lambda hf: 4 * hf["hidden_size"], ignored=True, written=False),
        "n_layer": Field("num_layers"),
        "layer_norm_epsilon": Field("norm_eps", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "n_head": Field("attention.num_heads"),
        "attention_dropout": Field("attention.dropout", 0.0, unset=OPTIONAL),
        "hidden_dropout": Field("block.dropout", 0.0, unset=OPTIONAL),
        "vocab_size": Field("vocab_size"),
        "seq_length": Field("max_length", 2048),
        "bos_token_id": Written(None),
        "eos_token_id": Written(None),
    }
    fixed: ClassVar[Settings] = {
        "attention.bias": True,
        "attention.out_bias": True,
        "positions.kind": "alibi",
        "block.norm": "layernorm",
        "feedforward.activation": "gelu_tanh",
        "feedforward.gated": False,
        "feedforward.bias": True,
        "embedding.norm": True,
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
