"""Jamba (Lieber et al. 2024, arXiv 2403.19887): Mamba, attention without positions, and experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.mixers.mamba import SelectiveConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_head_dim,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.decoders.moe import read_balance, write_balance
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.mamba import SELECTIVE, times
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule, Same, expert_rules, head, linear

DEFAULTS: HFConfig = {
    "num_key_value_heads": 8,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": "auto",
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
"""Default values of keys in config.json."""
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


class Jamba(Checkpoint):
    """``JambaForCausalLM``."""

    backbone_class = Hybrid
    model_types = ("jamba",)
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = DEFAULTS | hf
        supported_value(hf, "hidden_act", "silu", default="silu")
        supported_value(hf, "sliding_window", None)
        num_layers, width = required_value(hf, "num_hidden_layers"), required_value(hf, "hidden_size")
        rank = hf["mamba_dt_rank"]
        dense = hf["num_experts"] == 1
        config = HybridConfig(
            d_model=width,
            d_ff=required_value(hf, "intermediate_size"),
            num_layers=num_layers,
            norm_eps=hf["rms_norm_eps"],
            tie_embeddings=hf["tie_word_embeddings"],
            layers=_read_period(hf, "attn", num_layers, ("attention", "mamba")),
            feedforwards=["dense"] if dense else _read_period(hf, "expert", num_layers, ("experts", "dense")),
            attention=AttentionConfig(
                num_heads=required_value(hf, "num_attention_heads"),
                num_kv_heads=hf["num_key_value_heads"],
                head_dim=read_head_dim(hf),
                dropout=hf["attention_dropout"],
            ),
            positions=PositionsConfig(kind="none"),
            mamba=SelectiveConfig(
                d_inner=hf["mamba_expand"] * width,
                d_state=hf["mamba_d_state"],
                conv_width=hf["mamba_d_conv"],
                conv_bias=hf["mamba_conv_bias"],
                bias=hf["mamba_proj_bias"],
                dt_rank=None if rank == "auto" else rank,
                selection_norm=True,
            ),
            experts=ExpertsConfig()
            if dense
            else ExpertsConfig(
                num_experts=hf["num_experts"],
                experts_per_token=hf["num_experts_per_tok"],
                renormalise=False,
                balance="all_layers",
                balance_coefficient=read_balance(hf),
            ),
        )
        return hybrid_blueprint(hf, config)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = hybrid_config(model)
        mamba = c.mamba.resolved(c.width)
        assert mamba.d_inner is not None
        experts = "experts" in c.feedforward_types
        return {
            **common_keys(model, "JambaForCausalLM", "jamba"),
            **_write_period("attn", [kind == "attention" for kind in c.layer_types]),
            **_write_period("expert", [kind == "experts" for kind in c.feedforward_types]),
            "num_experts": c.experts.num_experts if experts else 1,
            "num_experts_per_tok": c.experts.experts_per_token if experts else 1,
            **write_balance(c.experts),
            "mamba_d_state": mamba.d_state,
            "mamba_d_conv": mamba.conv_width,
            "mamba_expand": times(mamba.d_inner, c.width),
            "mamba_dt_rank": mamba.dt_rank,
            "mamba_conv_bias": mamba.conv_bias,
            "mamba_proj_bias": mamba.bias,
        }

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


def hybrid_blueprint(hf: HFConfig, config: HybridConfig) -> Blueprint:
    """Return a hybrid with the sizes in config.json."""
    return Blueprint(
        backbone_class=Hybrid,
        config=config,
        vocab_size=required_value(hf, "vocab_size"),
        max_length=required_value(hf, "max_position_embeddings"),
    )


def common_keys(model: Backbone, architecture: str, model_type: str) -> HFConfig:
    """Return the keys of config.json that all hybrids have."""
    c = hybrid_config(model)
    a = c.attention
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_length,
        "hidden_size": c.width,
        "intermediate_size": c.dense_width,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim or c.width // a.num_heads,
        "attention_dropout": a.dropout,
        "hidden_act": "silu",
        "rms_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


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


def _read_period(hf: HFConfig, name: str, num_layers: int, types: tuple[str, str]) -> list[str]:
    """Return a pattern with the first type once in each period, at the offset, and the second elsewhere."""
    period, offset = hf[f"{name}_layer_period"], hf[f"{name}_layer_offset"]
    return compress_pattern([types[0] if i % period == offset else types[1] for i in range(num_layers)])


def _write_period(name: str, chosen: list[bool]) -> dict[str, int]:
    """Return the period and the offset of the chosen layers."""
    places = [index for index, is_chosen in enumerate(chosen) if is_chosen] or [len(chosen)]
    later = places[1] if len(places) > 1 else places[0] + len(chosen) + 1
    return {f"{name}_layer_period": later - places[0], f"{name}_layer_offset": places[0]}
