"""Phi-1, 1.5 and 2 (Li et al. 2023, arXiv 2309.05463): parallel branches after one norm, partial rotation."""

from __future__ import annotations

from dataclasses import replace

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.pretrained.attention_keys import read_rope, rope_parameters, write_rope
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_activation,
    read_head_dim,
    required_value,
    write_activation,
)
from archbench.architectures.pretrained.decoders.llama import check_width, decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, head, layered, linear

ROTATED = 0.5
"""Fraction of each head that is rotated, where config.json names none."""


class Phi(Checkpoint):
    """``PhiForCausalLM``."""

    backbone_class = Decoder
    model_types = ("phi",)
    ignored = (r"rotary_emb\.inv_freq",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        max_length = required_value(hf, "max_position_embeddings")
        rope = read_rope(hf, max_length=max_length)
        factors = {"partial_rotary_factor": hf.get("partial_rotary_factor", ROTATED), **rope_parameters(hf)}
        config = DecoderConfig(
            d_model=required_value(hf, "hidden_size"),
            d_ff=required_value(hf, "intermediate_size"),
            num_layers=required_value(hf, "num_hidden_layers"),
            norm_eps=hf.get("layer_norm_eps", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", False),
            attention=AttentionConfig(
                num_heads=required_value(hf, "num_attention_heads"),
                num_kv_heads=hf.get("num_key_value_heads"),
                head_dim=read_head_dim(hf),
                bias=True,
                out_bias=True,
                qk_norm="head" if hf.get("qk_layernorm") else "none",
                dropout=hf.get("attention_dropout") or 0.0,
            ),
            positions=replace(rope, fraction=factors["partial_rotary_factor"]),
            block=BlockConfig(
                norm="layernorm", parallel=True, shared_norm=True, dropout=hf.get("resid_pdrop") or 0.0
            ),
            feedforward=FeedForwardConfig(
                activation=read_activation(hf, "hidden_act", "gelu_new"), gated=False, bias=True
            ),
            head=HeadConfig(bias=True),
        )
        return Blueprint(
            backbone_class=Decoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=max_length,
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        check_width(model)
        c = decoder_config(model)
        rope = write_rope(c.positions, c.attention.head_dim or c.width // c.attention.num_heads)
        return {
            "architectures": ["PhiForCausalLM"],
            "model_type": "phi",
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_length,
            "hidden_size": c.width,
            "intermediate_size": c.dense_width,
            "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.attention.num_heads,
            "num_key_value_heads": c.attention.kv_heads,
            "qk_layernorm": c.attention.qk_norm == "head",
            "attention_dropout": c.attention.dropout,
            "resid_pdrop": c.block.dropout,
            "embd_pdrop": c.block.dropout,
            "hidden_act": write_activation(c.feedforward.activation),
            "layer_norm_eps": c.norm_eps,
            "tie_word_embeddings": c.tie_embeddings,
            "rope_parameters": rope | {"partial_rotary_factor": c.positions.fraction},
            "bos_token_id": None,
            "eos_token_id": None,
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
