"""The cost of a model: parameters by part, FLOPs, memory of weights, decoding state.

All values are computed by the model itself, built without memory on PyTorch's meta device. Variants of
attention are the same model with another configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from archbench.architectures.backbone import Backbone, BackboneConfig, Flops
from archbench.architectures.backbones.stack import RecurrentStackConfig
from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.layers.attention.base import SoftmaxAttention
from archbench.architectures.layers.block import Block
from archbench.architectures.layers.normalization import OffsetRMSNorm
from archbench.experiments.config.schema import ScaleConfig
from archbench.experiments.cost.attention_variants import variants
from archbench.experiments.run.size_solver import Sizes, match
from archbench.experiments.runtime.errors import ConfigError, nearest

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
"""Bytes of a weight. Integers also need scales, which depend on the method and are not counted."""
TRAINING_BYTES = 16
"""AdamW, also in mixed precision: a float32 weight, its gradient and two moments of 4 bytes each."""
USUAL_LENGTH = 4096
USUAL_VOCABULARY = 50257
LONGEST = 2**40
"""Number of tokens from which a context counts as unlimited."""
NORMS = (nn.RMSNorm, nn.LayerNorm, OffsetRMSNorm)


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Settings of ``archbench cost``."""

    name: str
    """Name of the backbone."""
    sequence_length: int | None = None
    """Tokens of a sequence; null for 4096, or ``backbone.max_positions`` if that is less."""
    source_length: int | None = None
    """Tokens of the source of an encoder-decoder; null for ``sequence_length``."""
    batch_size: int = 1
    """Sequences of a training step, and of the cache."""
    vocab_size: int | None = None
    """Tokens of the vocabulary; null for ``backbone.vocab_size``, or 50257 if that is null."""
    precision: str = "bf16"
    """``fp32``, ``bf16`` or ``fp16``, for the weights and the cache."""
    memory_gib: float = 80.0
    """GiB available for weights and cache, to compute the longest context."""
    output: str | None = None
    """JSON file to write the cost to."""

    def __post_init__(self) -> None:
        for name in ("sequence_length", "source_length", "batch_size", "vocab_size", "memory_gib"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be positive")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r}{nearest(self.precision, PRECISIONS)}")


@dataclass(frozen=True, kw_only=True)
class PartCost:
    """Parameters of a part of a model."""

    total: int
    active: int
    """Those that a token uses."""


@dataclass(frozen=True, kw_only=True)
class ParameterCost(PartCost):
    """Parameters of a model."""

    by_part: dict[str, PartCost]


@dataclass(frozen=True, kw_only=True)
class FlopsCost:
    """FLOPs by operation."""

    linear: int
    attention: int
    mixer: int
    total: int

    @classmethod
    def of(cls, flops: Flops) -> FlopsCost:
        """Return the FLOPs with their sum."""
        return cls(linear=flops.linear, attention=flops.attention, mixer=flops.mixer, total=flops.total)


@dataclass(frozen=True, kw_only=True)
class StateCost:
    """Decoding state of a variant of attention."""

    variant: str
    own: bool
    """True for the model as it is configured."""
    parameters: int
    bytes_per_token: float
    """Mean over the sequence."""
    bytes: int
    """Size for the batch at ``sequence_length``."""
    longest_context: dict[str, int | None]
    """Maximum tokens of each sequence in ``memory_gib``, by precision of the weights; None if unlimited."""


@dataclass(frozen=True, kw_only=True)
class CostReport:
    """Cost of a model: counts, FLOPs and bytes."""

    backbone: str
    class_name: str
    config: BackboneConfig
    """Configuration with all widths."""
    vocab_size: int
    sequence_length: int
    source_length: int
    batch_size: int
    precision: str
    memory_gib: float
    parameters: ParameterCost
    flops: dict[str, FlopsCost]
    """FLOPs of the forward pass of one sequence, a training step of the batch, and one decoded token."""
    weight_bytes: dict[str, int]
    """Bytes of the weights by precision."""
    training_bytes: int
    states: list[StateCost]

    def tree(self) -> dict[str, Any]:
        """Return the report as values that JSON can store."""
        values = dataclasses.asdict(self)
        return {"class" if name == "class_name" else name: value for name, value in values.items()}


