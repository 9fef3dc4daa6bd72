"""Compares two configurations by the settings that determine what a model computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from archbench.architectures.backbone import TRAINING, BackboneConfig
from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoderConfig
from archbench.architectures.backbones.hybrid import RECURRENT, HybridConfig
from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.layers.block import MixerConfig
from archbench.architectures.layers.layer_pattern import compress_pattern, expand_pattern, format_pattern
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.pretrained.attention_keys import resolve_rope

INITIALISATION = ("block.residual_scaling", "dt_min", "dt_max", "A_min", "A_max")
"""Settings that matter only in initialisation."""
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
"""Settings of how a result is computed, and those that are given by the sizes of the built model."""
SCALING = {
    "none": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "dynamic": ("factor", "original_length"),
    "longrope": ("original_length", "attention_factor", "short_factors", "long_factors"),
    "llama3": ("factor", "original_length", "low_frequency", "high_frequency"),
    "yarn": ("factor", "original_length", "beta_fast", "beta_slow", "attention_factor", "truncate"),
}
"""The settings that each type of rotary scaling reads."""


def differences(config: BackboneConfig, other_config: BackboneConfig) -> list[str]:
    """Return the settings by which two models of one class compute different functions.

    Each difference is "name=value (not other value)".
    """
    settings, other_settings = output_settings(config), output_settings(other_config)
    different = []
    for name in sorted(settings.keys() | other_settings.keys()):
        a, b = settings.get(name), other_settings.get(name)
        equal = a == b
        if isinstance(a, float | int) and isinstance(b, float | int):
            equal = math.isclose(a, b, rel_tol=1e-9)
        if not equal:
            different.append(f"{name}={_text(a)} (not {_text(b)})")
    return different


def output_settings(config: BackboneConfig) -> dict[str, object]:
    """Return, by dotted name, the settings that determine a model's output.

    Nulls are resolved to their values; settings without effect are left out.
    """
    if isinstance(config, TransformerConfig):
        config = _resolve(config)
    if isinstance(config, DecoderConfig):
        config = dataclasses.replace(config, multipliers=config.factors)
    if isinstance(config, HybridConfig):
        mixers: dict[str, Any] = {}
        for name in RECURRENT:
            mixer = getattr(config, name)
            # Types that do not occur get default settings.
            mixers[name] = mixer.resolved(config.width) if name in config.mixer_types else type(mixer)()
        config = dataclasses.replace(config, layers=config.layer_types, **mixers)
    if isinstance(config, MixerConfig):  # of a stack of one type
        config = config.resolved(config.width)
    values = _flat(dataclasses.asdict(config), "")
    for norm in ("selection_norm", "mamba.selection_norm"):
        if values.get(norm):
            values[f"{norm}_eps"] = values[f"{norm}_eps"] or values["norm_eps"]
        else:
            values.pop(f"{norm}_eps", None)
            values.pop(f"{norm}_weight", None)
    unused = {*TRAINING, *INITIALISATION, *EXECUTION}
    # A mixer of a hybrid has its settings under its name.
    values = {name: v for name, v in values.items() if not {name, name.partition(".")[2]} & unused}
    if isinstance(config, TransformerConfig):
        _drop_unused(config, values)
    return values


def _resolve(config: TransformerConfig) -> TransformerConfig:
    """Return the same with values for nulls, and with patterns that name the type of every layer."""
    a, p = config.attention, config.positions
    head_dim = rotated = a.head_dim or config.width // a.num_heads
    if a.latent.kv_rank is not None:
        head_dim, rotated = a.latent.nope_dim + a.latent.rope_dim, a.latent.rope_dim
    num_layers = config.num_layers
    if isinstance(config, EncoderDecoderConfig):
        encoder_config = config.encoder_side
        config = dataclasses.replace(
            config,
            num_encoder_layers=config.encoder_layers,
            encoder_heads=None
            if encoder_config.attention == config.attention
            else encoder_config.attention.num_heads,
            encoder_d_ff=None
            if encoder_config.dense_width == config.dense_width
            else encoder_config.dense_width,
        )
        num_layers = max(num_layers, config.encoder_layers)
    attention = dataclasses.replace(
        a,
        num_kv_heads=a.kv_heads,
        head_dim=head_dim,
        scale=a.scale or head_dim**-0.5,
        layers=expand_pattern(a.layers, num_layers),
    )
    positions = p if p.kind != "rope" else resolve_rope(p, rotated)
    positions = dataclasses.replace(positions, layers=expand_pattern(p.layers, config.num_layers))
    return _resolve_feedforwards(dataclasses.replace(config, attention=attention, positions=positions))


def _resolve_feedforwards(config: TransformerConfig) -> TransformerConfig:
    """Return the same with resolved feed-forwards; types that do not occur get default settings."""
    types = {*config.feedforward_types}
    if isinstance(config, EncoderDecoderConfig):
        types |= {*config.encoder_feedforward_types}
        config = dataclasses.replace(config, encoder_feedforwards=config.encoder_feedforward_types)
    experts_config = config.experts
    # The update rate of the bias matters only in training; the presence of a bias matters always.
    bias = None if experts_config.bias_rate is None else 0.0
    experts = dataclasses.replace(experts_config, d_ff=config.expert_width, bias_rate=bias)
    return dataclasses.replace(
        config,
        feedforwards=config.feedforward_types,
        d_ff=config.dense_width if "dense" in types else None,
        experts=experts if "experts" in types else ExpertsConfig(),
    )


def _drop_unused(config: TransformerConfig, values: dict[str, object]) -> None:
    """Remove the settings of parts that this model does not have."""
    unused = []
    if not config.attention.has_local_layers:
        unused += ["attention.window", "positions.local_base", "positions.scale_local"]
    if config.positions.kind != "rope":
        unused += [
            f"positions.{name}" for name in ("base", "local_base", "fraction", "interleaved", "scale_local")
        ]
    if config.positions.scaling.kind == "none":
        unused.append("positions.scale_local")
    if config.positions.kind != "relative":
        unused += ["positions.num_buckets", "positions.max_distance", "positions.by_layer"]
    if config.attention.latent.kv_rank is None:
        unused += [f"attention.latent.{f.name}" for f in dataclasses.fields(config.attention.latent)]
    read = SCALING[config.positions.scaling.kind] if config.positions.kind == "rope" else ()
    used_names = {f"positions.scaling.{name}" for name in ("kind", *read)}
    unused += [name for name in values if name.startswith("positions.scaling.") and name not in used_names]
    for name in unused:
        values.pop(name, None)


def _flat(tree: Mapping[str, object], prefix: str) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return format_pattern(compress_pattern(value))
    return str(value)
