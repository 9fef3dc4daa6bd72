"""Parts of the result of a run, and the lines that it prints before training."""

from __future__ import annotations

from dataclasses import asdict

from archbench.experiments.config.study import RULES
from archbench.experiments.run.plan import Plan
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.console import count
from archbench.experiments.tasks.task import Task
from archbench.experiments.tracking.run_files import InitialModel, RunResult, TrainingSet, TrainingSummary
from archbench.experiments.training.trainer import Trainer


def opening_lines(
    settings: Settings, run_plan: Plan, training_set: TrainingSet | None, kernels: dict[str, str]
) -> list[str]:
    """Return what a run prints before it trains: size, cost, data, kernels."""
    matched, cost = run_plan.matched, run_plan.cost
    lines = [
        f"{cost.parameters.body:,} parameters without embedding and head, "
        f"{count(cost.flops_per_token)} FLOPs per token; "
        f"{matched.words}; {settings.folder}"
    ]
    lines += [f"warning: {line}" for line in matched.config.warnings]
    if run_plan.task.note is not None:
        lines.append(f"note: {run_plan.task.note}")
    if training_set is not None:
        fractions = [
            f"{'not compared' if fraction is None else f'{fraction:.1%}'} of {split}"
            for split, fraction in training_set.overlap.items()
        ]
        lines.append(f"training set: {training_set.examples:,} examples; in it: {', '.join(fractions)}")
    if kernels:
        lines.append("kernels: " + ", ".join(f"{part}: {path}" for part, path in kernels.items()))
    return lines


def planned_result(settings: Settings, run_plan: Plan) -> RunResult:
    """Return what is known of the result before the run folder is written."""
    task, source = run_plan.task, settings.init_from
    result = RunResult(
        format=1,
        key=settings.key,
        study=settings.study.name,
        cell=settings.cell,
        digest=settings.digest,
        seed=settings.seed,
        **asdict(settings.names),
        rules=RULES,
        **dict(run_plan.cost),
        fingerprint=task.fingerprint,
        message=None,
        metrics=[],
    )
    if (training_set := describe_training_set(task)) is not None:
        result.training_set = training_set
    if task.note is not None:
        result.data_note = task.note
    if source is not None:
        result.initial = InitialModel(path=str(source.path), fingerprint=source.fingerprint)
    return result


OVERLAP_EXAMPLES = 2000
"""Held-out examples that are compared with a finite training set."""


def describe_training_set(task: Task) -> TrainingSet | None:
    """Return the size of a generated task's finite training set, and its overlap; None for any other task."""
    size = task.num_examples("train")
    if size is None or task.num_examples("test") is not None:
        return None
    overlap = {split: task.overlap(split, OVERLAP_EXAMPLES) for split in ("validation", "test")}
    return TrainingSet(examples=size, overlap=overlap)


def training_summary(trainer: Trainer, peak: int) -> TrainingSummary:
    """Return the ``training`` section of result.json; ``peak`` is the peak memory in bytes."""
    state, examples = trainer.state, trainer.task.num_examples("train")
    return TrainingSummary(
        steps=state.step,
        tokens=state.tokens,
        flops=state.flops,
        epochs=None if examples is None else state.step * trainer.batch_size / examples,
        seconds=state.seconds,
        device_seconds=state.device_seconds,
        tokens_per_second=state.tokens / state.seconds if state.seconds else None,
        compile_seconds=state.compile_seconds,
        data_share=state.data_seconds / state.seconds if state.seconds else None,
        peak_memory_bytes=peak,
        micro_batch_size=trainer.micro_batcher.size,
        skipped_steps=state.anomalies.skipped,
        loss_spikes=state.anomalies.spikes,
    )
