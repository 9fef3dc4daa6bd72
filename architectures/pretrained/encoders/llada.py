"""Masked diffusion checkpoints: LLaDA (arXiv 2502.09992) is Llama and Dream (arXiv 2508.15487) Qwen2, without
the causal mask. LLaDA's files have the names of OLMo; Dream predicts a token one position before it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.decoders.qwen import Qwen2
from archbench.architectures.pretrained.fields import (
    ABSENT,
    OPTIONAL,
    Beside,
    Field,
    Only,
    Part,
    Settings,
    Table,
    Written,
    required_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, head, layered, linear

LAYER: tuple[Rule, ...] = (
    Same("attn_norm.weight", ("mixer_residual.before.weight",)),
    Same("ff_norm.weight", ("feedforward_residual.before.weight",)),
    *linear("q_proj", "mixer.q"),
    *linear("k_proj", "mixer.k"),
    *linear("v_proj", "mixer.v"),
    *linear("attn_out", "mixer.out"),
    *linear("ff_proj", "feedforward.gate"),
    *linear("up_proj", "feedforward.up"),
    *linear("ff_out", "feedforward.down"),
)


def fixed(value: Any, default: Any = ABSENT) -> Only:
    """Return the row of a key that has one value in all checkpoints; null is the same as a missing key."""
    return Only(value, default=default, unset=(None,), written=True)


def read_kv_heads(hf: HFConfig) -> Settings:
    """Return the heads of keys and values, which two keys of config.json tell."""
    heads, one = hf.get("n_kv_heads"), hf.get("multi_query_attention")
    told = heads if one is None else 1 if one else required_value(hf, "n_heads")
    if heads not in (None, told):
        raise ValueError(f"config.json: multi_query_attention={one} does not go with n_kv_heads={heads}")
    return {"attention.num_kv_heads": told}


def read_vocabulary(hf: HFConfig) -> Settings:
    """Return the rows of the token table, which may be more than the vocabulary."""
    return {"vocab_size": hf.get("embedding_size") or required_value(hf, "vocab_size")}


class LLaDA(Checkpoint):
    """``LLaDAModelLM``."""

    backbone_class = MaskedDiffusion
    model_types = ("llada",)
    tie_key = "weight_tying"
    architecture = "LLaDAModelLM"
    fields: ClassVar[Table] = {
        "block_type": fixed("llama", default="sequential"),
        "activation_type": fixed("silu", default="swiglu"),
        "layer_norm_type": fixed("rms", default="default"),
        "rope": fixed(True, default=False),
        "alibi": fixed(False),
        "include_bias": fixed(False),
        "attention_layer_norm": fixed(False),
        "input_emb_norm": fixed(False),
        "scale_logits": fixed(False),
        "layer_norm_with_affine": fixed(True),
        "bias_for_layer_norm": fixed(False),
        "block_group_size": fixed(1),
        "d_model": Field("d_model"),
        "mlp_hidden_size": Field("d_ff", lambda hf: hf["mlp_ratio"] * hf["d_model"], unset=OPTIONAL),
        "mlp_ratio": Beside(4),
        "n_layers": Field("num_layers"),
        "rms_norm_eps": Field("norm_eps", 1e-5),
        "weight_tying": Field("tie_embeddings", True),
        "n_heads": Field("attention.num_heads"),
        "multi_query_attention": Beside(),
        "n_kv_heads": Part(read_kv_heads, lambda config, keys: {"n_kv_heads": config.attention.kv_heads}),
        "include_qkv_bias": Field("attention.bias", False, unset=OPTIONAL),
        "rope_theta": Field("positions.base", 10000.0, read=float),
        "vocab_size": Written(ours="vocab_size"),
        "embedding_size": Part(read_vocabulary, lambda config, keys: {"embedding_size": keys["vocab_size"]}),
        "max_sequence_length": Field("max_length"),
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = decoder_config(model)
        return [
            Same("model.transformer.wte.weight", ("embedding.tokens.weight",)),
            *layered(c.num_layers, "model.transformer.blocks.{}.", "blocks.{}.", LAYER),
            Same("model.transformer.ln_f.weight", ("final.weight",)),
            head("model.transformer.ff_out.weight", tied=c.tie_embeddings),
        ]


UNSUPPORTED: Table = {key: Only(False, others=(None,)) for key in ("use_sliding_window", "use_mrope")}


class Dream(Qwen2):
    """``DreamModel``."""

    backbone_class = MaskedDiffusion  # type: ignore[assignment]
    model_types = ("Dream",)
    architecture = "DreamModel"
    fields = (
        UNSUPPORTED
        | Qwen2.fields
        | UNSUPPORTED
        | {"max_position_embeddings": Field("max_length", 32768, required=True)}
    )
    fixed: ClassVar[Settings] = {"shifted": True}
