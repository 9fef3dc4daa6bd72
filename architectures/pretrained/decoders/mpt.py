"""MPT (MosaicML 2023): ALiBi, no biases anywhere, fused q, k, v."""

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
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, Stacked, head, layered, linear


class MPT(Checkpoint):
    """``MptForCausalLM``, with a feed-forward of four times the width of the model."""

    backbone_class = Decoder
    model_types = ("mpt",)
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        attention = hf.get("attn_config") or {}
        supported_value(attention, "alibi", True, default=True)
        supported_value(attention, "alibi_bias_max", 8, default=8)
        supported_value(attention, "qk_ln", False, default=False)
        supported_value(attention, "clip_qkv", None)
        supported_value(hf, "logit_scale", None)
        supported_value(hf, "no_bias", True, default=True)
        if required_value(hf, "max_seq_len") == 1:
            raise ValueError(
                "config.json: max_seq_len=1 is not supported: with it the Hugging Face library computes "
                "without positions, whatever the length; with the length of the texts it takes ALiBi"
            )
        width = required_value(hf, "d_model")
        config = DecoderConfig(
            d_model=width,
            d_ff=4 * width,
            num_layers=required_value(hf, "n_layers"),
            norm_eps=hf.get("layer_norm_epsilon", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", True),
            attention=AttentionConfig(
                num_heads=required_value(hf, "n_heads"),
                scale=attention.get("softmax_scale"),
                dropout=attention.get("attn_pdrop") or 0.0,
            ),
            positions=PositionsConfig(kind="alibi"),
            block=BlockConfig(norm="layernorm_no_bias", dropout=hf.get("resid_pdrop") or 0.0),
            feedforward=FeedForwardConfig(activation="gelu", gated=False),
        )
        return Blueprint(
            backbone_class=Decoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf["max_seq_len"],
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        return {
            "architectures": ["MptForCausalLM"],
            "model_type": "mpt",
            "vocab_size": model.vocab_size,
            "max_seq_len": model.max_length,
            "d_model": c.width,
            "n_layers": c.num_layers,
            "n_heads": c.attention.num_heads,
            # attn_pdrop is an integer there, which cannot be a dropout probability.
            "attn_config": {"alibi": True, "softmax_scale": c.attention.scale},
            "layer_norm_epsilon": c.norm_eps,
            "tie_word_embeddings": c.tie_embeddings,
            "resid_pdrop": c.block.dropout,
            "emb_pdrop": c.block.dropout,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = decoder_config(model)
        layer = [
            Same("norm_1.weight", ("mixer_residual.before.weight",)),
            Stacked("attn.Wqkv.weight", ("mixer.q.weight", "mixer.k.weight", "mixer.v.weight")),
            *linear("attn.out_proj", "mixer.out"),
            Same("norm_2.weight", ("feedforward_residual.before.weight",)),
            *linear("ffn.up_proj", "feedforward.up"),
            *linear("ffn.down_proj", "feedforward.down"),
        ]
        return [
            Same("transformer.wte.weight", ("embedding.tokens.weight",)),
            *layered(c.num_layers, "transformer.blocks.{}.", "blocks.{}.", layer),
            Same("transformer.norm_f.weight", ("final.weight",)),
            head("lm_head.weight", tied=c.tie_embeddings),
        ]
