"""Execute a run from its settings to its result: build the model, train, evaluate, write the record."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from experiments.config.tracking import TrackingConfig
from experiments.evaluation.divergence import divergence
from experiments.objectives.objective import Objective
from experiments.run import resume_compatibility
from experiments.run.bounds import check_run
from experiments.run.build import build
from experiments.run.closing import closing_lines
from experiments.run.plan import plan
from experiments.run.record import (
    begin_record,
    describe_training_set,
    finish_record,
    run_identity,
    training_summary,
)
from experiments.run.settings import Settings
from experiments.runtime.console import Console, clock, count, plural
from experiments.runtime.device import configure_process, torch_device
from experiments.runtime.errors import (
    DivergedError,
    LockedError,
    OutOfMemoryError,
    Preempted,
)
from experiments.runtime.failures import to_run_error
from experiments.runtime.machine import usable_threads
from experiments.runtime.memory import is_out_of_memory, peak_memory, reset_peak_memory
from experiments.runtime.preemption import Interruptions, stops_at_once
from experiments.runtime.restarts import check_progress
from experiments.runtime.run_lock import RunLock
from experiments.runtime.secrets import redact
from experiments.tasks.metrics import Metric
from experiments.tracking.run_folder import RunFolder
from experiments.tracking.summary import derived
from experiments.tracking.tracker import RunIdentity, Tracker, open_tracker
from experiments.training.checkpoints import checkpoint
from experiments.training.parallel import collectives
from experiments.training.parallel.device_mesh import ParallelDims, make_parallel_dims
from experiments.training.trainer import Trainer


def execute(settings: Settings) -> None:
    """Train, evaluate and record one run, or log that it is done already.

    Raises:
        RunError: the run failed in a way its message explains; if it had begun,
            the failure is a row of the study (result.json).
        Preempted: the run was asked to stop; a checkpoint was saved.
        LockedError: another process is writing the run; nothing was touched.
    """
    device = torch_device(settings.device.name)
    collectives.start(device)
    # Several processes end together, between two steps.
    with stops_at_once() if collectives.world_size() == 1 else nullcontext():
        _execute_or_skip(settings, device)


def _execute_or_skip(settings: Settings, device: torch.device) -> None:
    """Execute the run unless it has ended already."""
    dims = make_parallel_dims(settings.parallel, device.type, settings.budget)
    folder = RunFolder(settings.folder, writes=collectives.is_rank_zero())
    console = Console(f"{settings.cell} s{settings.seed}", quiet=not collectives.is_rank_zero())
    collectives.run_on_rank_zero(lambda: resume_compatibility.check_config(settings, folder.root))
    if not _finished(folder, console):
        with _one_writer(folder.root) as lock:
            if not _finished(folder, console):  # it may have ended while we waited for the lock
                collectives.run_on_rank_zero(lambda: _check_progress(folder))
                _execute(settings, folder, console, dims, lock)


def _finished(folder: RunFolder, console: Console) -> bool:
    finished = collectives.run_on_rank_zero(lambda: folder.finished)
    if finished:
        result = folder.result() or {}
        console.log(f"already {result['status']}: {folder.root}")
        for line in closing_lines(folder.root, result):
            console.log(line)
    return finished


def _check_progress(folder: RunFolder) -> None:
    """Give a job up that restarts for nothing. Raises RunError."""
    state = (checkpoint.newest_state(folder.checkpoints) or {}).get("train_state", {})
    check_progress(
        folder.root,
        checkpoint.newest_step(folder.checkpoints),
        float(state.get("seconds", 0.0)),
        float(state.get("compile_seconds", 0.0)),
    )


@contextmanager
def _one_writer(folder: Path) -> Iterator[RunLock]:
    """Hold the lock of a run in the process of rank 0. Raises LockedError in all processes."""
    lock = RunLock(folder)
    with ExitStack() as held:

        def take() -> None:
            held.enter_context(lock)

        collectives.run_on_rank_zero(take)
        yield lock


def _execute(
    settings: Settings, folder: RunFolder, console: Console, dims: ParallelDims, lock: RunLock
) -> None:
    """Do the part of ``execute`` that needs the lock."""
    configure_process(threads=_threads(settings, folder), kernels=settings.device.kernels)
    planned = collectives.rank_zero_first(lambda: plan(settings))
    check_run(settings, planned.matched.config, planned.cost, planned.sizes.vocab_size)
    record = {**run_identity(settings), **planned.cost, "fingerprint": planned.task.fingerprint}
    if training_set := describe_training_set(planned.task):
        record["training_set"] = training_set
    if planned.task.note is not None:
        record["data_note"] = planned.task.note
    if settings.init_from is not None:
        record["initial"] = {
            "path": str(settings.init_from.path),
            "fingerprint": settings.init_from.fingerprint,
        }
    try:
        reset_peak_memory()
        built = build(settings, planned, dims)
        kernels = built.kernels | _engine(settings, dims)
        record |= collectives.run_on_rank_zero(
            lambda: begin_record(settings, planned, built.spec, kernels, folder, console)
        )
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(f"out of memory while building the model: {error}") from error
        raise
    if folder.writes:
        console.keep(folder.root / "train.log")
    matched, parameters = planned.matched, planned.cost["parameters"]
    console.log(
        f"{parameters['body']:,} parameters without embedding and head, "
        f"{count(planned.cost['flops_per_token'])} FLOPs per token; "
        f"{matched.words}; {settings.folder}"
    )
    if planned.task.note is not None:
        console.log(f"note: {planned.task.note}")
    if training_set:
        shares = [
            f"{'not compared' if share is None else f'{share:.1%}'} of {split}"
            for split, share in training_set["overlap"].items()
        ]
        console.log(f"training set: {training_set['examples']:,} examples; in it: {', '.join(shares)}")
    if kernels:
        console.log("kernels: " + ", ".join(f"{part}: {path}" for part, path in kernels.items()))
    tracking = settings.tracking if folder.writes else TrackingConfig()
    tracker = open_tracker(
        tracking,
        RunIdentity.of(record),
        settings.folder,
        settings.resolved,
        derived(record, folder.provenance()),
        steps=planned.cost["planned"]["steps"],
    )
    with Interruptions(
        settings.trainer.preemption_margin_seconds, clock=collectives.is_rank_zero()
    ) as interruptions:
        trainer = Trainer(
            settings,
            strategy=built.strategy,
            task=planned.task,
            folder=folder,
            tracker=tracker,
            console=console,
            flops_per_token=planned.cost["flops_per_token"],
            interruptions=interruptions,
            lock=lock,
        )
        _train(trainer, planned.extra_evaluations, record, folder, tracker, console)


def _threads(settings: Settings, folder: RunFolder) -> int | None:
    """Return the CPU threads of a run: those set, else those it began with; None leaves PyTorch's choice.

    The number may change the last digits of a result. So a run that is resumed keeps its own, where it may
    have as many.
    """
    if settings.device.threads is not None or collectives.world_size() > 1:  # torchrun shares the cores
        return settings.device.threads
    begun = folder.provenance().get("device", {}).get("threads")
    if begun is None and "OMP_NUM_THREADS" not in os.environ:
        return None
    return min(begun or usable_threads(), usable_threads())


def _engine(settings: Settings, dims: ParallelDims) -> dict[str, str]:
    """Return the part of the recorded kernels that says how several processes or compiled blocks train."""
    processes = {} if dims.mesh is None else {"processes": dims.describe()}
    return processes | ({} if settings.trainer.compile == "none" else {"blocks": "compiled"})


def _final_metrics(trainer: Trainer, extra_evaluations: dict[str, Objective]) -> Iterator[dict[str, Any]]:
    """Yield the metrics on the test split, the task's own first, then those of the extra evaluations."""
    examples, evaluate = trainer.config.test_examples, trainer.evaluator.evaluate
    yield from (asdict(metric) for metric in evaluate("test", examples))
    for name, objective in extra_evaluations.items():
        yield from (asdict(metric) | {"split": name} for metric in evaluate("test", examples, objective))


