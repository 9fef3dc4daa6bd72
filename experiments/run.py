"""One run from settings to result: build, train, test, record."""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses
import datetime
import gc
import os
import resource
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from architectures.backbone import Backbone
from experiments import checkpoint, drift, mup
from experiments.budget import Matched, Sizes, match, training_flops_per_token
from experiments.console import Console, clock
from experiments.data.random import stream
from experiments.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    LockedError,
    OutOfMemoryError,
    Preempted,
    RunError,
)
from experiments.interruptions import ORPHANED, Interruptions
from experiments.lock import RunLock
from experiments.memory import is_out_of_memory
from experiments.objectives.objective import Objective
from experiments.parallel import world
from experiments.parallel.grid import Grid, make_grid
from experiments.redaction import redact
from experiments.restarts import check_progress
from experiments.results import RunFolder, provenance
from experiments.settings import Settings
from experiments.tasks.task import Task
from experiments.tracking import RunIdentity, Tracker, TrackingConfig, open_tracker
from experiments.trainer import Trainer
from experiments.weights import ModelRecord, put, read_tensors

STATE_LENGTH = 2048
"""Length at which decoding states are compared."""

PRICED_EXAMPLES = 64
"""Examples whose mean lengths a run's FLOPs are computed from; most objectives show equally long ones."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known of a run before it is trained."""

    task: Task
    objective: Objective
    tests: dict[str, Objective]
    """The objective on the task of each further test, by the words that ask for it."""
    sizes: Sizes
    matched: Matched
    cost: dict[str, Any]
    """Parameters by part, training FLOPs per token, decoding-state bytes: the fields of result.json."""


def build_task(task_class: type[Task], config: Any, name: str) -> Task:
    """The task, its data prepared. Raises DataError where they cannot be."""
    try:
        return task_class(config)  # type: ignore[call-arg]
    except OSError as error:
        raise DataError(f"task={name}: the data cannot be read or prepared: {error}") from error


def plan(settings: Settings) -> Plan:
    """Sizes the model and prices it. Allocates nothing."""
    task = build_task(settings.task_class, settings.task, settings.names.task)
    for split in ("validation", "test"):
        available = task.num_examples(split)
        if available is not None and available < 2:
            raise DataError(
                f"task={settings.names.task}: the {split} split has {available} examples: at least 2 are "
                "needed for an evaluation; give it more"
            )
    objective = settings.objective_class(settings.objective, task)
    tests = _tests(settings, task)
    # The same examples for every seed, so that a size does not depend on it.
    view = objective.view(task.batch("train", 0, 0, PRICED_EXAMPLES), torch.Generator().manual_seed(0))
    if view.count_B.sum() == 0:
        raise DataError(
            f"task={settings.names.task}: nothing is scored in the first {PRICED_EXAMPLES} training "
            "examples: give data with answers in them"
        )
    length, source_length = view.mean_lengths()
    trained_length = settings.initial.record.max_length if settings.initial else 0
    sizes = Sizes(
        vocab_size=task.vocabulary.size,
        length=length,
        source_length=source_length,
        raw_length=task.sequence_length,
        max_length=max(
            view.tokens_BT.shape[1],
            view.source_length,
            trained_length,
            *(each.longest for each in (objective, *tests.values())),
        ),
        passes=view.passes,
        make_readout=objective.make_readout,
    )
    if settings.initial is not None:
        settings.initial.record.check(task, settings.initial.path)
    matched = match(settings.backbone_class, settings.backbone, settings.scale, sizes)
    if (width := settings.optimizer.mup_base_width) is not None:
        matched = dataclasses.replace(matched, config=mup.scaled_attention(matched.config, width))
    model = sizes.on_meta(settings.backbone_class, matched.config)
    parts = model.parameters_by_part()
    source = STATE_LENGTH if model.capabilities.encoder_decoder else 0
    cost = {
        "parameters": {
            "embedding": parts.embedding,
            "body": parts.body,
            "head": parts.head,
            "total": parts.total,
            "active": parts.active,
        },
        "flops_per_token": training_flops_per_token(model, sizes),
        "state_bytes_2k": model.state_bytes(STATE_LENGTH, source),
        "matched": {
            "axis": matched.axis,
            "target": matched.target,
            "value": matched.value,
            "residual": matched.residual,
        },
        "widths": asdict(matched.config),
    }
    return Plan(task=task, objective=objective, tests=tests, sizes=sizes, matched=matched, cost=cost)


