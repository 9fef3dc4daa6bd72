"""The plan of a run before it is trained: task, objective, size of the model, cost, and whether it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from archbench.architectures.backbone import BackboneConfig
from archbench.experiments.config.structured import user_code_location, user_mistakes
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.settings import Settings
from archbench.experiments.run.size_solver import Matched, Sizes, match, training_flops_per_token
from archbench.experiments.runtime.device import torch_device
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, DataError, RunError, is_full
from archbench.experiments.runtime.machine import total_memory, usable_cores
from archbench.experiments.tasks.task import Task
from archbench.experiments.tracking.run_files import (
    MatchedSize,
    ParameterCounts,
    PlannedCost,
    PlannedTraining,
    RunSetup,
)
from archbench.experiments.training import mup
from archbench.experiments.training.parallel import collectives

TOKEN_BYTES = 24
"""Bytes of a token of a batch: input, target and weight."""
PRICED_EXAMPLES = 64
"""Examples whose mean lengths the FLOPs of a run are computed from."""
CORE_FLOPS, GPU_FLOPS = 2e11, 2e15
"""Operations per second that no processor core and no GPU exceeds."""
LONGEST = 365 * 24 * 3600.0
"""Seconds of training, at that speed, above which a run is taken for a mistake."""
FORCE = "choose less, or device.force=true to go on"


STATE_LENGTH = 2048
"""Sequence length at which decoding states are compared."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Task, objective, model size and cost of a run, known before it is trained."""

    task: Task
    objective: Objective
    extra_evaluations: dict[str, Objective]
    """The objective on the task of each further test, by its overrides."""
    sizes: Sizes
    matched: Matched
    cost: PlannedCost


def build_task(task_class: type[Task], config: Any, name: str) -> Task:
    """Return the task with its data prepared. Raises DataError if that fails."""
    try:
        return task_class(config)  # type: ignore[call-arg]
    except OSError as error:
        if is_full(error):
            raise CheckpointError(
                f"task={name}: the data cannot be stored: {error}: make room, or choose another disk with "
                "task.cache_dir="
            ) from error
        raise DataError(f"task={name}: the data cannot be read or prepared: {error}") from error


def plan(settings: Settings) -> Plan:
    """Solve for the size of the model and compute its cost. Allocates no weights."""
    check_task(settings)
    names = settings.names
    try:
        task = build_task(settings.task_class, settings.task, names.task)
        for split in ("validation", "test"):
            available = task.num_examples(split)
            if available is not None and available < 2:
                raise DataError(
                    f"task={names.task}: the {split} split has {available} examples: at least 2 are "
                    "needed for an evaluation; give it more"
                )
        objective = settings.objective_class(settings.objective, task)
        extra_evaluations = _extra_evaluations(settings, task)
        sizes = model_sizes(settings, task, objective, [*extra_evaluations.values()])
        if settings.init_from is not None:
            settings.init_from.spec.check(task, settings.init_from.path)
        with user_mistakes("backbone", settings.backbone_class):
            matched = match(settings.backbone_class, settings.backbone, settings.scale, sizes)
        if (width := settings.optimizer.mup_base_width) is not None:
            matched = dataclasses.replace(matched, config=mup.scaled_attention(matched.config, width))
        with user_mistakes("backbone", settings.backbone_class):
            cost = planned_cost(settings, task, sizes, matched)
        return Plan(
            task=task,
            objective=objective,
            extra_evaluations=extra_evaluations,
            sizes=sizes,
            matched=matched,
            cost=cost,
        )
    except ValueError as error:  # of a task, an objective or a model that does not allow these settings
        if isinstance(error, RunError):
            raise
        raise ConfigError(
            f"backbone={names.backbone}, objective={names.objective}, task={names.task}: {error}"
            f"{user_code_location(error)}"
        ) from error


