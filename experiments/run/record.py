"""The record of a run: its identity and provenance before training, its result after it."""

from __future__ import annotations

from dataclasses import asdict

from experiments.run import resume_compatibility
from experiments.run.model_files import ModelSpec
from experiments.run.plan import Plan
from experiments.run.settings import Settings
from experiments.runtime.console import Console
from experiments.runtime.device import torch_device
from experiments.runtime.errors import CheckpointError, Preempted, RunError
from experiments.tasks.task import Task
from experiments.tracking.provenance import provenance
from experiments.tracking.run_files import (
    DataSource,
    InitialModel,
    Provenance,
    RunResult,
    TrainingSet,
    TrainingSummary,
)
from experiments.tracking.run_folder import RunFolder
from experiments.training.parallel import collectives
from experiments.training.trainer import Trainer


def planned_result(settings: Settings, planned: Plan) -> RunResult:
    """Return what is known of the result before the run folder is written."""
    task, source = planned.task, settings.init_from
    result = RunResult(
        format=1,
        key=settings.key,
        study=settings.study.name,
        cell=settings.cell,
        digest=settings.digest,
        seed=settings.seed,
        **asdict(settings.names),
        **dict(planned.cost),
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


def begin_record(
    settings: Settings,
    planned: Plan,
    spec: ModelSpec,
    kernels: dict[str, str],
    folder: RunFolder,
    console: Console,
) -> Provenance:
    """Write what is known before training. One process calls it.

    Raises:
        CheckpointError: the run folder cannot be written.
    """
    try:
        resume_compatibility.check_checkpoints(folder.root)
        if settings.continue_from is not None:
            resume_compatibility.copy_parent_checkpoint(settings.continue_from, folder.root)
        now = provenance(
            settings.key,
            torch_device(settings.device.name),
            settings.device.precision,
            DataSource(task=settings.names.task, fingerprint=planned.task.fingerprint),
            kernels,
            code_modules(settings),
        )
        now.resume = resume_compatibility.compare_provenance(folder.root, now, console.log)
        folder.open(settings.resolved, now)
        spec.write(folder.root)
        if planned.task.tokenizer is not None:
            planned.task.tokenizer.save(folder.root)
    except OSError as error:
        raise CheckpointError(f"{settings.folder}: the run folder cannot be written: {error}") from error
    return now


def code_modules(settings: Settings) -> list[str]:
    """Return the modules that a configuration names, which may be the user's: they decide the result."""
    classes = (
        settings.backbone_class,
        settings.objective_class,
        settings.task_class,
        type(settings.optimizer),
    )
    schedule = settings.optimizer.schedule
    return [cls.__module__ for cls in classes] + ([schedule] if "." in schedule else [])


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
    state = trainer.state
    return TrainingSummary(
        steps=state.step,
        tokens=state.tokens,
        flops=state.flops,
        epochs=_epochs(trainer),
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


def _epochs(trainer: Trainer) -> float | None:
    """Return the number of passes over the training examples; None where they never run out."""
    available = trainer.task.num_examples("train")
    return None if available is None else trainer.state.step * trainer.batch_size / available


def finish_record(folder: RunFolder, result: RunResult, error: BaseException | None) -> BaseException | None:
    """Write the result. Return the error the run ends with: ``error``, or that nothing can be written."""

    def write() -> None:
        try:
            folder.finish(result)
        except OSError as failure:
            raise CheckpointError(f"{folder.root}: the result cannot be written: {failure}") from failure

    try:
        if error is None or isinstance(error, Preempted):
            collectives.run_on_rank_zero(write)  # all are here, and shall not end well where the first cannot
        else:
            write()  # the others may be gone
    except RunError as failure:
        return failure
    return error