def _tests(settings: Settings, task: Task) -> dict[str, Objective]:
    """The objective on the task of each further test, which must have the vocabulary of the run's own."""
    found = {}
    for name, config in settings.tests.items():
        other = build_task(settings.task_class, config, settings.names.task)
        if other.vocabulary != task.vocabulary:
            raise ConfigError(
                f"trainer.tests: {name}: it has {other.vocabulary.size} tokens and the task trained on "
                f"{task.vocabulary.size}: change settings that leave the vocabulary as it is"
            )
        found[name] = settings.objective_class(settings.objective, other)
    return found


def execute(settings: Settings) -> None:
    """Trains, tests and records one cell, or says that it is done already.

    Raises:
        RunError: the run failed in a way its message explains; if it had begun,
            the failure is a row of the study (result.json).
        Preempted: the run was asked to stop; a checkpoint was saved.
        LockedError: another process is writing the run; nothing was touched.
    """
    device = settings.device.torch_device()
    world.start(device)
    grid = make_grid(settings.parallel, device.type, settings.budget)
    folder = RunFolder(settings.folder, writes=world.leads())
    console = Console(f"{settings.cell} s{settings.seed}", quiet=not world.leads())
    world.lead(lambda: drift.check_config(settings, folder.root))
    if not _finished(folder, console):
        try:
            with _one_writer(folder.root) as lock:
                if not _finished(folder, console):  # it may have ended while we asked for the lock
                    world.lead(
                        lambda: check_progress(folder.root, checkpoint.newest_step(folder.checkpoints))
                    )
                    _execute(settings, folder, console, grid, lock)
        except Preempted as preempted:
            if preempted.reason == ORPHANED:
                os._exit(75)  # nobody waits for this process any more, and nobody would end it
            raise


def _finished(folder: RunFolder, console: Console) -> bool:
    finished = world.lead(lambda: folder.finished)
    if finished:
        console.say(f"already {(folder.result() or {})['status']}: {folder.root}")
    return finished


@contextmanager
def _one_writer(folder: Path) -> Iterator[RunLock]:
    """The lock of a run; of several processes the first holds it. Raises LockedError in all."""
    lock = RunLock(folder)
    with ExitStack() as held:

        def take() -> None:
            held.enter_context(lock)

        world.lead(take)
        yield lock


def _execute(settings: Settings, folder: RunFolder, console: Console, grid: Grid, lock: RunLock) -> None:
    """The part of ``execute`` that only one command at a time may do."""
    if settings.device.threads is not None:
        torch.set_num_threads(settings.device.threads)
    planned = world.leader_first(lambda: plan(settings))
    identity = {
        "format": 1,
        "key": settings.key,
        "study": settings.study,
        "cell": settings.cell,
        "digest": settings.digest,
        "seed": settings.seed,
        **asdict(settings.names),
    }
    record = {**identity, **planned.cost, "fingerprint": planned.task.fingerprint}
    if settings.initial is not None:
        record["initial"] = {"path": str(settings.initial.path), "fingerprint": settings.initial.fingerprint}
    try:
        _reset_peak_memory()
        model = _build(settings, planned)
        kernels = model.kernels() | ({"processes": grid.describe()} if grid.mesh is not None else {})
        record |= world.lead(lambda: _begin(settings, planned, model, kernels, folder, console))
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(f"out of memory while building the model: {error}") from error
        raise
    console.say(
        f"{planned.cost['parameters']['body']:,} body parameters "
        f"({planned.matched.residual:+.2%} of the target), {settings.folder}"
    )
    if kernels:
        console.say("kernels: " + ", ".join(f"{part}: {path}" for part, path in kernels.items()))
    tracking = settings.tracking if folder.writes else TrackingConfig()
    tracker = open_tracker(tracking, _identity(settings), settings.folder, settings.resolved, record)
    with Interruptions(settings.trainer.stop_margin) as interruptions:
        trainer = Trainer(
            settings,
            model=model,
            objective=planned.objective,
            task=planned.task,
            folder=folder,
            tracker=tracker,
            console=console,
            grid=grid,
            flops_per_token=planned.cost["flops_per_token"],
            interruptions=interruptions,
            lock=lock,
        )
        _train(trainer, planned.tests, record, folder, tracker, console)


def _begin(
    settings: Settings,
    planned: Plan,
    model: Backbone,
    kernels: dict[str, str],
    folder: RunFolder,
    console: Console,
) -> dict[str, Any]:
    """Writes what is known before training, for one process; gives what it adds to the result."""
    added = {}
    try:
        if settings.fork is not None:
            added["parent"] = drift.adopt(settings.fork, folder.root)
        now = provenance(
            settings.device.torch_device(),
            settings.device.precision,
            {"task": settings.names.task, "fingerprint": planned.task.fingerprint},
            kernels,
        )
        added["resume"] = drift.compare(folder.root, now, console.say)
        folder.open(settings.resolved, {**now, "resume": added["resume"]})
        ModelRecord.of(model, settings.names.backbone, planned.task.tokenizer).write(folder.root)
        if planned.task.tokenizer is not None:
            planned.task.tokenizer.save(folder.root)
    except OSError as error:
        raise CheckpointError(f"{settings.folder}: the run folder cannot be written: {error}") from error
    return added


