"""GPT-NeoX and Pythia (Black et al. 2022, arXiv 2204.06745): parallel branches, partial rotation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.pretrained.attention_keys import read_rope, rope_parameters, write_rope
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_activation,
    required_value,
    write_activation,
)
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import ByHead, Rule, Same, head, layered, linear


class GPTNeoX(Checkpoint):
    """``GPTNeoXForCausalLM``."""

    backbone_class = Decoder
    model_types = ("gpt_neox",)
    ignored = (r"attention\.(bias|masked_bias)", r"rotary_emb\.inv_freq")

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        biased = hf.get("attention_bias", True)
        max_length = required_value(hf, "max_position_embeddings")
        base = hf.get("rotary_emb_base", 10000.0)
        rope = read_rope(hf | {"rope_theta": base}, max_length=max_length)
        factors = {"partial_rotary_factor": hf.get("rotary_pct", 0.25), **rope_parameters(hf)}
        width, heads = required_value(hf, "hidden_size"), required_value(hf, "num_attention_heads")
        odd = width % heads == 0 and width // heads % 2 == 1  # only a part of a head turns in pairs
        config = DecoderConfig(
            d_model=width,
            d_ff=required_value(hf, "intermediate_size"),
            num_layers=required_value(hf, "num_hidden_layers"),
            norm_eps=hf.get("layer_norm_eps", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", False),
            attention=AttentionConfig(
                num_heads=heads,
                head_dim=width // heads if odd else None,
                bias=biased,
                out_bias=biased,
                dropout=hf.get("attention_dropout") or 0.0,
            ),
            positions=replace(rope, fraction=factors["partial_rotary_factor"]),
            block=BlockConfig(
                norm="layernorm",
                parallel=hf.get("use_parallel_residual", True),
                dropout=hf.get("hidden_dropout") or 0.0,
            ),
            feedforward=FeedForwardConfig(
                activation=read_activation(hf, "hidden_act", "gelu"), gated=False, bias=True
            ),
        )
        return Blueprint(
            backbone_class=Decoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=max_length,
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        rope = write_rope(c.positions, c.width // c.attention.num_heads)
        return {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_length,
            "hidden_size": c.width,
            "intermediate_size": c.d_ff or c.feedforward.standard_width(c.width),
            "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.attention.num_heads,
            "attention_bias": c.attention.bias,
            "attention_dropout": c.attention.dropout,
            "hidden_dropout": c.block.dropout,
            "hidden_act": write_activation(c.feedforward.activation),
            "layer_norm_eps": c.norm_eps,
            "tie_word_embeddings": c.tie_embeddings,
            "use_parallel_residual": c.block.parallel,
            "rope_parameters": rope | {"partial_rotary_factor": c.positions.fraction},
            "bos_token_id": None,
            "eos_token_id": None,
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
