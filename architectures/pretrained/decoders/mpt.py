"""MPT (MosaicML 2023): ALiBi, no biases anywhere, fused q, k, v."""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.fields import (
    OPTIONAL,
    Field,
    Only,
    Part,
    Settings,
    Table,
    Written,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, Stacked, head, layered, linear


def read_attention(hf: HFConfig) -> Settings:
    """Return the settings of ``attn_config``."""
    attention = hf.get("attn_config") or {}
    supported_value(attention, "alibi", True, default=True)
    supported_value(attention, "alibi_bias_max", 8, default=8)
    supported_value(attention, "qk_ln", False, default=False)
    supported_value(attention, "clip_qkv", None)
    return {
        "attention.scale": attention.get("softmax_scale"),
        "attention.dropout": attention.get("attn_pdrop") or 0.0,
    }


def write_attention(config: DecoderConfig, keys: HFConfig) -> HFConfig:
    """Return ``attn_config``. Its ``attn_pdrop`` is an integer, which cannot be a dropout probability."""
    return {"attn_config": {"alibi": True, "softmax_scale": config.attention.scale}}


def check_length(length: int) -> int:
    """Return the length. Raises ValueError for one without positions there."""
    if length == 1:
        raise ValueError(
            "config.json: max_seq_len=1 is not supported: with it the Hugging Face library computes "
            "without positions, whatever the length; with the length of the texts it takes ALiBi"
        )
    return length


class MPT(Checkpoint):
    """``MptForCausalLM``, with a feed-forward of four times the width of the model."""

    backbone_class = Decoder
    model_types = ("mpt",)
    architecture = "MptForCausalLM"
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
    fields: ClassVar[Table] = {
        "attn_config": Part(read_attention, write_attention),
        "logit_scale": Only(None),
        "no_bias": Only(True),
        "max_seq_len": Field("max_length", read=check_length),
        "d_model": Field("d_model"),
        "expansion_ratio": Field("d_ff", lambda hf: 4 * hf["d_model"], ignored=True, written=False),
        "n_layers": Field("num_layers"),
        "layer_norm_epsilon": Field("norm_eps", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "n_heads": Field("attention.num_heads"),
        "resid_pdrop": Field("block.dropout", 0.0, unset=OPTIONAL),
        "emb_pdrop": Written(ours="block.dropout"),
        "vocab_size": Field("vocab_size"),
    }
    fixed: ClassVar[Settings] = {
        "positions.kind": "alibi",
        "block.norm": "layernorm_no_bias",
        "feedforward.activation": "gelu",
        "feedforward.gated": False,
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
