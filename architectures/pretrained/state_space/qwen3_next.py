"""Qwen3-Next (Qwen 2025): gated DeltaNet, in every fourth layer gated attention, and many small experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig
from archbench.architectures.pretrained.attention_keys import read_rope, rope_parameters, write_rope
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    OtherLayersError,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.decoders.moe import read_balance, write_balance
from archbench.architectures.pretrained.decoders.qwen import count_shared_experts, read_sparse_layers
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.jamba import common_keys, hybrid_blueprint, hybrid_config
from archbench.architectures.pretrained.state_space.mamba import CONVOLUTION
from archbench.architectures.pretrained.tensor_rules import (
    ATTENTION,
    FEEDFORWARD,
    ByHead,
    Rule,
    Same,
    expert_rules,
    head,
    linear,
    shared_rules,
)

DEFAULTS: HFConfig = {
    "intermediate_size": 5632,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
}
"""Default values of keys in config.json."""
ROTATED = 0.25
"""Fraction of each head that is rotated, where config.json names none."""
MIXERS = {"linear_attention": "gated_deltanet", "full_attention": "attention"}
"""Their types of layers, and ours."""
NORMS = {
    "input_layernorm": "mixer_residual.before",
    "post_attention_layernorm": "feedforward_residual.before",
}


@dataclass(frozen=True)
class DeltaProjection(Rule):
    """Queries, keys, values and gates, which are stored together for each head of queries and keys."""

    key_heads: int
    key_dim: int

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        heads = hf_tensor.unflatten(0, (self.key_heads, -1))
        values = (heads.shape[1] - 2 * self.key_dim) // 2
        parts = heads.split([self.key_dim, self.key_dim, values, values], dim=1)
        q, k, v, gate = (part.flatten(0, 1) for part in parts)
        return [torch.cat([q, k, v]), gate]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        keys = self.key_heads * self.key_dim
        q, k, v = tensors[0].split([keys, keys, tensors[1].shape[0]])
        heads = [part.unflatten(0, (self.key_heads, -1)) for part in (q, k, v, tensors[1])]
        return torch.cat(heads, dim=1).flatten(0, 1)


class Qwen3Next(Checkpoint):
    """``Qwen3NextForCausalLM``, without the layers that predict further tokens."""

    backbone_class = Hybrid
    model_types = ("qwen3_next",)
    ignored = (r"rotary_emb\.inv_freq", r"^mtp.*")

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = DEFAULTS | hf
        supported_value(hf, "hidden_act", "silu", "swish", default="silu")
        width, count = required_value(hf, "hidden_size"), required_value(hf, "num_hidden_layers")
        keys = hf["linear_num_key_heads"] * hf["linear_key_head_dim"]
        values = hf["linear_num_value_heads"] * hf["linear_value_head_dim"]
        if hf["linear_num_value_heads"] % hf["linear_num_key_heads"]:
            raise ValueError(
                f"config.json: linear_num_value_heads={hf['linear_num_value_heads']} must be a multiple of "
                f"linear_num_key_heads={hf['linear_num_key_heads']}"
            )
        sparse = hf["num_experts"] > 0
        rope = read_rope(hf, max_length=hf["max_position_embeddings"])
        rotated = rope_parameters(hf).get("partial_rotary_factor", hf.get("partial_rotary_factor", ROTATED))
        config = HybridConfig(
            d_model=width,
            d_ff=hf["intermediate_size"],
            num_layers=count,
            norm_eps=hf["rms_norm_eps"],
            tie_embeddings=hf["tie_word_embeddings"],
            layers=_read_layers(hf, count),
            feedforwards=read_sparse_layers(hf) if sparse else ["dense"],
            block=BlockConfig(norm="rmsnorm_offset"),
            attention=AttentionConfig(
                num_heads=required_value(hf, "num_attention_heads"),
                num_kv_heads=hf["num_key_value_heads"],
                head_dim=hf["head_dim"],
                bias=hf["attention_bias"],
                out_bias=hf["attention_bias"],
                qk_norm="head",
                output_gate=True,
                dropout=hf["attention_dropout"],
            ),
            positions=replace(rope, fraction=1.0 if rotated is None else rotated),
            gated_deltanet=GatedDeltaConfig(
                num_heads=hf["linear_num_key_heads"],
                num_value_heads=hf["linear_num_value_heads"],
                expand_k=keys / width,
                expand_v=values / width,
                conv_width=hf["linear_conv_kernel_dim"],
            ),
            experts=_read_experts(hf) if sparse else ExpertsConfig(),
        )
        return hybrid_blueprint(hf, config)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = hybrid_config(model)
        hf = common_keys(model, "Qwen3NextForCausalLM", "qwen3_next")
        delta = c.gated_deltanet.resolved(c.width)
        keys, values = round(delta.expand_k * c.width), round(delta.expand_v * c.width)
        hf_types = {mixer: name for name, mixer in MIXERS.items()}
        unknown = sorted(c.mixer_types - hf_types.keys())
        if unknown:
            raise OtherLayersError(f"layers of {', '.join(unknown)}, only {', '.join(hf_types)}")
        assert delta.num_value_heads is not None
        hf["rope_parameters"] = write_rope(c.positions, hf["head_dim"]) | {
            "partial_rotary_factor": c.positions.fraction
        }
        return hf | {
            "attention_bias": c.attention.bias,
            "layer_types": [hf_types[kind] for kind in c.layer_types],
            "linear_conv_kernel_dim": delta.conv_width,
            "linear_key_head_dim": keys // delta.num_heads,
            "linear_value_head_dim": values // delta.num_value_heads,
            "linear_num_key_heads": delta.num_heads,
            "linear_num_value_heads": delta.num_value_heads,
            **_write_experts(c),
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = hybrid_config(model)
        # The gate of a head is stored after its queries.
        gated = [
            ByHead(
                f"self_attn.q_proj.{part}", (f"mixer.q.{part}", f"mixer.gate.{part}"), c.attention.num_heads
            )
            for part in ("weight", "bias")
        ]
        ungated = [rule for rule in ATTENTION if not rule.theirs.startswith("self_attn.q_proj")]
        mixers = {"attention": [*gated, *ungated], "gated_deltanet": _delta_rules(c)}
        experts = [
            Same("mlp.gate.weight", ("feedforward.router.weight",)),
            Same("mlp.shared_expert_gate.weight", ("feedforward.shared_gate.weight",)),
            *expert_rules(c.experts.num_experts, "mlp.experts.{}"),
            *shared_rules("mlp.shared_expert"),
        ]
        norms = [Same(f"{hf_name}.weight", (f"{name}.weight",)) for hf_name, name in NORMS.items()]
        rules: list[Rule] = [Same("model.embed_tokens.weight", ("embedding.tokens.weight",))]
        for index, kind in enumerate(c.layer_types):
            layer = [*mixers[kind], *FEEDFORWARD, *experts, *norms]
            rules += [rule.within(f"model.layers.{index}.", f"blocks.{index}.") for rule in layer]
        final = Same("model.norm.weight", ("final.weight",))
        return [*rules, final, head("lm_head.weight", tied=c.tie_embeddings)]


def _read_layers(hf: HFConfig, count: int) -> list[str]:
    """Return the pattern of mixers. Raises ValueError for a type that does not exist there."""
    interval = hf["full_attention_interval"]
    default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(count)]
    types = hf.get("layer_types") or default
    if not set(types) <= MIXERS.keys():
        raise ValueError(f"config.json: layer_types={types} is not supported, only {' and '.join(MIXERS)}")
    return compress_pattern([MIXERS[kind] for kind in types])


def _read_experts(hf: HFConfig) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=hf["num_experts"],
        experts_per_token=hf["num_experts_per_tok"],
        d_ff=hf["moe_intermediate_size"],
        renormalise=hf["norm_topk_prob"],
        num_shared_experts=count_shared_experts(hf),
        shared_gate=True,
        balance="all_layers",
        balance_coefficient=read_balance(hf),
    )


def _write_experts(config: HybridConfig) -> HFConfig:
    """Return the keys of the experts. Raises ValueError where there are no shared ones."""
    experts, kinds = config.experts, config.feedforward_types
    if "experts" not in kinds:
        return {"num_experts": 0}
    if not experts.num_shared_experts:
        raise ValueError("experts.num_shared_experts=0, there are always some")
    return {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, kind in enumerate(kinds) if kind == "dense"],
        "moe_intermediate_size": config.expert_width,
        "shared_expert_intermediate_size": experts.num_shared_experts * config.expert_width,
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "norm_topk_prob": experts.renormalise,
        **write_balance(experts),
    }


def _delta_rules(config: HybridConfig) -> list[Rule]:
    """Return the rules of gated DeltaNet."""
    delta = config.gated_deltanet.resolved(config.width)
    key_dim = round(delta.expand_k * config.width) // delta.num_heads
    rules: list[Rule] = [
        DeltaProjection("in_proj_qkvz.weight", ("qkv.weight", "gate.weight"), delta.num_heads, key_dim),
        ByHead("in_proj_ba.weight", ("beta.weight", "dt.weight"), delta.num_heads),
        CONVOLUTION[0],
        Same("dt_bias", ("dt_bias_H",)),
        Same("A_log", ("A_log_H",)),
        Same("norm.weight", ("norm.weight",)),
        *linear("out_proj", "out"),
    ]
    return [rule.within("linear_attn.", "mixer.") for rule in rules]