def _train(
    trainer: Trainer,
    extra_evaluations: dict[str, Objective],
    record: dict[str, Any],
    folder: RunFolder,
    tracker: Tracker,
    console: Console,
) -> None:
    """Train, evaluate, and write the result, whether the run completes or fails."""
    error: BaseException | None = None
    status, metrics = "complete", []
    try:
        trainer.run()
        for metric in _final_metrics(trainer, extra_evaluations):
            metrics.append(metric)  # what is known by a failure is recorded
        record["validation"] = [
            asdict(metric)
            for metric in trainer.evaluator.evaluate("validation", trainer.config.validation_examples)
        ]
        references = trainer.task.references()
        record["references"] = [asdict(reference) for reference in references]
        if (why := divergence(Metric(**metrics[0]), references, trainer.state.step)) is not None:
            raise DivergedError(why)
    except Preempted as preempted:
        status, error = "preempted", preempted
    except LockedError:
        tracker.close(None, LockedError.exit_code)
        raise  # another process writes the record by now
    except Exception as failure:
        error = collectives.first_failure(to_run_error(failure))
        status = error.status
    state = trainer.state
    peak = peak_memory(trainer.device)
    message = None if error is None else redact(error.reason if isinstance(error, Preempted) else str(error))
    if status == "oom":
        message = f"{message} (peak {peak / 2**20:,.0f} MiB)"
    if state.fallbacks:
        record["resume"] = {**record["resume"], "fallbacks": state.fallbacks}
    result = {
        **record,
        "status": status,
        "message": message,
        "training": training_summary(trainer, peak),
        "metrics": metrics,
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    error = finish_record(folder, result, error)
    tracker.close(result, 0 if error is None else getattr(error, "exit_code", Preempted.exit_code))
    if error is not None:
        console.log(f"{status}: {message}")
        raise error
    ended = len(list(folder.root.parents[1].glob("*/s*/result.json")))
    runs = f"{plural(ended, 'run')} of study {record['study']} {'has' if ended == 1 else 'have'} ended"
    console.log(f"complete in {clock(state.seconds)} ({runs})")
    for line in closing_lines(folder.root, result):
        console.log(line)
