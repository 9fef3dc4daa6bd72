"""xLSTM 7B (Beck et al. 2025, arXiv 2503.13427) as ``xLSTMForCausalLM``: mLSTM and gated feed-forwards."""

from __future__ import annotations

import math
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint, OtherLayersError
from archbench.architectures.pretrained.fields import (
    TOKENS,
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
from archbench.architectures.pretrained.state_space.jamba import hybrid_config
from archbench.architectures.pretrained.state_space.mamba import USUAL_LENGTH
from archbench.architectures.pretrained.tensor_rules import Rule, Same, layered

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


def read_sizes(hf: HFConfig) -> Settings:
    """Return the sizes that have two names."""
    return {
        "d_model": _either(hf, "hidden_size", "embedding_dim"),
        "num_layers": _either(hf, "num_blocks", "num_hidden_layers"),
    }


def write_sizes(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the sizes that have two names. Raises ValueError for other layers than mLSTM."""
    if config.mixer_types != {"mlstm"}:
        raise OtherLayersError(f"layers of {', '.join(sorted(config.mixer_types))}, only mlstm")
    return dict.fromkeys(("hidden_size", "embedding_dim"), config.width) | dict.fromkeys(
        ("num_blocks", "num_hidden_layers"), config.num_layers
    )


def read_widths(hf: HFConfig) -> Settings:
    """Return the widths of keys, values and feed-forwards."""
    width = _either(hf, "hidden_size", "embedding_dim")
    return {
        "d_ff": _feedforward_width(hf, width),
        "mlstm.expand_k": _channels(hf, "qk_dim_factor", width) / width,
        "mlstm.expand_v": _channels(hf, "v_dim_factor", width) / width,
    }


def write_widths(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the factors of the width of the model."""
    mixer, width = config.mlstm.resolved(config.width), config.width
    return {
        "qk_dim_factor": _factor(round(mixer.expand_k * width), width),
        "v_dim_factor": _factor(round(mixer.expand_v * width), width),
        "ffn_proj_factor": _factor(config.dense_width, width),
        "ffn_round_up_to_multiple_of": 1,
    }


def check_caps(config: HybridConfig) -> None:
    """Raise ValueError for models without soft caps."""
    for name, cap in (("mlstm.gate_cap", config.mlstm.gate_cap), ("head.softcap", config.head.softcap)):
        if cap is None:
            raise ValueError(f"{name}=null, there is always one")


class XLSTM(Checkpoint):
    """``xLSTMForCausalLM``. Its head is never tied, regardless of ``tie_word_embeddings``."""

    backbone_class = Hybrid
    model_types = ("xlstm",)
    architecture = "xLSTMForCausalLM"
    fields: ClassVar[Table] = {
        "hidden_size": Part(read_sizes, write_sizes),
        "embedding_dim": Beside(),
        "num_blocks": Beside(),
        "num_hidden_layers": Beside(),
        "use_bias": Only(False, others=(None,)),
        "weight_mode": Only("single"),
        "inference_state_dtype": Only("float32"),
        "ffn_proj_factor": Part(read_widths, write_widths, default=2.667),
        "ffn_round_up_to_multiple_of": Beside(64),
        "qk_dim_factor": Beside(0.5),
        "v_dim_factor": Beside(1.0),
        "norm_eps": Field("norm_eps", 1e-6),
        "num_heads": Field("mlstm.num_heads", 8),
        "gate_soft_cap": Field("mlstm.gate_cap", 15.0, check=check_caps),
        "eps": Field("mlstm.normaliser_eps", 1e-6),
        "output_logit_soft_cap": Field("head.softcap", 30.0),
        "tie_word_embeddings": Written(False),
        "vocab_size": Field("vocab_size"),
        "max_position_embeddings": Field("max_length", USUAL_LENGTH),  # not theirs, which they keep
        **TOKENS,
    }
    fixed: ClassVar[Settings] = {"layers": ["mlstm"]}

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        layer = [Same(hf_name, (name,)) for hf_name, name in LAYER.items()]
        return [
            Same("backbone.embeddings.weight", ("embedding.tokens.weight",)),
            *layered(hybrid_config(model).num_layers, "backbone.blocks.{}.", "blocks.{}.", layer),
            Same("backbone.out_norm.weight", ("final.weight",)),
            Same("lm_head.weight", ("head.weight",)),
        ]