class Pricing:
    """Computes the cost of one backbone at one sequence length, and of its variants of attention."""

    def __init__(
        self, cls: type[Backbone], config: BackboneConfig, scale: ScaleConfig, request: CostConfig
    ) -> None:
        self.cls, self.request = cls, request
        vocab_size = request.vocab_size or USUAL_VOCABULARY
        if isinstance(config, TransformerConfig | RecurrentStackConfig) and config.vocab_size is not None:
            vocab_size = request.vocab_size or config.vocab_size
            config = dataclasses.replace(config, vocab_size=vocab_size)
        self.length = _length(config, request)
        self.source_length = 0
        if cls.capabilities.encoder_decoder:
            self.source_length = request.source_length or self.length
        elif request.source_length is not None:
            raise ConfigError(
                f"source_length={request.source_length}: {cls.__name__} reads no source; leave it null"
            )
        self.sizes = Sizes(
            vocab_size=vocab_size,
            length=self.length,
            source_length=self.source_length,
            max_length=max(self.length, self.source_length),
        )
        if config.d_model is None and scale.target is None:
            raise ConfigError(
                "backbone.d_model and scale.targets are both null: give a width, or a size to reach"
            )
        if config.d_model is None or getattr(config, config.fine_knob) is None:
            config = match(cls, config, scale, self.sizes).config
        self.config = config
        self.model = self.build(config)

    def build(self, config: BackboneConfig) -> Backbone:
        """Return the model in the requested precision, without memory."""
        return self.sizes.on_meta(self.cls, config).to(PRECISIONS[self.request.precision])

    def report(self) -> CostReport:
        """Return the cost of the model and of its variants of attention."""
        counts = self.model.parameters_by_part()
        return CostReport(
            backbone=self.request.name,
            class_name=self.cls.__name__,
            config=self.config,
            vocab_size=self.model.vocab_size,
            sequence_length=self.length,
            source_length=self.source_length,
            batch_size=self.request.batch_size,
            precision=self.request.precision,
            memory_gib=self.request.memory_gib,
            parameters=ParameterCost(total=counts.total, active=counts.active, by_part=by_part(self.model)),
            flops={name: FlopsCost.of(flops) for name, flops in self.flops().items()},
            weight_bytes={name: int(counts.total * size) for name, size in WEIGHT_BYTES.items()},
            training_bytes=TRAINING_BYTES * counts.total,
            states=list(self.states()),
        )

    def flops(self) -> dict[str, Flops]:
        """Return FLOPs of a forward pass of one sequence, a training step, and one decoded token."""
        forward = self.model.sequence_flops(self.length, self.source_length)
        step = 3 * self.request.batch_size
        training = Flops(
            linear=step * forward.linear, attention=step * forward.attention, mixer=step * forward.mixer
        )
        flops = {"forward": forward, "training_step": training}
        if self.source_length:
            flops["reading_the_source"] = self.model.sequence_flops(0, self.source_length)
        if self.model.capabilities.decodes:
            flops["decoding_one_token"] = self.model.step_flops(self.length, self.source_length)
        return flops

    def states(self) -> Iterator[StateCost]:
        """Yield the decoding state of each variant of attention."""
        if not self.model.capabilities.decodes:
            return
        batch_size, source_length = self.request.batch_size, self.source_length
        weight_bytes = {self.request.precision: float(PRECISIONS[self.request.precision].itemsize)}
        weight_bytes |= {name: WEIGHT_BYTES[name] for name in ("int8", "int4")}
        for name, config in variants(self.config):
            model = self.model if config == self.config else self.build(config)
            parameters = model.parameters_by_part().total
            one_sequence = model.state_bytes(self.length, source_length)
            growth = one_sequence - model.state_bytes(0, source_length)

            def state_bytes(length: int, model: Backbone = model) -> int:
                return batch_size * model.state_bytes(length, source_length)

            memory = self.request.memory_gib * 2**30
            limit = position_limit(model.config)
            yield StateCost(
                variant=name,
                own=config == self.config,
                parameters=parameters,
                bytes_per_token=growth / self.length,
                bytes=batch_size * one_sequence,
                longest_context={
                    precision: longest(state_bytes, memory - parameters * size, limit)
                    for precision, size in weight_bytes.items()
                },
            )


def by_part(model: Backbone) -> dict[str, PartCost]:
    """Return the parameters of each part. Shared tensors count once."""
    part_of: dict[int, str] = {}

    def claim(name: str, module: nn.Module | None) -> None:
        for parameter in () if module is None else module.parameters():
            part_of.setdefault(id(parameter), name)

    claim("embedding", model.embedding)
    claim("head", model.head)
    for block in (m for m in model.modules() if isinstance(m, Block)):
        for canon in block.canons.values():
            claim("canon", canon)
        claim("attention" if isinstance(block.mixer, SoftmaxAttention) else "mixer", block.mixer)
        claim("attention", getattr(block, "cross", None))
        claim("feed-forward", block.feedforward)
    for module in model.modules():
        if isinstance(module, NORMS):
            claim("norms", module)
    claim("other", model)
    names = ("embedding", "attention", "mixer", "feed-forward", "canon", "norms", "other", "head")
    counts = dict.fromkeys(names, 0)
    for parameter in model.parameters():
        counts[part_of[id(parameter)]] += parameter.numel()
    inactive = {"feed-forward": model.inactive_parameters()}
    return {
        name: PartCost(total=count, active=count - inactive.get(name, 0))
        for name, count in counts.items()
        if count or name == "head"
    }


def position_limit(config: BackboneConfig) -> int | None:
    """Return the rows of the position table, or None without a table."""
    if isinstance(config, TransformerConfig) and config.positions.has_table:
        return config.max_positions
    return None


def _length(config: BackboneConfig, request: CostConfig) -> int:
    """Return the sequence length, which fits into the position table. Raises ConfigError."""
    rows = getattr(config, "max_positions", None) or USUAL_LENGTH
    length = request.sequence_length or min(USUAL_LENGTH, rows)
    limit = position_limit(config)
    for name, value in (("sequence_length", length), ("source_length", request.source_length or 0)):
        if limit is not None and value > limit:
            raise ConfigError(
                f"{name}={value}: the model has {limit} positions; shorten it, "
                "or raise backbone.max_positions"
            )
    return length


def longest(state_bytes: Callable[[int], int], memory: float, limit: int | None) -> int | None:
    """Return the maximum tokens whose state fits into ``memory`` bytes; 0 if none, None if unlimited."""
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
