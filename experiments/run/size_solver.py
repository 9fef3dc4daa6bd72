"""The solver that brings every backbone to the same size.

It turns the width, then one fine knob, until the chosen axis is within 1% of the
target. Sizes are counted on the real module, built without memory on PyTorch's
meta device.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.experiments.config.schema import ScaleConfig
from archbench.experiments.config.structured import class_location
from archbench.experiments.runtime.errors import ConfigError

TOLERANCE = 0.01


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The size that the solver chose."""

    config: BackboneConfig
    axis: str
    target: int | None
    value: int
    """Size of the built module on the axis."""
    unused: int = 0
    """Of a value in parameters, those of experts that a token does not use."""

    @property
    def residual(self) -> float:
        """Mismatch relative to the target; 0 without a target."""
        return 0.0 if self.target is None else self.value / self.target - 1

    @property
    def words(self) -> str:
        """Description of axis, target and mismatch."""
        if self.target is None:
            return "widths as given"
        return f"{self.axis} {self.residual:+.2%} of {self.target:,}"

    @property
    def note(self) -> str | None:
        """Note about a mixture of experts whose size counts all its experts."""
        if not self.unused:
            return None
        return f"counts all experts: a token uses {self.value - self.unused:,} of {self.value:,} parameters"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Vocabulary, lengths and readout that a model is built for."""

    vocab_size: int
    length: int
    """Mean length of its input sequences."""
    source_length: int = 0
    """Length of the encoder's side, for encoder-decoders."""
    raw_length: int = 0
    """Task tokens behind one example: the unit of FLOPs per token."""
    max_length: int = 0
    """The longest sequence or source it is made for, if that is more than the lengths above."""
    passes: int = 1
    """Sequences read for each example."""
    make_readout: Callable[[Backbone], nn.Module | None] | None = None
    """Function that makes the readout that the objective attaches to the backbone, if it has one."""

    def build(self, cls: type[Backbone], config: BackboneConfig) -> Backbone:
        """The model with its readout. Backbone first, so that its weights are the same with and without."""
        longest = max(self.length, self.raw_length, self.max_length)
        model = cls(config, vocab_size=self.vocab_size, max_length=longest)
        readout = self.make_readout(model) if self.make_readout else None
        if readout is not None:
            model.attach_readout(readout)
        return model

    def on_meta(self, cls: type[Backbone], config: BackboneConfig) -> Backbone:
        """The model without memory: shapes only. Raises RuntimeError where that is why it cannot be built."""
        try:
            with torch.device("meta"), _Undrawn():
                return self.build(cls, config)
        except RuntimeError as error:  # PyTorch's message is on the operation, and not on why it is called
            if not re.search(r"\bmeta\b", str(error), re.IGNORECASE):
                raise
            what = textwrap.shorten(str(error).partition(". ")[0], 80, placeholder=" ...")
            raise RuntimeError(
                "the model is built without data first, on the meta device, to know its size, and its "
                f'constructor needs values ({what}): give the tensors that it reads device="cpu"'
            ).with_traceback(error.__traceback__) from error


DRAWS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
"""Functions that initialise a tensor at random, in backbones and in PyTorch's own layers."""