def model_sizes(
    settings: Settings, task: Task, objective: Objective, extra_evaluations: Sequence[Objective]
) -> Sizes:
    """Return the lengths and the vocabulary that the model is built for, from the first training examples."""
    # The same examples for every seed, so that a size does not depend on it.
    view = objective.view(task.batch("train", 0, 0, PRICED_EXAMPLES), torch.Generator().manual_seed(0))
    if view.count_B.sum() == 0:
        raise DataError(
            f"task={settings.names.task}: nothing is scored in the first {PRICED_EXAMPLES} training "
            "examples: give data with answers in them"
        )
    length, source_length = view.mean_lengths()
    longest = [other.longest for other in (objective, *extra_evaluations)]
    if settings.init_from is not None:
        longest.append(settings.init_from.spec.max_length)
    return Sizes(
        vocab_size=task.vocabulary.size,
        length=length,
        source_length=source_length,
        raw_length=task.sequence_length,
        max_length=max(view.tokens_BT.shape[1], view.source_length, *longest),
        passes=view.passes,
        make_readout=objective.make_readout,
    )


def planned_cost(settings: Settings, task: Task, sizes: Sizes, matched: Matched) -> PlannedCost:
    """Return parameters, FLOPs and decoding state of the model, and the length of the whole training."""
    model = sizes.on_meta(settings.backbone_class, matched.config)
    flops = training_flops_per_token(model, sizes)
    tokens_per_step = settings.budget.batch_size * task.sequence_length
    steps = settings.budget.tokens // tokens_per_step
    if steps < 1:
        raise ConfigError(
            f"budget.tokens={settings.budget.tokens} is less than one step of {tokens_per_step:,} tokens "
            f"(budget.batch_size={settings.budget.batch_size} sequences of {task.sequence_length}): give at "
            f"least budget.tokens={tokens_per_step}, or a smaller batch"
        )
    tokens = steps * tokens_per_step
    source = STATE_LENGTH if model.capabilities.encoder_decoder else 0
    return PlannedCost(
        parameters=ParameterCounts.model_validate(model.parameters_by_part(), from_attributes=True),
        flops_per_token=flops,
        state_bytes_2k=model.state_bytes(STATE_LENGTH, source),
        matched=MatchedSize.model_validate(matched, from_attributes=True),
        setup=RunSetup(
            **model_shape(matched.config),
            batch_size=settings.budget.batch_size,
            sequence_length=task.sequence_length,
            learning_rate=settings.optimizer.learning_rate,
        ),
        widths=asdict(matched.config),
        planned=PlannedTraining(steps=steps, tokens=tokens, flops=tokens * flops),
    )


def rounding(settings: Settings, run_plan: Plan) -> str | None:
    """Return what the budget of a run is rounded to, whole steps; None if it is not."""
    asked, planned = settings.budget.tokens, run_plan.cost.planned
    if asked == planned.tokens:
        return None
    return (
        f"budget.tokens={asked:,} is rounded to {planned.tokens:,}: whole steps of "
        f"{planned.tokens // planned.steps:,} tokens"
    )


def _extra_evaluations(settings: Settings, task: Task) -> dict[str, Objective]:
    """The objective on the task of each further test, whose vocabulary must be that of the run."""
    objectives = {}
    for name, config in settings.extra_evaluations.items():
        other = build_task(settings.task_class, config, settings.names.task)
        if other.vocabulary != task.vocabulary:
            raise ConfigError(
                f"trainer.extra_evaluations: {name}: it has "
                f"{other.vocabulary.size} tokens and the task trained on "
                f"{task.vocabulary.size}: change settings that leave the vocabulary as it is"
            )
        objectives[name] = settings.objective_class(settings.objective, other)
    return objectives


