"""What a model costs: parameters by part, FLOPs, memory of weights, decoding state.

Everything is asked of the model itself, built without memory on PyTorch's meta
device; the other kinds of attention are the same model with another configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from architectures.backbone import Backbone, BackboneConfig, Flops
from architectures.backbones.stack import RecurrentStackConfig
from architectures.backbones.transformer import TransformerConfig
from architectures.layers.attention.base import SoftmaxAttention
from architectures.layers.block import Block
from architectures.layers.normalization import OffsetRMSNorm
from experiments.config.schema import ScaleConfig
from experiments.cost.attention_variants import variants
from experiments.run.size_solver import Sizes, match
from experiments.runtime.errors import ConfigError, nearest

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
"""Bytes of a weight. Integers need scales too, which depend on the method and are left out."""
TRAINING_BYTES = 16
"""AdamW, also in mixed precision: a float32 weight, its gradient and two moments of 4 bytes each."""
USUAL_LENGTH = 4096
USUAL_VOCABULARY = 50257
LONGEST = 2**40
"""A context this long is called unlimited."""
NORMS = (nn.RMSNorm, nn.LayerNorm, OffsetRMSNorm)


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """What is asked of ``experiments.cost``."""

    name: str
    """What the backbone is called."""
    sequence_length: int | None = None
    """Tokens; null for 4096, or ``backbone.max_positions`` where that is less."""
    source_length: int | None = None
    """Tokens an encoder-decoder reads; null for as many."""
    batch_size: int = 1
    """Sequences of a training step, and of the cache."""
    vocab_size: int | None = None
    """Tokens of the vocabulary; null for ``backbone.vocab_size``, or 50257 where there is none."""
    precision: str = "bf16"
    """``fp32``, ``bf16`` or ``fp16``: of the weights and of the cache."""
    memory_gib: float = 80.0
    """GiB that weights and cache have to fit into, for the longest context."""
    output: str | None = None
    """JSON file to write the numbers to."""

    def __post_init__(self) -> None:
        for name in ("sequence_length", "source_length", "batch_size", "vocab_size", "memory_gib"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be positive")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r}{nearest(self.precision, PRECISIONS)}")


class Pricing:
    """One backbone at one length: builds it and its variants, and asks them."""

    def __init__(
        self, cls: type[Backbone], config: BackboneConfig, scale: ScaleConfig, asked: CostConfig
    ) -> None:
        self.cls, self.asked = cls, asked
        vocab_size = asked.vocab_size or USUAL_VOCABULARY
        if isinstance(config, TransformerConfig | RecurrentStackConfig) and config.vocab_size is not None:
            vocab_size = asked.vocab_size or config.vocab_size
            config = dataclasses.replace(config, vocab_size=vocab_size)
        self.length = _length(config, asked)
        self.source_length = 0
        if cls.capabilities.encoder_decoder:
            self.source_length = asked.source_length or self.length
        elif asked.source_length is not None:
            raise ConfigError(
                f"source_length={asked.source_length}: {cls.__name__} reads no source; leave it null"
            )
        self.sizes = Sizes(
            vocab_size=vocab_size,
            length=self.length,
            source_length=self.source_length,
            max_length=max(self.length, self.source_length),
        )
        self.config = self._solved(config, scale)
        self.model = self.build(self.config)

    def _solved(self, config: BackboneConfig, scale: ScaleConfig) -> BackboneConfig:
        """With the widths that are not given set by the solver."""
        if config.d_model is not None and getattr(config, config.fine_knob) is not None:
            return config
        if config.d_model is None and scale.target is None:
            raise ConfigError(
                "backbone.d_model and scale.targets are both null: give a width, or a size to reach"
            )
        return match(self.cls, config, scale, self.sizes).config

    def build(self, config: BackboneConfig) -> Backbone:
        """The model in the precision asked for, without memory."""
        return self.sizes.on_meta(self.cls, config).to(PRECISIONS[self.asked.precision])

    def report(self) -> dict[str, Any]:
        """All numbers: counts, FLOPs and bytes."""
        parts = self.model.parameters_by_part()
        return {
            "backbone": self.asked.name,
            "class": self.cls.__name__,
            "config": dataclasses.asdict(self.config),
            "vocab_size": self.model.vocab_size,
            "sequence_length": self.length,
            "source_length": self.source_length,
            "batch_size": self.asked.batch_size,
            "precision": self.asked.precision,
            "memory_gib": self.asked.memory_gib,
            "parameters": {"total": parts.total, "active": parts.active, "by_part": by_part(self.model)},
            "flops": self.flops(),
            "weight_bytes": {name: int(parts.total * size) for name, size in WEIGHT_BYTES.items()},
            "training_bytes": TRAINING_BYTES * parts.total,
            "states": list(self.states()),
        }

    def flops(self) -> dict[str, dict[str, int]]:
        """Of the forward pass of one sequence, a training step of the batch, and one token decoded."""
        forward = self.model.sequence_flops(self.length, self.source_length)
        step = 3 * self.asked.batch_size
        training = Flops(
            linear=step * forward.linear, attention=step * forward.attention, mixer=step * forward.mixer
        )
        found = {"forward": forward, "training_step": training}
        if self.source_length:
            found["reading_the_source"] = self.model.sequence_flops(0, self.source_length)
        if self.model.capabilities.decodes:
            found["decoding_one_token"] = self.model.step_flops(self.length, self.source_length)
        return {name: {**dataclasses.asdict(kind), "total": kind.total} for name, kind in found.items()}

    def states(self) -> Iterator[dict[str, Any]]:
        """The decoding state of each variant of attention: its bytes, and the longest context that fits."""
        if not self.model.capabilities.decodes:
            return
        for name, config in variants(self.config):
            own = config == self.config
            model = self.model if own else self.build(config)
            yield {"variant": name, "own": own, **self._state(model)}

    def _state(self, model: Backbone) -> dict[str, Any]:
        def state_bytes(length: int) -> int:
            return self.asked.batch_size * model.state_bytes(length, self.source_length)

        parameters = model.parameters_by_part().total
        kept = model.state_bytes(self.length, self.source_length) - model.state_bytes(0, self.source_length)
        return {
            "parameters": parameters,
            "bytes_per_token": kept / self.length,
            "bytes": state_bytes(self.length),
            "longest_context": {
                name: longest(
                    state_bytes,
                    self.asked.memory_gib * 2**30 - parameters * size,
                    position_limit(model.config),
                )
                for name, size in self.weights().items()
            },
        }

    def weights(self) -> dict[str, float]:
        """Bytes of a weight in the precision asked for, and quantised."""
        own = {self.asked.precision: float(PRECISIONS[self.asked.precision].itemsize)}
        return own | {name: WEIGHT_BYTES[name] for name in ("int8", "int4")}


def by_part(model: Backbone) -> dict[str, dict[str, int]]:
    """Parameters of each part: in all, and those that one token uses. Shared tensors count once."""
    part_of: dict[int, str] = {}

    def claim(name: str, module: nn.Module | None) -> None:
        for parameter in () if module is None else module.parameters():
            part_of.setdefault(id(parameter), name)

    claim("embedding", model.embedding)
    claim("head", model.head)
    for block in (m for m in model.modules() if isinstance(m, Block)):
        claim("attention" if isinstance(block.mixer, SoftmaxAttention) else "mixer", block.mixer)
        claim("attention", getattr(block, "cross", None))
        claim("feed-forward", block.feedforward)
    for module in model.modules():
        if isinstance(module, NORMS):
            claim("norms", module)
    claim("other", model)
    counts = dict.fromkeys(("embedding", "attention", "mixer", "feed-forward", "norms", "other", "head"), 0)
    for parameter in model.parameters():
        counts[part_of[id(parameter)]] += parameter.numel()
    inactive = {"feed-forward": model.inactive_parameters()}
    return {
        name: {"total": count, "active": count - inactive.get(name, 0)}
        for name, count in counts.items()
        if count or name == "head"
    }


def position_limit(config: BackboneConfig) -> int | None:
    """Rows of the position table, where a model has one of a given size; else None."""
    if isinstance(config, TransformerConfig) and config.positions.has_table:
        return config.max_positions
    return None


def _length(config: BackboneConfig, asked: CostConfig) -> int:
    """The length to price, checked."""
    rows = getattr(config, "max_positions", None) or USUAL_LENGTH
    length = asked.sequence_length or min(USUAL_LENGTH, rows)
    limit = position_limit(config)
    for name, value in (("sequence_length", length), ("source_length", asked.source_length or 0)):
        if limit is not None and value > limit:
            raise ConfigError(
                f"{name}={value}: the model has {limit} positions; shorten it, "
                "or raise backbone.max_positions"
            )
    return length


def longest(state_bytes: Callable[[int], int], memory: float, limit: int | None) -> int | None:
    """The most tokens whose state fits into ``memory`` bytes; 0 if none does, None if there is no end."""
    if state_bytes(1) > memory:
        return 0
    low, high = 1, 2
    while high < LONGEST and state_bytes(high) <= memory:
        low, high = high, 2 * high
    if high >= LONGEST:
        return limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if state_bytes(middle) <= memory else (low, middle)
    return low if limit is None else min(low, limit)
