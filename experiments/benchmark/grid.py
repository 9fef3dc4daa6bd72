"""The settings of ``archbench benchmark``, and the list of cells that it measures of one backbone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.experiments.benchmark.infilling import Blanks, smallest_vocabulary
from archbench.experiments.benchmark.memory_limit import can_limit
from archbench.experiments.benchmark.workloads import MODES, CellConfig
from archbench.experiments.config.schema import DeviceConfig, ScaleConfig
from archbench.experiments.cost.model_cost import CostConfig, Pricing, position_limit
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.runtime.device import torch_device
from archbench.experiments.runtime.errors import ConfigError, nearest

BYTES = 256
"""Vocabulary of a backbone without one: text as bytes."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Settings of ``archbench benchmark``."""

    name: str
    """Name of the backbone."""
    mode: list[str] | None = None
    """Modes to measure: ``train``, ``prefill``, ``decode``, ``sample``; null for all possible modes."""
    contexts: list[int] = field(default_factory=lambda: [512, 2048])
    """Tokens of a training sequence or a prompt; tokens read before the first decoded token; tokens of
    a text to infill."""
    source_length: int | None = None
    """Tokens of the source of an encoder-decoder; null for as many as the context."""
    batch_size: int = 8
    """Sequences of a training step; the other modes are measured for 1 and for this number."""
    tokens_per_step: int | None = None
    """Tokens of a training step for every context: it has this many divided by the context sequences. Null
    for ``batch_size`` sequences."""
    memory_limit: float | None = None
    """Limit of memory in GiB: training, prefill and decoding are also measured with the largest batch that
    fits. Null does not search."""
    steps: list[int] | None = None
    """Denoising steps of a text to infill, at most its tokens; null for one per token."""
    vocab_size: int | None = None
    """Tokens of the vocabulary; null for ``backbone.vocab_size``, or 256 (bytes) if that is null."""
    repeats: int = 10
    """Minimum number of timed training steps or prompts; of infilled texts at most 3."""
    seconds: float = 2.0
    """Minimum duration of the timed repetitions in seconds."""
    warmup_seconds: float = 10.0
    """Seconds after which the warm-up ends if times are not stable."""
    decode_tokens: int = 64
    """Tokens decoded and timed one by one."""
    piece: int = 2048
    """Maximum tokens of a prompt in one forward pass; longer prompts are read in pieces."""
    output: str | None = None
    """Parquet or JSON file to append the rows to."""

    def __post_init__(self) -> None:
        counts = ("source_length", "batch_size", "tokens_per_step", "vocab_size", "repeats", "decode_tokens")
        for name in (*counts, "piece"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for name in ("seconds", "warmup_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise ValueError(f"memory_limit={self.memory_limit} must be positive, in GiB, or null")
        for name in ("contexts", "steps"):
            values = getattr(self, name)
            if values is not None and (not values or min(values) < 1):
                description = {"contexts": "lengths", "steps": "numbers"}[name]
                raise ValueError(f"{name}={list(values)} must be {description} of at least 1, as [512,2048]")
        if self.mode is not None and not self.mode:
            raise ValueError(f"mode=[] measures nothing: name some of {', '.join(MODES)}")
        for mode in self.mode or ():
            if mode not in MODES:
                raise ValueError(f"mode={mode!r}{nearest(mode, MODES)}")
        for context in self.contexts:
            if self.tokens_per_step is not None and self.tokens_per_step % context:
                raise ValueError(
                    f"tokens_per_step={self.tokens_per_step} is no multiple of {context}, one of contexts: a "
                    "training step has full sequences"
                )

    def batch(self, context: int) -> int:
        """Return the sequences of a training step."""
        return self.batch_size if self.tokens_per_step is None else self.tokens_per_step // context


def able(cls: type[Backbone], objective: type[Objective]) -> list[str]:
    """Return the possible modes of a backbone that was trained with ``objective``."""
    fills = (
        issubclass(objective, UnmaskingObjective) and objective.missing_capability(cls.capabilities) is None
    )
    can = {"prefill": cls.capabilities.decodes, "decode": cls.capabilities.decodes, "sample": fills}
    return [mode for mode in MODES if can.get(mode, True)]


def modes(request: BenchmarkConfig, cls: type[Backbone], objective: type[Objective]) -> list[str]:
    """Return the modes to measure.

    Raises ConfigError for an impossible mode, or a setting of a mode that is not measured.
    """
    possible = able(cls, objective)
    chosen = list(request.mode or possible)
    remedy = f"; set mode=[{','.join(possible)}]"
    if recurrent := [mode for mode in chosen if mode in ("prefill", "decode") and mode not in possible]:
        raise ConfigError(f"mode={recurrent}: backbone={request.name} keeps no decoding state{remedy}")
    if "sample" in chosen and "sample" not in possible:
        raise ConfigError(
            f"mode=['sample']: backbone={request.name} with {objective.__name__} fills in no blanks{remedy}"
        )
    needs = {"steps": {"sample"}, "tokens_per_step": {"train"}, "memory_limit": set(MODES) - {"sample"}}
    for name, modes_of_setting in needs.items():
        if getattr(request, name) is not None and not modes_of_setting & set(chosen):
            mode_names = " or ".join(mode for mode in MODES if mode in modes_of_setting)
            raise ConfigError(
                f"{name}={getattr(request, name)} is of mode {mode_names}, not measured: leave it null"
            )
    return chosen


class Benchmark:
    """The cells of one backbone, all with the same model."""

    def __init__(
        self,
        cls: type[Backbone],
        config: BackboneConfig,
        objective: tuple[type[Objective], Any],
        scale: ScaleConfig,
        device: DeviceConfig,
        request: BenchmarkConfig,
    ) -> None:
        """``objective`` is the class and its settings, which determine how texts are infilled."""
        self.cls, self.request, self.device, self.objective = cls, request, device, objective
        self.modes = modes(request, cls, objective[0])
        if request.memory_limit is not None and not can_limit(torch_device(device.name)):
            raise ConfigError(f"memory_limit={request.memory_limit}: on a CPU only Linux can; leave it null")
        longest, block_length = max(request.contexts), getattr(config, "block_length", 1)
        if "decode" in self.modes:
            longest += request.decode_tokens
        if "sample" in self.modes:  # a text ends with a full block
            longest = -(-longest // block_length) * block_length
        self.longest = longest
        """Tokens of the longest sequence of any cell."""
        limit = position_limit(config)
        if limit is not None and self.longest > limit:
            raise ConfigError(
                f"contexts={list(request.contexts)}: the model has {limit} positions and would need "
                f"{self.longest}; shorten contexts or decode_tokens, or raise backbone.max_positions"
            )
        pricing = Pricing(
            cls,
            config,
            scale,
            CostConfig(
                name=request.name,
                sequence_length=self.longest,
                source_length=request.source_length,
                vocab_size=request.vocab_size or getattr(config, "vocab_size", None) or BYTES,
                precision="fp32",
            ),
        )
        self.config, self.vocab_size = pricing.config, pricing.sizes.vocab_size
        if "sample" in self.modes:
            if self.vocab_size < smallest_vocabulary():
                smallest = smallest_vocabulary()
                raise ConfigError(
                    f"vocab_size={self.vocab_size}: special tokens and one to write are {smallest}"
                )
            self.unmasking_objective.make_readout(pricing.model)  # raises ConfigError if it cannot infill

    @property
    def unmasking_objective(self) -> UnmaskingObjective:
        """Return the objective, which infills texts."""
        form, settings = self.objective
        objective = form(settings, Blanks(self.vocab_size))
        assert isinstance(objective, UnmaskingObjective)
        return objective

    def cells(self) -> Iterator[CellConfig]:
        """Yield the cells by mode, batch and context; searches for the largest batch end each mode."""
        request = self.request
        for mode in self.modes:
            for batch_size in [request.batch_size] if mode == "train" else sorted({1, request.batch_size}):
                for context in request.contexts:
                    cell_batch = request.batch(context) if mode == "train" else batch_size
                    denoising_steps: list[int | None] = [None]
                    if mode == "sample":
                        denoising_steps = [min(steps, context) for steps in request.steps or [context]]
                    for steps in dict.fromkeys(denoising_steps):
                        yield self._cell(mode, context, cell_batch, steps=steps)
            if request.memory_limit is not None and mode != "sample":
                for context in request.contexts:
                    yield self._cell(mode, context, 1, memory_limit=round(request.memory_limit * 2**30))

    def _cell(
        self,
        mode: str,
        context: int,
        batch_size: int,
        *,
        steps: int | None = None,
        memory_limit: int | None = None,
    ) -> CellConfig:
        request = self.request
        source = request.source_length or context
        return CellConfig(
            mode=mode,
            context=context,
            batch_size=batch_size,
            source_length=source if self.cls.capabilities.encoder_decoder else 0,
            vocab_size=self.vocab_size,
            max_length=max(self.longest, source),
            repeats=request.repeats,
            seconds=request.seconds,
            warmup_seconds=request.warmup_seconds,
            decode_tokens=request.decode_tokens,
            piece=request.piece,
            steps=steps,
            memory_limit=memory_limit,
        )

    def order(self, cell: CellConfig) -> dict[str, Any]:
        """Return the request to the process of a cell, as values for JSON."""
        form, settings = self.objective
        return {
            "backbone": {"_target_": _path(self.cls), **dataclasses.asdict(self.config)},
            "objective": {"_target_": _path(form), **dataclasses.asdict(settings)},
            "device": dataclasses.asdict(self.device),
            "cell": dataclasses.asdict(cell),
        }


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
