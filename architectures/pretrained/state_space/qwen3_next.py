"""Qwen3-Next (Qwen 2025): gated DeltaNet, in every fourth layer gated attention, and many small experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.pretrained.attention_keys import read_rope, rope, rope_parameters
from archbench.architectures.pretrained.checkpoint import Checkpoint, OtherLayersError
from archbench.architectures.pretrained.decoders.qwen import (
    EXPERTS,
    read_shared_experts,
    write_shared_experts,
)
from archbench.architectures.pretrained.fields import (
    Beside,
    Condition,
    Field,
    Only,
    Part,
    Settings,
    Table,
    conditional,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.jamba import HYBRID, hybrid_config
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


def read_layers(hf: HFConfig) -> Settings:
    """Return the pattern of mixers. Raises ValueError for a type that does not exist there."""
    interval, count = hf["full_attention_interval"], hf["num_hidden_layers"]
    default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(count)]
    types = hf.get("layer_types") or default
    if not set(types) <= MIXERS.keys():
        raise ValueError(f"config.json: layer_types={types} is not supported, only {' and '.join(MIXERS)}")
    return {"layers": compress_pattern([MIXERS[kind] for kind in types])}


def write_layers(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the type of each layer. Raises ValueError for a mixer that does not exist there."""
    hf_types = {mixer: name for name, mixer in MIXERS.items()}
    unknown = sorted(config.mixer_types - hf_types.keys())
    if unknown:
        raise OtherLayersError(f"layers of {', '.join(unknown)}, only {', '.join(hf_types)}")
    return {"layer_types": [hf_types[kind] for kind in config.layer_types]}


def read_positions(hf: HFConfig) -> Settings:
    """Return the rotary positions; a fraction of null means all of a head."""
    positions = read_rope(hf, max_length=hf["max_position_embeddings"])
    rotated = rope_parameters(hf).get("partial_rotary_factor", hf.get("partial_rotary_factor", ROTATED))
    return {"positions": replace(positions, fraction=1.0 if rotated is None else rotated)}


def read_delta(hf: HFConfig) -> Settings:
    """Return the widths of keys and values of gated DeltaNet, as multiples of that of the model."""
    heads, value_heads = hf["linear_num_key_heads"], hf["linear_num_value_heads"]
    keys, values = heads * hf["linear_key_head_dim"], value_heads * hf["linear_value_head_dim"]
    if value_heads % heads:
        raise ValueError(
            f"config.json: linear_num_value_heads={value_heads} must be a multiple of "
            f"linear_num_key_heads={heads}"
        )
    return {
        "gated_deltanet.expand_k": keys / hf["hidden_size"],
        "gated_deltanet.expand_v": values / hf["hidden_size"],
    }


def write_delta(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the widths of a head of keys and of values."""
    delta, width = config.gated_deltanet.resolved(config.width), config.width
    return {
        "linear_key_head_dim": round(delta.expand_k * width) // delta.num_heads,
        "linear_value_head_dim": round(delta.expand_v * width) // delta.num_value_heads,
    }


SPARSE = Condition(
    reads=lambda hf: hf["num_experts"] > 0, writes=lambda config: "experts" in config.feedforward_types
)


def read_gate(hf: HFConfig) -> Settings:
    """Return the settings of experts that all layers have."""
    return {"experts.shared_gate": True, "experts.balance": "all_layers"} | read_shared_experts(hf)


def read_count(hf: HFConfig) -> Settings:
    """Return the number of experts, zero for dense layers."""
    return {"experts.num_experts": hf["num_experts"]} if hf["num_experts"] > 0 else {}


def write_count(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the number of experts, zero for dense layers."""
    return {"num_experts": config.experts.num_experts if SPARSE.writes(config) else 0}


SPARSE_FIELDS: Table = EXPERTS | {
    "moe_intermediate_size": Field("experts.d_ff", 512),
    "shared_expert_intermediate_size": Part(read_gate, write_shared_experts, default=512),
    "num_experts_per_tok": Field("experts.experts_per_token", 10),
    "norm_topk_prob": Field("experts.renormalise", True),
}
"""Keys of layers with experts."""


class Qwen3Next(Checkpoint):
    """``Qwen3NextForCausalLM``, without the layers that predict further tokens."""

    backbone_class = Hybrid
    model_types = ("qwen3_next",)
    ignored = (r"rotary_emb\.inv_freq", r"^mtp.*")
    architecture = "Qwen3NextForCausalLM"
    fields = HYBRID | {
        "hidden_act": Only("silu", others=("swish",), written=True),
        "linear_num_value_heads": Field("gated_deltanet.num_value_heads", 32),
        "linear_num_key_heads": Field("gated_deltanet.num_heads", 16),
        "linear_key_head_dim": Part(read_delta, write_delta, default=128),
        "linear_value_head_dim": Beside(128),
        "linear_conv_kernel_dim": Field("gated_deltanet.conv_width", 4),
        "rope_parameters": rope(fraction=ROTATED, read=read_positions),
        "intermediate_size": Field("d_ff", 5632),
        "layer_types": Part(read_layers, write_layers),
        "full_attention_interval": Beside(4),
        "num_key_value_heads": Field("attention.num_kv_heads", 2),
        "head_dim": Field("attention.head_dim", 256),
        "attention_bias": Field("attention.bias", False, also="attention.out_bias"),
        "max_position_embeddings": Field("max_length", 32768, required=True),
        **conditional(SPARSE_FIELDS, SPARSE),
        "num_experts": Part(read_count, write_count, default=512),
    }
    fixed: ClassVar[Settings] = {
        "block.norm": "rmsnorm_offset",
        "attention.qk_norm": "head",
        "attention.output_gate": True,
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
