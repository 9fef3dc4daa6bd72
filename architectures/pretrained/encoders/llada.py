"""Masked diffusion checkpoints: LLaDA (arXiv 2502.09992) is Llama and Dream (arXiv 2508.15487) Qwen2, without
the causal mask. LLaDA's files have the names of OLMo; Dream predicts a token one position before it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.decoders.llama import decoder_config
from archbench.architectures.pretrained.decoders.qwen import Qwen2
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
FIXED: HFConfig = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
}
"""Settings of LLaDA's configuration that have this value in all of its checkpoints."""
LEFT_OUT: HFConfig = {
    "block_type": "sequential",
    "activation_type": "swiglu",
    "layer_norm_type": "default",
    "rope": False,
}
"""Defaults of LLaDA's class for keys missing in config.json, where they differ from ``FIXED``."""


class LLaDA(Checkpoint):
    """``LLaDAModelLM``."""

    backbone_class = MaskedDiffusion
    model_types = ("llada",)
    tie_key = "weight_tying"

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        for key, value in FIXED.items():
            left_out = hf.get(key) is None  # null is the same as a key left out
            supported_value({} if left_out else hf, key, value, default=LEFT_OUT.get(key, value))
        width = required_value(hf, "d_model")
        config = MaskedDiffusionConfig(
            d_model=width,
            d_ff=hf.get("mlp_hidden_size") or hf.get("mlp_ratio", 4) * width,
            num_layers=required_value(hf, "n_layers"),
            norm_eps=hf.get("rms_norm_eps", 1e-5),
            tie_embeddings=hf.get("weight_tying", True),
            attention=AttentionConfig(
                num_heads=required_value(hf, "n_heads"),
                num_kv_heads=_key_value_heads(hf),
                bias=hf.get("include_qkv_bias") or False,
            ),
            positions=PositionsConfig(kind="rope", base=float(hf.get("rope_theta", 10000.0))),
        )
        return Blueprint(
            backbone_class=MaskedDiffusion,
            config=config,
            vocab_size=hf.get("embedding_size") or required_value(hf, "vocab_size"),
            max_length=required_value(hf, "max_sequence_length"),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        a = c.attention
        return FIXED | {
            "architectures": ["LLaDAModelLM"],
            "model_type": "llada",
            "d_model": c.width,
            "n_heads": a.num_heads,
            "n_kv_heads": a.kv_heads,
            "n_layers": c.num_layers,
            "mlp_hidden_size": c.d_ff or c.feedforward.standard_width(c.width),
            "rms_norm_eps": c.norm_eps,
            "rope_theta": c.positions.base,
            "include_qkv_bias": a.bias,
            "weight_tying": c.tie_embeddings,
            "vocab_size": model.vocab_size,
            "embedding_size": model.vocab_size,
            "max_sequence_length": model.max_length,
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


def _key_value_heads(hf: HFConfig) -> int | None:
    """Return the heads of keys and values, which two keys of config.json tell."""
    heads, one = hf.get("n_kv_heads"), hf.get("multi_query_attention")
    told = heads if one is None else 1 if one else required_value(hf, "n_heads")
    if heads not in (None, told):
        raise ValueError(f"config.json: multi_query_attention={one} does not go with n_kv_heads={heads}")
    return told


class Dream(Qwen2):
    """``DreamModel``."""

    backbone_class = MaskedDiffusion  # type: ignore[assignment]
    model_types = ("Dream",)
    architecture = "DreamModel"
    defaults: ClassVar[HFConfig] = Qwen2.defaults | {"max_position_embeddings": 32768}

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        for key in ("use_sliding_window", "use_mrope"):
            supported_value(hf, key, False, None, default=False)
        blueprint = super().read_config(hf)
        assert isinstance(blueprint.config, DecoderConfig)
        values = {field.name: getattr(blueprint.config, field.name) for field in fields(blueprint.config)}
        return Blueprint(
            backbone_class=MaskedDiffusion,
            config=MaskedDiffusionConfig(**values, shifted=True),
            vocab_size=blueprint.vocab_size,
            max_length=blueprint.max_length,
        )