def _train(
    trainer: Trainer,
    tests: dict[str, Objective],
    record: dict[str, Any],
    folder: RunFolder,
    tracker: Tracker,
    console: Console,
) -> None:
    """Runs the trainer and writes the result, whatever it is."""
    error: BaseException | None = None
    status, metrics = "complete", []
    try:
        trainer.run()
        examples = trainer.settings.trainer.test_examples
        metrics = [asdict(metric) for metric in trainer.test("test", examples)]
        for name, objective in tests.items():
            metrics += [
                asdict(metric) | {"split": name} for metric in trainer.test("test", examples, objective)
            ]
        record["references"] = [asdict(reference) for reference in trainer.task.references()]
    except Preempted as preempted:
        status, error = "preempted", preempted
    except LockedError:
        tracker.close(None, LockedError.exit_code)
        raise  # the record is another's by now
    except RunError as failure:
        error = world.first_failure(failure)
        status = error.status
    except Exception as failure:
        error = world.first_failure(_translate(failure))
        status = error.status
    state = trainer.state
    peak = peak_memory(trainer.device)
    message = None if error is None else redact(error.reason if isinstance(error, Preempted) else str(error))
    if status == "oom":
        message = f"{message} (peak {peak / 2**20:,.0f} MiB)"
    result = {
        **record,
        "status": status,
        "message": message,
        "training": {
            "steps": state.step,
            "tokens": state.tokens,
            "flops": state.flops,
            "epochs": _epochs(trainer),
            "seconds": state.seconds,
            "tokens_per_second": state.tokens / state.seconds if state.seconds else None,
            "data_share": state.data_seconds / state.seconds if state.seconds else None,
            "peak_memory_bytes": peak,
            "micro_batch_size": trainer.fitting.size,
            "skipped_steps": state.anomalies.skipped,
            "loss_spikes": state.anomalies.spikes,
        },
        "metrics": metrics,
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    try:
        folder.finish(result)
    except OSError as failure:
        error = CheckpointError(f"{folder.root}: the result cannot be written: {failure}")
    by_split = {metric["split"]: {metric["name"]: metric["value"]} for metric in metrics}
    tracker.close({**result, "metrics": by_split}, 0 if error is None else getattr(error, "exit_code", 75))
    if error is not None:
        console.say(f"{status}: {message}")
        raise error
    metric = metrics[0]
    ended = len(list(folder.root.parents[1].glob("*/s*/result.json")))
    console.say(
        f"complete in {clock(state.seconds)}: test {metric['name']} {metric['value']:.4f} "
        f"({ended} runs of study {record['study']} have ended)"
    )


def _epochs(trainer: Trainer) -> float | None:
    """How often the training examples were gone through; None where they never run out."""
    available = trainer.task.num_examples("train")
    return None if available is None else trainer.state.step * trainer.batch_size / available


def _translate(failure: Exception) -> RunError:
    """An unforeseen exception as one that carries a status; its traceback goes into the record."""
    if is_out_of_memory(failure):
        return OutOfMemoryError(
            f"out of memory: {failure}; halve budget.micro_batch_size, which changes memory and not results"
        )
    lines = traceback.format_exception(failure)
    return RunError(f"{type(failure).__name__}: {failure}\n{''.join(lines)}")


def _build(settings: Settings, planned: Plan) -> Backbone:
    torch.manual_seed(stream(settings.seed, "initialisation") >> 1)
    model = planned.sizes.build(settings.backbone_class, planned.matched.config)
    if (width := settings.optimizer.mup_base_width) is not None:
        base = planned.sizes.on_meta(settings.backbone_class, mup.at_width(settings.backbone, width))
        mup.parametrise(model, base)
    if (initial := settings.initial) is not None:
        put(read_tensors(initial.path), model, initial.path, new_readout=True)
    return model.to(settings.device.torch_device())


def _identity(settings: Settings) -> RunIdentity:
    return RunIdentity(
        key=settings.key,
        study=settings.study,
        cell=settings.cell,
        seed=settings.seed,
        backbone=settings.names.backbone,
        objective=settings.names.objective,
        task=settings.names.task,
        scale=settings.names.scale,
    )


def _reset_peak_memory() -> None:
    """Gives freed memory back and starts a new peak, so that runs sharing a process are told apart."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        ctypes.CDLL(ctypes.util.find_library("c")).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return  # not Linux: the peak is then that of the whole process


def peak_memory(device: torch.device) -> int:
    """Peak bytes since the run began: of the GPU's allocator, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
