"""xLSTM 7B (Beck et al. 2025, arXiv 2503.13427) as ``xLSTMForCausalLM``: mLSTM and gated feed-forwards."""

from __future__ import annotations

import math

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.mixers.mlstm import MLSTMConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    OtherLayersError,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.jamba import hybrid_config
from archbench.architectures.pretrained.state_space.mamba import USUAL_LENGTH
from archbench.architectures.pretrained.tensor_rules import Rule, Same, layered

DEFAULTS: HFConfig = {
    "num_heads": 8,
    "norm_eps": 1e-6,
    "eps": 1e-6,
    "qk_dim_factor": 0.5,
    "v_dim_factor": 1.0,
    "ffn_proj_factor": 2.667,
    "ffn_round_up_to_multiple_of": 64,
    "gate_soft_cap": 15.0,
    "output_logit_soft_cap": 30.0,
}
"""Default values of keys in config.json."""
LAYER = {
    "norm_mlstm.weight": "mixer_residual.before.weight",
    "mlstm_layer.q.weight": "mixer.q.weight",
    "mlstm_layer.k.weight": "mixer.k.weight",
    "mlstm_layer.v.weight": "mixer.v.weight",
    "mlstm_layer.ogate_preact.weight": "mixer.gate.weight",
    "mlstm_layer.igate_preact.weight": "mixer.input_gate.weight",
    "mlstm_layer.igate_preact.bias": "mixer.input_gate.bias",
    "mlstm_layer.fgate_preact.weight": "mixer.forget_gate.weight",
    "mlstm_layer.fgate_preact.bias": "mixer.forget_gate.bias",
    "mlstm_layer.multihead_norm.weight": "mixer.norm_C",
    "mlstm_layer.out_proj.weight": "mixer.out.weight",
    "norm_ffn.weight": "feedforward_residual.before.weight",
    "ffn.proj_up_gate.weight": "feedforward.gate.weight",
    "ffn.proj_up.weight": "feedforward.up.weight",
    "ffn.proj_down.weight": "feedforward.down.weight",
}
"""Tensors of a block there, and our parameters."""


class XLSTM(Checkpoint):
    """``xLSTMForCausalLM``. Its head is never tied, regardless of ``tie_word_embeddings``."""

    backbone_class = Hybrid
    model_types = ("xlstm",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        width, count = (
            _either(hf, "hidden_size", "embedding_dim"),
            _either(hf, "num_blocks", "num_hidden_layers"),
        )
        hf = DEFAULTS | hf
        supported_value(hf, "use_bias", False, None)
        supported_value(hf, "weight_mode", "single", default="single")
        supported_value(hf, "inference_state_dtype", "float32", default="float32")
        config = HybridConfig(
            d_model=width,
            d_ff=_feedforward_width(hf, width),
            num_layers=count,
            norm_eps=hf["norm_eps"],
            layers=["mlstm"],
            mlstm=MLSTMConfig(
                num_heads=hf["num_heads"],
                expand_k=_channels(hf, "qk_dim_factor", width) / width,
                expand_v=_channels(hf, "v_dim_factor", width) / width,
                gate_cap=hf["gate_soft_cap"],
                normaliser_eps=hf["eps"],
            ),
            head=HeadConfig(softcap=hf["output_logit_soft_cap"]),
        )
        return Blueprint(
            backbone_class=Hybrid,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf.get("max_position_embeddings", USUAL_LENGTH),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = hybrid_config(model)
        if c.mixer_types != {"mlstm"}:
            raise OtherLayersError(f"layers of {', '.join(sorted(c.mixer_types))}, only mlstm")
        mixer = c.mlstm.resolved(c.width)
        for name, cap in (("mlstm.gate_cap", mixer.gate_cap), ("head.softcap", c.head.softcap)):
            if cap is None:
                raise ValueError(f"{name}=null, there is always one")
        return {
            "architectures": ["xLSTMForCausalLM"],
            "model_type": "xlstm",
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_length,  # not a key of theirs, which they keep
            "hidden_size": c.width,
            "embedding_dim": c.width,
            "num_hidden_layers": c.num_layers,
            "num_blocks": c.num_layers,
            "num_heads": mixer.num_heads,
            "norm_eps": c.norm_eps,
            "eps": mixer.normaliser_eps,
            "qk_dim_factor": _factor(round(mixer.expand_k * c.width), c.width),
            "v_dim_factor": _factor(round(mixer.expand_v * c.width), c.width),
            "ffn_proj_factor": _factor(c.dense_width, c.width),
            "ffn_round_up_to_multiple_of": 1,
            "gate_soft_cap": mixer.gate_cap,
            "output_logit_soft_cap": c.head.softcap,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        layer = [Same(hf_name, (name,)) for hf_name, name in LAYER.items()]
        return [
            Same("backbone.embeddings.weight", ("embedding.tokens.weight",)),
            *layered(hybrid_config(model).num_layers, "backbone.blocks.{}.", "blocks.{}.", layer),
            Same("backbone.out_norm.weight", ("final.weight",)),
            Same("lm_head.weight", ("head.weight",)),
        ]


def _either(hf: HFConfig, key: str, other_key: str) -> int:
    """Return a size that has two names. Raises ValueError where they differ."""
    if hf.get(key) is None:
        return int(required_value(hf, other_key))
    if hf.get(other_key) not in (None, hf[key]):
        raise ValueError(f"config.json: {key}={hf[key]} and {other_key}={hf[other_key]} must be equal")
    return int(hf[key])


def _channels(hf: HFConfig, key: str, width: int) -> int:
    """Return the width of all heads together. Raises ValueError where it does not divide."""
    channels, heads = int(width * hf[key]), hf["num_heads"]
    if heads < 1:
        raise ValueError(f"config.json: num_heads={heads} must be at least 1")
    if not channels or channels % heads:
        raise ValueError(
            f"config.json: {key}={hf[key]} gives {channels} channels, which must be a multiple of "
            f"num_heads={heads}"
        )
    return channels


def _feedforward_width(hf: HFConfig, width: int) -> int:
    """Return the hidden width, rounded as there: in floating point."""
    multiple = hf["ffn_round_up_to_multiple_of"]
    if multiple < 1:
        raise ValueError(f"config.json: ffn_round_up_to_multiple_of={multiple} must be positive")
    return int((width * hf["ffn_proj_factor"] + multiple - 1) // multiple * multiple)


def _factor(channels: int, width: int) -> float:
    """Return the factor that results in ``channels`` when the product with ``width`` is rounded down."""
    factor = channels / width
    return factor if int(width * factor) == channels else math.nextafter(factor, math.inf)