class _Undrawn(TorchFunctionMode):
    """Leaves tensors uninitialised. Without memory there is nothing to draw, yet it would take nine tenths
    of the time of building a model, and the first time import the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def training_flops_per_token(model: Backbone, sizes: Sizes) -> float:
    """Three times the forward pass (the backward pass costs two), for each task token.

    Logits are counted at every position, though training computes only those that the loss reads: the size
    of a model would else depend on what it is trained on. A readout counts where it has ``flops``; the
    products of the others are less than a thousandth of the backbone's.
    """
    forward = sizes.passes * model.sequence_flops(sizes.length, sizes.source_length).total
    if (readout := getattr(model, "readout", None)) is not None and hasattr(readout, "flops"):
        forward += sizes.passes * readout.flops(sizes.length)
    return 3 * forward / (sizes.raw_length or sizes.length)


def match(cls: type[Backbone], config: BackboneConfig, scale: ScaleConfig, sizes: Sizes) -> Matched:
    """Return the configuration whose size on ``scale.axis`` is nearest the target. Raises ConfigError."""
    known: dict[str, int] = {}

    def measure(candidate: BackboneConfig) -> int:
        if (key := repr(candidate)) not in known:  # the search comes to some widths again
            known[key] = build_and_measure(candidate)
        return known[key]

    def build_and_measure(candidate: BackboneConfig) -> int:
        model = sizes.on_meta(cls, candidate)
        if scale.axis == "flops":
            return round(training_flops_per_token(model, sizes))
        parts = model.parameters_by_part()
        return {
            "non_embedding": parts.body,
            "active_non_embedding": parts.body - parts.inactive,
            "total": parts.total,
        }[scale.axis]

    def matched(chosen: BackboneConfig, value: int) -> Matched:
        parts = sizes.on_meta(cls, chosen).parameters_by_part()
        unused = parts.inactive if scale.axis in ("non_embedding", "total") else 0
        return Matched(config=chosen, axis=scale.axis, target=scale.target, value=value, unused=unused)

    if scale.target is None:
        return matched(config, measure(config))
    _check_knob(cls, config)
    chosen = config
    if config.d_model is None:
        _check_smallest(cls, config, scale, measure)
        chosen = _nearest_width(config, scale.target, measure)
    if getattr(config, config.fine_knob) is None:
        chosen = _turn_fine_knob(chosen, scale.target, measure)
    value = measure(chosen)
    if abs(value / scale.target - 1) > TOLERANCE:
        raise _out_of_reach(cls, config, scale, value)
    return matched(chosen, value)


def _check_knob(cls: type[Backbone], config: BackboneConfig) -> None:
    """Raise ConfigError for a configuration without the fine setting that the solver changes."""
    knob = config.fine_knob
    if not hasattr(config, knob):
        raise ConfigError(
            f"backbone={cls.__module__}.{cls.__name__}: {type(config).__name__} has no {knob}"
            f"{class_location(type(config))}: add `{knob}: int | None = None`, the hidden width that reaches "
            "scale.targets, or name another such field in its class variable fine_knob"
        )


def _check_smallest(
    cls: type[Backbone], config: BackboneConfig, scale: ScaleConfig, measure: Callable[[Any], int]
) -> None:
    """Refuse a target below the narrowest model at once: of many layers, solving for it takes minutes."""
    smallest = dataclasses.replace(config, d_model=config.width_step)
    if getattr(config, config.fine_knob) is None:
        smallest = dataclasses.replace(smallest, **{config.fine_knob: 1})
    assert scale.target is not None
    value = measure(smallest)
    if value > (1 + TOLERANCE) * scale.target:
        raise _out_of_reach(cls, config, scale, value)


def _out_of_reach(cls: type[Backbone], config: BackboneConfig, scale: ScaleConfig, value: int) -> ConfigError:
    return ConfigError(
        f"scale.targets.{scale.axis}={scale.target}: {cls.__name__} comes no nearer than {value} "
        f"on this axis. The solver sets backbone.d_model and backbone.{config.fine_knob} where they "
        "are null; leave them null, choose another target, or scale=given to keep all widths"
    )


def _nearest_width(base: BackboneConfig, target: int, measure: Any) -> BackboneConfig:
    """The multiple of the smallest width whose standard proportions come nearest the target."""
    unit = base.width_step

    def at(multiple: int) -> BackboneConfig:
        return dataclasses.replace(base, d_model=unit * multiple)

    low, high = 0, 1
    while measure(at(high)) < target:
        low, high = high, 2 * high
    for step in itertools.count():
        if high - low <= 1:
            return min(at(max(1, low)), at(high), key=lambda c: abs(measure(c) - target))
        below, above = (max(1, measure(at(multiple))) for multiple in (low, high))
        # Sizes grow about as a power of the width. A middle now and then bounds the steps where they do not.
        share = math.log(target / below) / math.log(above / below)
        middle = round(low * (high / low) ** share) if step % 3 < 2 else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if measure(at(middle)) < target else (low, middle)
    raise AssertionError("the interval shrinks in each step")


def _turn_fine_knob(config: BackboneConfig, target: int, measure: Any) -> BackboneConfig:
    """Set the fine knob, linear in every axis, in the coarsest steps that reach the target."""
    knob = config.fine_knob

    def at(value: int) -> BackboneConfig:
        return dataclasses.replace(config, **{knob: value})

    per_unit = measure(at(17)) - measure(at(16))
    if per_unit == 0:  # no layer of this configuration has what it turns
        return config
    exact = 16 + (target - measure(at(16))) / per_unit
    for step in (16, 8, 4, 2, 1):
        candidate = at(max(step, step * round(exact / step)))
        if abs(measure(candidate) / target - 1) <= TOLERANCE / 2:
            return candidate
    return at(max(1, round(exact)))
