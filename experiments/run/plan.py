"""The plan of a run before it is trained: its task, the size of its model, and its cost."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from typing import Any

import torch

from experiments.objectives.objective import Objective
from experiments.run.bounds import PRICED_EXAMPLES, check_task
from experiments.run.settings import Settings
from experiments.run.setup import run_setup
from experiments.run.size_solver import Matched, Sizes, match, training_flops_per_token
from experiments.runtime.errors import CheckpointError, ConfigError, DataError, RunError, is_full
from experiments.tasks.task import Task
from experiments.tracking.run_files import MatchedSize, ParameterCounts, PlannedCost, PlannedTraining
from experiments.training import mup

STATE_LENGTH = 2048
"""Sequence length at which decoding states are compared."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Task, objective, model size and cost of a run, known before it is trained."""

    task: Task
    objective: Objective
    extra_evaluations: dict[str, Objective]
    """The objective on the task of each further test, by the words that ask for it."""
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
        return _plan(settings)
    except ValueError as error:  # of a task, an objective or a model that cannot be what the settings say
        if isinstance(error, RunError):
            raise
        raise ConfigError(
            f"backbone={names.backbone}, objective={names.objective}, task={names.task}: {error}"
        ) from error


def _plan(settings: Settings) -> Plan:
    task = build_task(settings.task_class, settings.task, settings.names.task)
    for split in ("validation", "test"):
        available = task.num_examples(split)
        if available is not None and available < 2:
            raise DataError(
                f"task={settings.names.task}: the {split} split has {available} examples: at least 2 are "
                "needed for an evaluation; give it more"
            )
    objective = settings.objective_class(settings.objective, task)
    extra_evaluations = _extra_evaluations(settings, task)
    # The same examples for every seed, so that a size does not depend on it.
    view = objective.view(task.batch("train", 0, 0, PRICED_EXAMPLES), torch.Generator().manual_seed(0))
    if view.count_B.sum() == 0:
        raise DataError(
            f"task={settings.names.task}: nothing is scored in the first {PRICED_EXAMPLES} training "
            "examples: give data with answers in them"
        )
    length, source_length = view.mean_lengths()
    trained_length = settings.init_from.spec.max_length if settings.init_from else 0
    sizes = Sizes(
        vocab_size=task.vocabulary.size,
        length=length,
        source_length=source_length,
        raw_length=task.sequence_length,
        max_length=max(
            view.tokens_BT.shape[1],
            view.source_length,
            trained_length,
            *(each.longest for each in (objective, *extra_evaluations.values())),
        ),
        passes=view.passes,
        make_readout=objective.make_readout,
    )
    if settings.init_from is not None:
        settings.init_from.spec.check(task, settings.init_from.path)
    matched = match(settings.backbone_class, settings.backbone, settings.scale, sizes)
    if (width := settings.optimizer.mup_base_width) is not None:
        matched = dataclasses.replace(matched, config=mup.scaled_attention(matched.config, width))
    model = sizes.on_meta(settings.backbone_class, matched.config)
    parts = model.parameters_by_part()
    source = STATE_LENGTH if model.capabilities.encoder_decoder else 0
    flops = training_flops_per_token(model, sizes)
    cost = PlannedCost(
        parameters=ParameterCounts.model_validate(parts, from_attributes=True),
        flops_per_token=flops,
        state_bytes_2k=model.state_bytes(STATE_LENGTH, source),
        matched=MatchedSize.model_validate(matched, from_attributes=True),
        setup=run_setup(settings, matched.config, task),
        widths=asdict(matched.config),
        planned=_planned(settings, task, flops),
    )
    return Plan(
        task=task,
        objective=objective,
        extra_evaluations=extra_evaluations,
        sizes=sizes,
        matched=matched,
        cost=cost,
    )


def _planned(settings: Settings, task: Task, flops_per_token: float) -> PlannedTraining:
    """Return steps, tokens and FLOPs of the whole training."""
    tokens_per_step = settings.budget.batch_size * task.sequence_length
    steps = max(1, settings.budget.tokens // tokens_per_step)
    tokens = steps * tokens_per_step
    return PlannedTraining(steps=steps, tokens=tokens, flops=tokens * flops_per_token)


def _extra_evaluations(settings: Settings, task: Task) -> dict[str, Objective]:
    """The objective on the task of each further test, which must have the vocabulary of the run's own."""
    found = {}
    for name, config in settings.extra_evaluations.items():
        other = build_task(settings.task_class, config, settings.names.task)
        if other.vocabulary != task.vocabulary:
            raise ConfigError(
                f"trainer.extra_evaluations: {name}: it has "
                f"{other.vocabulary.size} tokens and the task trained on "
                f"{task.vocabulary.size}: change settings that leave the vocabulary as it is"
            )
        found[name] = settings.objective_class(settings.objective, other)
    return found
