"""Phi-1, 1.5 and 2 (Li et al. 2023, arXiv 2309.05463): parallel branches after one norm, partial rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.pretrained.attention_keys import rope
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    HEAD_DIM,
    OPTIONAL,
    WHOLE_HEADS,
    Field,
    Settings,
    Table,
    Written,
)
from archbench.architectures.pretrained.tensor_rules import Rule, Same, head, layered, linear


class Phi(Checkpoint):
    """``PhiForCausalLM``."""

    backbone_class = Decoder
    model_types = ("phi",)
    architecture = "PhiForCausalLM"
    ignored = (r"rotary_emb\.inv_freq",)
    fields: ClassVar[Table] = {
        "max_position_embeddings": Field("max_length"),
        "hidden_size": Field("d_model"),
        "intermediate_size": Field("d_ff"),
        "num_hidden_layers": Field("num_layers"),
        "layer_norm_eps": Field("norm_eps", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", False),
        "num_attention_heads": WHOLE_HEADS,
        "num_key_value_heads": Field("attention.num_kv_heads", None),
        "head_dim": replace(HEAD_DIM, written=False),
        "qk_layernorm": Field(
            "attention.qk_norm",
            False,
            read=lambda normed: "head" if normed else "none",
            write=lambda norm: norm == "head",
        ),
        "attention_dropout": Field("attention.dropout", 0.0, unset=OPTIONAL),
        "rope_parameters": rope(fraction=0.5),
        "resid_pdrop": Field("block.dropout", 0.0, unset=OPTIONAL),
        "embd_pdrop": Written(ours="block.dropout"),
        "hidden_act": Field("feedforward.activation", "gelu_new", names=ACTIVATIONS),
        "vocab_size": Field("vocab_size"),
        "bos_token_id": Written(None),
        "eos_token_id": Written(None),
    }
    fixed: ClassVar[Settings] = {
        "attention.bias": True,
        "attention.out_bias": True,
        "block": BlockConfig(norm="layernorm", parallel=True, shared_norm=True),
        "feedforward.gated": False,
        "feedforward.bias": True,
        "head.bias": True,
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = decoder_config(model)
        names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "dense": "out"}
        names |= {"q_layernorm": "q_norm", "k_layernorm": "k_norm"}
        layer = [
            *linear("input_layernorm", "mixer_residual.before"),
            *(
                rule
                for theirs, ours in names.items()
                for rule in linear(f"self_attn.{theirs}", f"mixer.{ours}")
            ),
            *linear("mlp.fc1", "feedforward.up"),
            *linear("mlp.fc2", "feedforward.down"),
        ]
        return [
            Same("model.embed_tokens.weight", ("embedding.tokens.weight",)),
            *layered(c.num_layers, "model.layers.{}.", "blocks.{}.", layer),
            *linear("model.final_layernorm", "final"),
            head("lm_head.weight", tied=c.tie_embeddings),
            Same("lm_head.bias", ("head.bias",)),
        ]
