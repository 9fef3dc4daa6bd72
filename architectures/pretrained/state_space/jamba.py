"""Jamba (Lieber et al. 2024, arXiv 2403.19887): Mamba, attention without positions, and experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.decoders.moe import BALANCE
from archbench.architectures.pretrained.fields import (
    HEAD_DIM,
    TOKENS,
    Beside,
    Condition,
    Field,
    Only,
    Part,
    Settings,
    Table,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.mamba import RANK, SELECTIVE, times
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule, Same, expert_rules, head, linear

HYBRID: Table = {
    "hidden_act": Only("silu", written=True),
    "hidden_size": Field("d_model"),
    "intermediate_size": Field("d_ff"),
    "num_hidden_layers": Field("num_layers"),
    "rms_norm_eps": Field("norm_eps", 1e-6),
    "tie_word_embeddings": Field("tie_embeddings", False),
    "num_attention_heads": Field("attention.num_heads"),
    "num_key_value_heads": Field("attention.num_kv_heads", 8),
    "head_dim": Field("attention.head_dim", None),
    "attention_dropout": Field("attention.dropout", 0.0),
    "vocab_size": Field("vocab_size"),
    "max_position_embeddings": Field("max_length"),
    **TOKENS,
}
"""Keys that hybrids have."""
MAMBA: tuple[Rule, ...] = (
    *(rule.within("mamba.", "mixer.") for rule in SELECTIVE),
    Same("mamba.dt_layernorm.weight", ("mixer.norms.0.weight",)),
    Same("mamba.b_layernorm.weight", ("mixer.norms.1.weight",)),
    Same("mamba.c_layernorm.weight", ("mixer.norms.2.weight",)),
)
FEEDFORWARD: tuple[Rule, ...] = (
    Same("input_layernorm.weight", ("mixer_residual.before.weight",)),
    Same("pre_ff_layernorm.weight", ("feedforward_residual.before.weight",)),
    *linear("feed_forward.gate_proj", "feedforward.gate"),
    *linear("feed_forward.up_proj", "feedforward.up"),
    *linear("feed_forward.down_proj", "feedforward.down"),
)


def _read_period(hf: HFConfig, name: str, num_layers: int, types: tuple[str, str]) -> list[str]:
    """Return a pattern with the first type once in each period, at the offset, and the second elsewhere."""
    period, offset = hf[f"{name}_layer_period"], hf[f"{name}_layer_offset"]
    return compress_pattern([types[0] if i % period == offset else types[1] for i in range(num_layers)])


def _write_period(name: str, chosen: list[bool]) -> dict[str, int]:
    """Return the period and the offset of the chosen layers."""
    places = [index for index, is_chosen in enumerate(chosen) if is_chosen] or [len(chosen)]
    later = places[1] if len(places) > 1 else places[0] + len(chosen) + 1
    return {f"{name}_layer_period": later - places[0], f"{name}_layer_offset": places[0]}


def read_mixers(hf: HFConfig) -> Settings:
    """Return the layers of attention and of Mamba."""
    return {"layers": _read_period(hf, "attn", hf["num_hidden_layers"], ("attention", "mamba"))}


def write_mixers(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the period and the offset of the layers of attention."""
    return _write_period("attn", [kind == "attention" for kind in config.layer_types])


def read_feedforwards(hf: HFConfig) -> Settings:
    """Return the layers with experts."""
    if hf["num_experts"] == 1:
        return {"feedforwards": ["dense"]}
    return {"feedforwards": _read_period(hf, "expert", hf["num_hidden_layers"], ("experts", "dense"))}


def write_feedforwards(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the period and the offset of the layers with experts."""
    return _write_period("expert", [kind == "experts" for kind in config.feedforward_types])


def read_channels(hf: HFConfig) -> Settings:
    """Return the channels of Mamba."""
    return {"mamba.d_inner": hf["mamba_expand"] * hf["hidden_size"]}


def write_channels(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the multiple of the width that the channels are."""
    return {"mamba_expand": times(config.mamba.resolved(config.width).d_inner, config.width)}


def read_experts(hf: HFConfig) -> Settings:
    """Return the number of experts; a single one is a dense layer."""
    if hf["num_experts"] == 1:
        return {}
    return {
        "experts.num_experts": hf["num_experts"],
        "experts.experts_per_token": hf["num_experts_per_tok"],
        "experts.renormalise": False,
        "experts.balance": "all_layers",
    }


def write_experts(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the number of experts, one where all layers are dense."""
    experts = config.experts
    sparse = "experts" in config.feedforward_types
    return {
        "num_experts": experts.num_experts if sparse else 1,
        "num_experts_per_tok": experts.experts_per_token if sparse else 1,
    }


SPARSE = Condition(reads=lambda hf: hf["num_experts"] != 1, writes=lambda config: True)


class Jamba(Checkpoint):
    """``JambaForCausalLM``."""

    backbone_class = Hybrid
    model_types = ("jamba",)
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    architecture = "JambaForCausalLM"
    fields = HYBRID | {
        "sliding_window": Only(None),
        "head_dim": HEAD_DIM,
        "attn_layer_period": Part(read_mixers, write_mixers, default=8),
        "attn_layer_offset": Beside(4),
        "expert_layer_period": Part(read_feedforwards, write_feedforwards, default=2),
        "expert_layer_offset": Beside(1),
        "mamba_d_state": Field("mamba.d_state", 16),
        "mamba_d_conv": Field("mamba.conv_width", 4),
        "mamba_expand": Part(read_channels, write_channels, default=2),
        "mamba_dt_rank": replace(RANK, ours="mamba.dt_rank"),
        "mamba_conv_bias": Field("mamba.conv_bias", True),
        "mamba_proj_bias": Field("mamba.bias", False),
        "num_experts": Part(read_experts, write_experts, default=16),
        "num_experts_per_tok": Beside(2),
        **BALANCE,
        "output_router_logits": replace(BALANCE["output_router_logits"], when=SPARSE),
    }
    fixed: ClassVar[Settings] = {"positions.kind": "none", "mamba.selection_norm": True}

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = hybrid_config(model)
        experts = expert_rules(c.experts.num_experts, "feed_forward.experts.{}")
        router = Same("feed_forward.router.weight", ("feedforward.router.weight",))
        return hybrid_rules(model, {"attention": ATTENTION, "mamba": MAMBA}, [router, *experts])


def hybrid_config(model: Backbone) -> HybridConfig:
    """Return the configuration of a hybrid."""
    assert isinstance(model, Hybrid)
    return model.config


def hybrid_rules(
    model: Backbone, mixers: Mapping[str, Sequence[Rule]], feedforward: Sequence[Rule] = ()
) -> list[Rule]:
    """Return the rules of a hybrid; ``mixers`` are the rules of each layer type, such as ``mamba``."""
    c = hybrid_config(model)
    rules: list[Rule] = [Same("model.embed_tokens.weight", ("embedding.tokens.weight",))]
    for index, kind in enumerate(c.layer_types):
        layer = [*mixers[kind], *FEEDFORWARD, *feedforward]
        rules += [rule.within(f"model.layers.{index}.", f"blocks.{index}.") for rule in layer]
    return [
        *rules,
        Same("model.final_layernorm.weight", ("final.weight",)),
        head("lm_head.weight", tied=c.tie_embeddings),
    ]
