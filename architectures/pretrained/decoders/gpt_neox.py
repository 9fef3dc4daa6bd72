"""GPT-NeoX and Pythia (Black et al. 2022, arXiv 2204.06745): parallel branches, partial rotation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.pretrained.attention_keys import read_rope, rope_parameters, write_rope
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    OPTIONAL,
    Beside,
    Field,
    Part,
    Settings,
    Table,
    Written,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import ByHead, Rule, Same, head, layered, linear


def read_odd_heads(hf: HFConfig) -> Settings:
    """Return the width of heads that is odd: only a part of a head turns in pairs."""
    width, heads = hf["hidden_size"], hf["num_attention_heads"]
    odd = width % heads == 0 and width // heads % 2 == 1
    return {"attention.head_dim": width // heads if odd else None}


def read_positions(hf: HFConfig) -> Settings:
    """Return the rotary positions, in the keys of older files too."""
    rope = read_rope(hf | {"rope_theta": hf["rotary_emb_base"]}, max_length=hf["max_position_embeddings"])
    factors = {"partial_rotary_factor": hf["rotary_pct"], **rope_parameters(hf)}
    return {"positions": replace(rope, fraction=factors["partial_rotary_factor"])}


def write_positions(config: DecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the rotary positions."""
    rope = write_rope(config.positions, config.width // config.attention.num_heads)
    return {"rope_parameters": rope | {"partial_rotary_factor": config.positions.fraction}}


class GPTNeoX(Checkpoint):
    """``GPTNeoXForCausalLM``."""

    backbone_class = Decoder
    model_types = ("gpt_neox",)
    architecture = "GPTNeoXForCausalLM"
    ignored = (r"attention\.(bias|masked_bias)", r"rotary_emb\.inv_freq")
    fields: ClassVar[Table] = {
        "max_position_embeddings": Field("max_length"),
        "rotary_emb_base": Beside(10000.0),
        "rotary_pct": Beside(0.25),
        "rope_parameters": Part(read_positions, write_positions),
        "hidden_size": Field("d_model"),
        "num_attention_heads": Field("attention.num_heads"),
        "head_dim": Part(read_odd_heads),
        "intermediate_size": Field("d_ff"),
        "num_hidden_layers": Field("num_layers"),
        "layer_norm_eps": Field("norm_eps", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", False),
        "attention_bias": Field("attention.bias", True, also="attention.out_bias"),
        "attention_dropout": Field("attention.dropout", 0.0, unset=OPTIONAL),
        "use_parallel_residual": Field("block.parallel", True),
        "hidden_dropout": Field("block.dropout", 0.0, unset=OPTIONAL),
        "hidden_act": Field("feedforward.activation", "gelu", names=ACTIVATIONS),
        "vocab_size": Field("vocab_size"),
        "bos_token_id": Written(None),
        "eos_token_id": Written(None),
    }
    fixed: ClassVar[Settings] = {
        "block.norm": "layernorm",
        "feedforward.gated": False,
        "feedforward.bias": True,
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = decoder_config(model)
        by_head = partial(ByHead, num_heads=c.attention.num_heads)
        layer = [
            *linear("input_layernorm", "mixer_residual.before"),
            *linear("attention.query_key_value", "mixer.q", "mixer.k", "mixer.v", make=by_head),
            *linear("attention.dense", "mixer.out"),
            *linear("post_attention_layernorm", "feedforward_residual.before"),
            *linear("mlp.dense_h_to_4h", "feedforward.up"),
            *linear("mlp.dense_4h_to_h", "feedforward.down"),
        ]
        return [
            Same("gpt_neox.embed_in.weight", ("embedding.tokens.weight",)),
            *layered(c.num_layers, "gpt_neox.layers.{}.", "blocks.{}.", layer),
            *linear("gpt_neox.final_layer_norm", "final"),
            head("embed_out.weight", tied=c.tie_embeddings),
        ]

    @classmethod
    def current_name(cls, name: str) -> str:
        """Rename the head, which has the name of its module in some files."""
        return "embed_out.weight" if name == "lm_head.weight" else name