def model_shape(config: BackboneConfig) -> dict[str, int | None]:
    """Return width, layers (of encoder and decoder together), attention heads and size of the SSM state.

    What a backbone does not have is None. Of a hybrid only the mixers that are in its layers count.
    """
    widths = asdict(config)
    mixers: set[str] | None = getattr(config, "mixer_types", None)
    parts = [widths]
    for name, part in widths.items():
        used = mixers is None or any(mixer == name or mixer.endswith(f"_{name}") for mixer in mixers)
        if isinstance(part, dict) and used:
            parts.append(part)

    def first(key: str) -> Any:
        return next((part[key] for part in parts if part.get(key) is not None), None)

    layers = widths["num_layers"]
    if "num_encoder_layers" in widths:
        layers += widths["num_encoder_layers"] or layers
    return {
        "d_model": config.width,
        "num_layers": layers,
        "num_heads": first("num_heads"),
        "d_state": first("d_state"),
    }


def check_task(settings: Settings) -> None:
    """Refuse what memory cannot hold even before there is a model. Raises ConfigError with the figures."""
    length = int(getattr(settings.task, "sequence_length", None) or 1)
    symbols = int(getattr(settings.task, "num_symbols", None) or 1)
    batch = settings.budget.batch_size
    needed = {
        f"task.sequence_length={length}: {PRICED_EXAMPLES} examples": PRICED_EXAMPLES * length * TOKEN_BYTES,
        f"budget.batch_size={batch} with task.sequence_length={length}: a batch": batch
        * length
        * TOKEN_BYTES,
        f"task.num_symbols={symbols}: an embedding of width 16 with its moments": symbols * 16 * 4 * 4,
    }
    for what, size in needed.items():
        _refuse(settings, what, size, total_memory())


def check_run(settings: Settings, config: BackboneConfig, cost: PlannedCost, vocab_size: int) -> None:
    """Refuse a run that this machine cannot hold, or not end within a year. Raises ConfigError.

    Counted is what no implementation can do without: weights, gradients and moments, and of the sequences
    computed at once the logits and a state for each layer. Runs of several processes are not looked at.

    Args:
        settings: of the run.
        config: of the backbone, with its widths.
        cost: of the run, from its plan.
        vocab_size: symbols that the head scores.
    """
    device = torch_device(settings.device.name)
    memory = total_memory()
    if device.type == "cpu" and settings.device.peak_flops is not None and not settings.device.force:
        raise ConfigError(
            f"device.peak_flops={settings.device.peak_flops:g}: the run is planned for a GPU, and this "
            "machine has none: start it where there is one, or choose device=cpu"
        )
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    if collectives.world_size() == 1:
        parameters = cost.parameters.total
        copies = 5 if settings.optimizer.ema is not None else 4
        weights = copies * 4 * parameters
        _refuse(settings, f"{parameters:,} parameters with gradients and moments", weights, memory)
        micro_batch = settings.budget.micro_batch_size
        rows = 1 if micro_batch == "auto" else int(micro_batch or settings.budget.batch_size)
        length = int(getattr(settings.task, "sequence_length", None) or 1)
        width = 2 if settings.device.precision == "bf16" else 4
        layers = (cost.setup.num_layers or 1) * int(config.width or 1)
        what = f"{rows} sequences of {length} tokens at once, with the weights,"
        _refuse(settings, what, weights + rows * length * width * (vocab_size + layers), memory)
    cores = settings.device.threads or usable_cores()
    speed = collectives.world_size() * (GPU_FLOPS if device.type == "cuda" else CORE_FLOPS * cores)
    seconds = cost.planned.flops / speed
    if seconds > LONGEST and not settings.device.force:
        raise ConfigError(
            f"budget.tokens={settings.budget.tokens}: {cost.planned.flops:.3g} FLOPs take "
            f"{seconds / LONGEST:,.1f} years on this machine even at {speed:.0e} per second: {FORCE}"
        )


def _refuse(settings: Settings, what: str, size: float, memory: float) -> None:
    if size > memory and not settings.device.force:
        raise ConfigError(
            f"{what} would take {size / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB: "
            f"{FORCE}"
        )
