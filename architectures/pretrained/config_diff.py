"""What a transformer computes, as settings by name: the form in which two configurations are compared."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from architectures.backbone import BackboneConfig
from architectures.backbones.encoder_decoder import EncoderDecoderConfig
from architectures.backbones.hybrid import RECURRENT, HybridConfig
from architectures.backbones.transformer import TransformerConfig
from architectures.layers.layer_pattern import spread
from architectures.layers.moe.config import ExpertsConfig
from architectures.layers.ssm.mamba import SelectiveConfig
from architectures.layers.ssm.mamba2 import SSDConfig
from architectures.pretrained.rope_config import settled_rope

TRAINING = (
    "block.dropout",
    "block.stochastic_depth",
    "block.residual_scaling",
    "attention.dropout",
    "experts.capacity_factor",
    "experts.jitter",
    "experts.balance",
    "experts.balance_coefficient",
    "experts.z_coefficient",
    "dt_min",
    "dt_max",
    "A_min",
    "A_max",
)
"""Settings that matter while a model is trained, or before."""
EXECUTION = (
    "attention.kernel",
    "attention.cache",
    "attention.block_size",
    "attention.latent.absorbed",
    "feedforward.multiple_of",
    "experts.dispatch",
    "vocab_size",
    "max_positions",
    "unpad",
    "scan",
    "chunk",
)
"""Settings of how the same result is reached, and those that the model's own sizes have settled."""
SCALING = {
    "none": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "llama3": ("factor", "original_length", "low_frequency", "high_frequency"),
    "yarn": ("factor", "original_length", "beta_fast", "beta_slow", "attention_factor"),
}
"""The settings that each kind of rotary scaling reads."""


def differences(ours: BackboneConfig, theirs: BackboneConfig) -> list[str]:
    """Settings by which two models of one class differ in what they compute, "name=ours (not theirs)"."""
    mine, other = significant(ours), significant(theirs)
    return [
        f"{name}={mine.get(name)} (not {other.get(name)})"
        for name in sorted(mine.keys() | other.keys())
        if not _same(mine.get(name), other.get(name))
    ]


def significant(config: BackboneConfig) -> dict[str, Any]:
    """Settings by dotted name: nulls settled, and those left out that do not change the result."""
    if isinstance(config, TransformerConfig):
        config = _settled(config)
    if isinstance(config, HybridConfig):
        config = _settled_hybrid(config)
    if isinstance(config, SelectiveConfig | SSDConfig):
        config = config.settled(config.width)
    values = _flat(dataclasses.asdict(config), "")
    idle = {*TRAINING, *EXECUTION}
    # A mixer of a hybrid has its settings under its own name.
    values = {name: v for name, v in values.items() if not {name, name.partition(".")[2]} & idle}
    if isinstance(config, TransformerConfig):
        _drop_idle(config, values)
    return values


def _settled(config: TransformerConfig) -> TransformerConfig:
    """Every null replaced by what it stands for, every pattern of layers by one letter for each layer."""
    a, p = config.attention, config.positions
    head_dim = turned = a.head_dim or config.width // a.num_heads
    if a.latent.kv_rank is not None:
        head_dim, turned = a.latent.nope_dim + a.latent.rope_dim, a.latent.rope_dim
    num_layers = config.num_layers
    if isinstance(config, EncoderDecoderConfig):
        config = dataclasses.replace(config, num_encoder_layers=config.encoder_layers)
        num_layers = max(num_layers, config.encoder_layers)
    attention = dataclasses.replace(
        a,
        num_kv_heads=a.kv_heads,
        head_dim=head_dim,
        scale=a.scale or head_dim**-0.5,
        layers=_spread(a.layers, num_layers),
    )
    positions = p if p.kind != "rope" else settled_rope(p, turned)
    positions = dataclasses.replace(positions, layers=_spread(p.layers, config.num_layers))
    return _settled_feedforwards(dataclasses.replace(config, attention=attention, positions=positions))


def _settled_feedforwards(config: TransformerConfig) -> TransformerConfig:
    """The same for feed-forwards; settings of kinds that are absent are the default."""
    changes: dict[str, Any] = {"feedforwards": "".join(config.kinds)}
    kinds = {*config.kinds}
    if isinstance(config, EncoderDecoderConfig):
        changes["encoder_feedforwards"] = "".join(config.encoder_kinds)
        kinds |= {*config.encoder_kinds}
    own = config.experts
    # The rate of the bias matters in training alone; whether there is a bias, always.
    bias = None if own.bias_rate is None else 0.0
    experts = dataclasses.replace(own, d_ff=config.expert_width, bias_rate=bias)
    return dataclasses.replace(
        config,
        d_ff=config.dense_width if "F" in kinds else None,
        experts=experts if "E" in kinds else ExpertsConfig(),
        **changes,
    )


def _settled_hybrid(config: HybridConfig) -> HybridConfig:
    """The same for what only hybrids have; settings of kinds of layers that are absent are the default."""
    changes: dict[str, Any] = {}
    for letter, kind in RECURRENT.items():
        own = getattr(config, kind.settings)
        if letter not in config.letters:
            own = type(own)()
        elif isinstance(own, SelectiveConfig | SSDConfig):
            own = own.settled(config.width)
        changes[kind.settings] = own
    return dataclasses.replace(config, layers="".join(spread(config.layers, config.num_layers)), **changes)


def _drop_idle(config: TransformerConfig, values: dict[str, Any]) -> None:
    """Leaves out the settings of what this model does not have."""
    idle = []
    if "L" not in config.attention.layers:
        idle += ["attention.window", "positions.local_base"]
    if config.positions.kind != "rope":
        idle += [f"positions.{name}" for name in ("base", "local_base", "fraction", "interleaved")]
    if config.positions.kind != "relative":
        idle += ["positions.num_buckets", "positions.max_distance"]
    if config.attention.latent.kv_rank is None:
        idle += [f"attention.latent.{f.name}" for f in dataclasses.fields(config.attention.latent)]
    used = SCALING[config.positions.scaling.kind] if config.positions.kind == "rope" else ()
    kept = {f"positions.scaling.{name}" for name in ("kind", *used)}
    idle += [name for name in values if name.startswith("positions.scaling.") and name not in kept]
    for name in idle:
        values.pop(name, None)


def _spread(pattern: str, num_layers: int) -> str:
    return (pattern * num_layers)[:num_layers]


def _flat(tree: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _same(a: Any, b: Any) -> bool:
    numbers = isinstance(a, float | int) and isinstance(b, float | int)
    return math.isclose(a, b, rel_tol=1e-9) if numbers else a == b
