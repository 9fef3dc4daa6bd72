"""Tensor rules of attention, feed-forward and experts that multiple families share, in Llama's names."""

from __future__ import annotations

from collections.abc import Mapping

from architectures.pretrained.tensor_rules import Entry, Rule, Same, linear

ATTENTION: tuple[Rule, ...] = (
    *linear("self_attn.q_proj", "mixer.q"),
    *linear("self_attn.k_proj", "mixer.k"),
    *linear("self_attn.v_proj", "mixer.v"),
    *linear("self_attn.o_proj", "mixer.out"),
    Same("self_attn.q_norm.weight", ("mixer.q_norm.weight",)),
    Same("self_attn.k_norm.weight", ("mixer.k_norm.weight",)),
)
FEEDFORWARD: tuple[Rule, ...] = (
    *linear("mlp.gate_proj", "feedforward.gate"),
    *linear("mlp.up_proj", "feedforward.up"),
    *linear("mlp.down_proj", "feedforward.down"),
)
PROJECTIONS = {"gate_proj": "gate_XFD", "up_proj": "up_XFD", "down_proj": "down_XDF"}
"""Names of an expert's matrices in most Hugging Face families, and ours."""


def expert_rules(count: int, hf_prefix: str, names: Mapping[str, str] = PROJECTIONS) -> list[Rule]:
    """Return the rules of experts that are stored as one tensor each; ``{}`` in the prefix is the expert."""
    return [
        Entry(f"{hf_prefix.format(index)}.{name}.weight", (f"feedforward.{parameter}",), index)
        for index in range(count)
        for name, parameter in names.items()
    ]


def shared_rules(hf_prefix: str) -> list[Rule]:
    """Return the rules of the shared experts."""
    names = [(name, name.removesuffix("_proj")) for name in PROJECTIONS]
    return [
        Same(f"{hf_prefix}.{name}.weight", (f"feedforward.shared.{parameter}.weight",))
        for name, parameter in names
    ]
