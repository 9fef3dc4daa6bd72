"""What ``experiments.benchmark`` measures of one backbone: the list of its cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from architectures.backbone import Backbone, BackboneConfig
from experiments.benchmark.config import BenchmarkConfig
from experiments.benchmark.infilling import Blanks, smallest_vocabulary
from experiments.benchmark.memory_limit import can_limit
from experiments.benchmark.workloads import MODES, CellConfig
from experiments.config.schema import DeviceConfig, ScaleConfig
from experiments.cost.model_cost import CostConfig, Pricing, position_limit
from experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from experiments.objectives.objective import Objective
from experiments.runtime.device import torch_device
from experiments.runtime.errors import ConfigError

BYTES = 256
"""Vocabulary of a backbone that brings none: text as bytes."""


def able(cls: type[Backbone], objective: type[Objective]) -> list[str]:
    """The modes that mean something for a backbone which was trained by ``objective``."""
    fills = (
        issubclass(objective, UnmaskingObjective) and objective.missing_capability(cls.capabilities) is None
    )
    can = {"prefill": cls.capabilities.decodes, "decode": cls.capabilities.decodes, "sample": fills}
    return [mode for mode in MODES if can.get(mode, True)]


def modes(request: BenchmarkConfig, cls: type[Backbone], objective: type[Objective]) -> list[str]:
    """The modes to measure.

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
        """``objective`` is the class and its settings; they decide how blanks are filled in."""
        self.cls, self.asked, self.device, self.objective = cls, request, device, objective
        self.modes = modes(request, cls, objective[0])
        if request.memory_limit is not None and not can_limit(torch_device(device.name)):
            raise ConfigError(f"memory_limit={request.memory_limit}: on a CPU only Linux can; leave it null")
        self.longest = self._longest(getattr(config, "block_length", 1))
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
            self._check_filling(pricing.model)

    def _longest(self, block_length: int) -> int:
        """The longest sequence of any cell; texts that are filled in by blocks end with a full one."""
        longest = max(self.asked.contexts)
        if "decode" in self.modes:
            longest += self.asked.decode_tokens
        return -(-longest // block_length) * block_length if "sample" in self.modes else longest

    def _check_filling(self, model: Backbone) -> None:
        """Raises ConfigError for a model that the objective cannot fill in texts with."""
        if self.vocab_size < smallest_vocabulary():
            raise ConfigError(
                f"vocab_size={self.vocab_size}: special tokens and one to write are {smallest_vocabulary()}"
            )
        self.unmasking_objective.make_readout(model)

    @property
    def unmasking_objective(self) -> UnmaskingObjective:
        """The objective, which fills in texts."""
        form, settings = self.objective
        objective = form(settings, Blanks(self.vocab_size))
        assert isinstance(objective, UnmaskingObjective)
        return objective

    def cells(self) -> Iterator[CellConfig]:
        """By mode, batch and context; the searches for the largest batch are last in each mode."""
        request = self.asked
        for mode in self.modes:
            for batch_size in [request.batch_size] if mode == "train" else sorted({1, request.batch_size}):
                for context in request.contexts:
                    cell_batch = request.batch(context) if mode == "train" else batch_size
                    for steps in self._steps(context) if mode == "sample" else [None]:
                        yield self._cell(mode, context, cell_batch, steps=steps)
            if request.memory_limit is not None and mode != "sample":
                for context in request.contexts:
                    yield self._cell(mode, context, 1, memory_limit=round(request.memory_limit * 2**30))

    def _steps(self, context: int) -> list[int | None]:
        """Denoising steps of a text, each number once."""
        return list(dict.fromkeys(min(steps, context) for steps in self.asked.steps or [context]))

    def _cell(
        self,
        mode: str,
        context: int,
        batch_size: int,
        *,
        steps: int | None = None,
        memory_limit: int | None = None,
    ) -> CellConfig:
        request = self.asked
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
        """The request to the process of a cell, fit for JSON."""
        form, settings = self.objective
        return {
            "backbone": {"_target_": _path(self.cls), **dataclasses.asdict(self.config)},
            "objective": {"_target_": _path(form), **dataclasses.asdict(settings)},
            "device": dataclasses.asdict(self.device),
            "cell": dataclasses.asdict(cell),
        }


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
