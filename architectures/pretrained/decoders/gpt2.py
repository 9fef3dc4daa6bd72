"""GPT-2 (Radford et al. 2019): learned positions, pre-norm LayerNorm, fused q, k, v stored as (in, out)."""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_activation,
    required_value,
    supported_value,
    write_activation,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import (
    Rule,
    Same,
    StackedTransposed,
    Transposed,
    head,
    layered,
    linear,
)


class GPT2(Checkpoint):
    """``GPT2LMHeadModel``."""

    backbone_class = Decoder
    model_types = ("gpt2",)
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
    }
    ignored = (r"attn\.(bias|masked_bias)", r"crossattention\.bias")

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "scale_attn_weights", True, default=True)
        supported_value(hf, "scale_attn_by_inverse_layer_idx", False, default=False)
        supported_value(hf, "add_cross_attention", False, default=False)
        config = DecoderConfig(
            d_model=required_value(hf, "n_embd"),
            d_ff=hf.get("n_inner") or 4 * hf["n_embd"],
            num_layers=required_value(hf, "n_layer"),
            norm_eps=hf.get("layer_norm_epsilon", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", True),
            attention=AttentionConfig(
                num_heads=required_value(hf, "n_head"),
                bias=True,
                out_bias=True,
                dropout=hf.get("attn_pdrop", 0.1),
            ),
            positions=PositionsConfig(kind="learned"),
            block=BlockConfig(norm="layernorm", dropout=hf.get("resid_pdrop", 0.1)),
            feedforward=FeedForwardConfig(
                activation=read_activation(hf, "activation_function", "gelu_new"), gated=False, bias=True
            ),
        )
        return Blueprint(
            backbone_class=Decoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=required_value(hf, "n_positions"),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, Decoder)
        c = model.config
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": model.vocab_size,
            "n_positions": model.max_length,
            "n_embd": c.width,
            "n_inner": c.d_ff or c.feedforward.standard_width(c.width),
            "n_layer": c.num_layers,
            "n_head": c.attention.num_heads,
            "activation_function": write_activation(c.feedforward.activation),
            "layer_norm_epsilon": c.norm_eps,
            "tie_word_embeddings": c.tie_embeddings,
            "attn_pdrop": c.attention.dropout,
            "resid_pdrop": c.block.dropout,
            "embd_pdrop": c.block.dropout,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Decoder)
        layer = [
            *linear("ln_1", "mixer_residual.before"),
            *linear("attn.c_attn", "mixer.q", "mixer.k", "mixer.v", make=StackedTransposed),
            *linear("attn.c_proj", "mixer.out", make=Transposed),
            *linear("ln_2", "feedforward_residual.before"),
            *linear("mlp.c_fc", "feedforward.up", make=Transposed),
            *linear("mlp.c_proj", "feedforward.down", make=Transposed),
        ]
        return [
            Same("transformer.wte.weight", ("embedding.tokens.weight",)),
            Same("transformer.wpe.weight", ("embedding.positions",)),
            *layered(model.config.num_layers, "transformer.h.{}.", "blocks.{}.", layer),
            *linear("transformer.ln_f", "final"),
            head("lm_head.weight", tied=model.config.tie_embeddings),
        ]

    @classmethod
    def current_name(cls, name: str) -> str:
        """Add the prefix: the files of the original GPT-2 have no ``transformer.`` before their names."""
        return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
