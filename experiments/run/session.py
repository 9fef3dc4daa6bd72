"""Guards and record of a run folder while a process trains: one session of a run.

``open_run`` has the guards: the process group, the lock, the checks before a run is resumed, and the limit of
restarts. Until ``RunSession.begin``, a signal ends a single process at once; then it waits for the end of a
step. The record is identity and provenance before training, and the result after it, once there is a trainer.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from archbench.experiments.config.schema import TrackingConfig
from archbench.experiments.config.structured import PACKAGE
from archbench.experiments.data.token_file import forget_opened, verify_opened
from archbench.experiments.run import resume_compatibility
from archbench.experiments.run.model_files import (
    PARENT,
    RECORD,
    ModelSpec,
    model_folder,
    warn_of_changed_code,
)
from archbench.experiments.run.plan import Plan
from archbench.experiments.run.result_parts import opening_lines, planned_result, training_summary
from archbench.experiments.run.settings import Settings
from archbench.experiments.run.summary import closing_lines
from archbench.experiments.runtime.console import Console, clock, plural
from archbench.experiments.runtime.device import configure_process, torch_device
from archbench.experiments.runtime.errors import (
    CheckpointError,
    LockedError,
    Preempted,
    RunError,
    to_run_error,
)
from archbench.experiments.runtime.json_state import read_model
from archbench.experiments.runtime.machine import usable_threads
from archbench.experiments.runtime.memory import peak_memory
from archbench.experiments.runtime.preemption import Interruptions, deferred, stops_at_once
from archbench.experiments.runtime.run_lock import RunLock
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.watchdog import check_progress
from archbench.experiments.tracking.provenance import (
    changed_code,
    code_hash,
    code_hashes,
    late_changes,
    provenance,
)
from archbench.experiments.tracking.run_files import (
    TOKENIZER,
    DataSource,
    ParentRun,
    Resume,
    RunResult,
)
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.tracker import RunIdentity, Tracker, derived, open_tracker
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.parallel import collectives
from archbench.experiments.training.parallel.device_mesh import ParallelDims, make_parallel_dims
from archbench.experiments.training.trainer import Trainer


@contextmanager
def open_run(settings: Settings) -> Iterator[RunSession | None]:
    """Guard the folder of a run for one session, and write the result when the session ends.

    Yields:
        The session; None for a run that has ended already, after its result is printed.

    Raises:
        LockedError: another process writes the run.
        ConfigError: the folder holds a run of another configuration.
        RunError: training or evaluation failed; the failure is in the result.
        Preempted: the run was asked to stop.
    """
    device = torch_device(settings.device.name)
    forget_opened()
    with ExitStack() as guards:
        collectives.start(device)  # the command that runs it leaves the process group
        if collectives.world_size() == 1:  # several processes end together, between two steps
            guards.enter_context(stops_at_once())
        dims = make_parallel_dims(settings.parallel, device.type, settings.budget)
        folder = RunFolder(settings.folder, writes=collectives.is_rank_zero())
        console = Console(f"{settings.cell} s{settings.seed}", quiet=not collectives.is_rank_zero())
        signals = guards.enter_context(ExitStack())
        lock = RunLock(folder.root)
        collectives.run_on_rank_zero(lambda: resume_compatibility.check_config(settings, folder.root))
        ended = has_ended(folder)
        if not ended:
            collectives.run_on_rank_zero(lambda: _acquire(lock, guards))
            ended = has_ended(folder)  # it may have ended while this process waited for the lock
        if ended:
            print_result(folder, console, code_modules(settings))
            yield None
            return
        collectives.run_on_rank_zero(lambda: check_restarts(folder))
        configure_process(
            threads=session_threads(settings, folder),
            kernels=settings.device.kernels,
            deterministic=settings.device.deterministic,
        )
        if collectives.is_rank_zero():
            folder.guard = lock.check
        session = RunSession(settings, dims, folder, console, lock, signals)
        failure: BaseException | None = None
        try:
            yield session
        except LockedError:  # another process writes the result by now
            if session.trainer is not None:
                session.tracker.close(None, LockedError.exit_code)
            raise
        except (Preempted, Exception) as error:
            if session.trainer is None:  # nothing was trained: the caller records why
                raise
            failure = error
        session.end(failure)


@dataclass
class RunSession:
    """An open run folder, and what is known so far about the result."""

    settings: Settings
    dims: ParallelDims
    folder: RunFolder
    console: Console
    lock: RunLock
    signals: ExitStack
    """Closed when the session has released the lock."""
    trainer: Trainer | None = None
    """None until the model is ready to be trained."""
    result: RunResult = field(init=False)
    """The result as far as it is known; set by ``begin``, like the fields below."""
    tracker: Tracker = field(init=False)
    interruptions: Interruptions = field(init=False)

    def begin(self, run_plan: Plan, spec: ModelSpec, kernels: dict[str, str]) -> None:
        """Write what is known before training, open the tracker, and let signals wait for the end of a step.

        Raises:
            DataError, CheckpointError: the run cannot be resumed, or its folder cannot be written.
        """
        settings, folder = self.settings, self.folder
        # How processes and compiled blocks train is recorded with the kernels.
        kernels = dict(kernels)
        if self.dims.mesh is not None:
            kernels["processes"] = self.dims.describe()
        if settings.trainer.compile != "none":
            kernels["blocks"] = "compiled"
        source = settings.init_from or settings.continue_from
        if source is not None and folder.writes:
            warn_of_changed_code(model_folder(source.path), [settings.backbone_class.__module__])
        check_one_code(code_modules(settings))
        self.result = planned_result(settings, run_plan)
        resume = collectives.run_on_rank_zero(
            lambda: begin_record(settings, run_plan, spec, kernels, folder, self.console)
        )
        self.result.resume = Resume(**resume)
        if settings.continue_from is not None:
            self.result.parent = read_model(folder.root / PARENT, ParentRun)
        if folder.writes:
            self.console.keep(folder.root / "train.log")
        for line in opening_lines(settings, run_plan, self.result.training_set, kernels):
            self.console.log(line)
        self.tracker = open_tracker(
            settings.tracking if folder.writes else TrackingConfig(),
            RunIdentity.of(self.result),
            settings.folder,
            settings.resolved,
            derived(self.result, folder.provenance()),
            steps=run_plan.cost.planned.steps,
        )
        self.interruptions = self.signals.enter_context(
            Interruptions(settings.trainer.preemption_margin_seconds, clock=collectives.is_rank_zero())
        )

    def end(self, failure: BaseException | None) -> None:
        """Write the result of a run that has trained, and print its last lines.

        Args:
            failure: what ended training or evaluation; None if both are complete.

        Raises:
            BaseException: ``failure``, or that the result cannot be written.
        """
        assert self.trainer is not None
        assert self.result.resume is not None
        if isinstance(failure, Exception):
            failure = collectives.first_failure(to_run_error(failure))
            changed = late_changes()  # the other processes may be gone
        else:
            changed = sorted({name for names in collectives.run_on_all(late_changes) for name in names})
        failure = self._verified(self.trainer, failure)
        if isinstance(failure, LockedError):  # another process writes the result by now
            self.tracker.close(None, LockedError.exit_code)
            raise failure
        result = self._final_result(self.trainer, failure)
        self._mark_changed_code(result, changed)
        ended, failure = failure, store_result(self.folder, result, failure, self.console.log)
        if failure is not ended:  # nothing was written
            set_failure(result, failure)
        if isinstance(failure, LockedError):
            self.tracker.close(None, LockedError.exit_code)
            raise failure
        exit_code = 0 if failure is None else getattr(failure, "exit_code", RunError.exit_code)
        self.tracker.close(result, exit_code)
        if failure is not None:
            self.console.log(f"{result.status}: {result.message}")
            raise failure
        runs = len(list(self.folder.root.parents[1].glob("*/s*/result.json")))
        verb = "has" if runs == 1 else "have"
        self.console.log(
            f"complete in {clock(self.trainer.state.seconds)} "
            f"({plural(runs, 'run')} of study {self.settings.study.name} {verb} ended)"
        )
        for line in closing_lines(self.folder.root, result):
            self.console.log(line)

    def _verified(self, trainer: Trainer, failure: BaseException | None) -> BaseException | None:
        """Return why the run fails: ``failure``, or that lock, data or checkpoint are not what they were."""

        def verify() -> None:
            self.lock.check()
            verify_opened()
            if failure is None:
                self._verify_checkpoint(trainer.state.step)
            with suppress(OSError):  # the checkpoint is complete without it
                if checkpoint.note_saved(self.folder.checkpoints):
                    self.console.log(
                        f"warning: {self.folder.root / checkpoint.SAVED} was damaged: written again"
                    )

        try:
            if failure is None or isinstance(failure, Preempted):
                collectives.run_on_rank_zero(verify)
            elif collectives.is_rank_zero():
                verify()  # the others may be gone
        except RunError as error:
            return error
        return failure

    def _verify_checkpoint(self, step: int) -> None:
        """Raise CheckpointError if the last checkpoint was removed or changed."""
        folder, remedy = self.folder.checkpoints, "the same command trains again what is lost"
        if checkpoint.newest_step(folder) != step:
            raise CheckpointError(
                f"{folder}: the checkpoint of step {step} was removed while the run was evaluated: {remedy}"
            )
        if (reason := checkpoint.broken(checkpoint.place(folder, step))) is not None:
            raise CheckpointError(f"{checkpoint.place(folder, step)}: {reason}: {remedy}")

    def _mark_changed_code(self, result: RunResult, changed: list[str]) -> None:
        """Record that modules were edited after the code was hashed and before they were imported."""
        if not changed:
            return
        names = ", ".join(changed)
        self.console.log(
            f"warning: {names} was edited while the run trained, before all of it was imported: the result "
            "is marked as not exact"
        )
        assert result.resume is not None
        result.resume.exact = False
        result.resume.changed = {**result.resume.changed, "code": ["as recorded", f"{names} edited"]}

    def _final_result(self, trainer: Trainer, failure: BaseException | None) -> RunResult:
        """Return the result of a run that has trained."""
        result, peak = self.result, peak_memory(trainer.device)
        set_failure(result, failure)
        if result.status == RunStatus.OOM:
            result.message = f"{result.message} (peak {peak / 2**20:,.0f} MiB)"
        if trainer.state.fallbacks:
            assert result.resume is not None
            result.resume.fallbacks = trainer.state.fallbacks
        if len(sizes := trainer.state.random_sizes) > 1:
            assert result.resume is not None
            result.resume.exact = False
            result.resume.changed["micro_batch_size"] = [sizes[0], sizes[-1]]
        result.training = training_summary(trainer, peak)
        result.finished_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return result


def set_failure(result: RunResult, failure: BaseException | None) -> None:
    """Set the status of a result, and its message if the run failed."""
    result.status = RunStatus("complete" if failure is None else getattr(failure, "status", "preempted"))
    if failure is not None:
        result.message = redact(failure.reason if isinstance(failure, Preempted) else str(failure))


def _acquire(lock: RunLock, guards: ExitStack) -> None:
    """Hold a lock until the session ends. Raises LockedError."""
    with deferred():  # a signal between the two steps of this line would leave the lock
        guards.enter_context(lock)


def has_ended(folder: RunFolder) -> bool:
    """Return True if the run has ended with a final status. All processes call it."""
    return collectives.run_on_rank_zero(lambda: folder.has_final_status)


def print_result(folder: RunFolder, console: Console, modules: Iterable[str]) -> None:
    """Print the result of a run that has ended, and whether the user's ``modules`` have changed since."""
    if (result := folder.result()) is not None:
        console.log(f"already {result.status}: {folder.root}")
        own = [module for module in modules if module.partition(".")[0] != PACKAGE]
        code = changed_code(folder, own) if own else []
        if changed := [name for name in code if not name.startswith(PACKAGE)]:
            console.log(
                f"warning: {', '.join(changed)} has changed since: this is the result of the earlier code; "
                f"delete {folder.root} to train again"
            )
        for line in closing_lines(folder.root, result):
            console.log(line)


def check_restarts(folder: RunFolder) -> None:
    """Refuse a SLURM job whose restarts gain less training than they cost. Raises RunError."""
    state = (checkpoint.newest_state(folder.checkpoints) or {}).get("train_state", {})
    check_progress(
        folder.root,
        checkpoint.newest_step(folder.checkpoints),
        float(state.get("seconds", 0.0)),
        float(state.get("compile_seconds", 0.0)),
    )


def session_threads(settings: Settings, folder: RunFolder) -> int | None:
    """Return the CPU threads of a session: those set, else those that the run began with.

    The number may change the last digits of a result, so a resumed run keeps its own, where this machine has
    as many. None leaves the choice to PyTorch.
    """
    if settings.device.threads is not None or collectives.world_size() > 1:  # torchrun shares the cores
        return settings.device.threads
    begun = folder.provenance()
    if begun is None:
        return usable_threads() if "OMP_NUM_THREADS" in os.environ else None
    return min(begun.device.threads, usable_threads())


def begin_record(
    settings: Settings,
    run_plan: Plan,
    spec: ModelSpec,
    kernels: dict[str, str],
    folder: RunFolder,
    console: Console,
) -> dict[str, Any]:
    """Write what is known before training, and return ``resume`` of the result. One process calls it.

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
            DataSource(task=settings.names.task, fingerprint=run_plan.task.fingerprint),
            kernels,
            code_modules(settings),
        )
        now.resume = resume_compatibility.compare_provenance(folder.root, now, console.log)
        folder.open(settings.resolved, now)
        spec.write(folder.root)
        if run_plan.task.tokenizer is not None:
            run_plan.task.tokenizer.save(folder.root)
        folder.keep(RECORD, PARENT, TOKENIZER)
    except OSError as error:
        raise CheckpointError(f"{settings.folder}: the run folder cannot be written: {error}") from error
    return now.resume.tree()


def check_one_code(modules: Iterable[str]) -> None:
    """Raise RunError where the processes of a run have imported different code."""
    hashes = collectives.run_on_all(lambda: code_hash(code_hashes(modules)))
    if len(set(hashes)) > 1:
        ranks = [rank for rank, value in enumerate(hashes) if value != hashes[0]]
        raise RunError(
            f"process {ranks[0]} has imported other code than process 0: a file was edited while they "
            "started, or their machines have different versions; start the run again"
        )


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


def restore(folder: RunFolder, result: RunResult, log: Callable[[str], object]) -> None:
    """Write files again that were changed while the run trained; a changed metrics.jsonl is recorded."""
    for name in folder.restore():
        log(f"warning: {folder.root / name} was changed or removed while the run trained: written again")
    if folder.has_other_rows:
        log(f"warning: {folder.metrics} was changed while the run trained: the result is marked as not exact")
        resume = result.resume or Resume(sittings=1, exact=True, changed={})
        changed = {**resume.changed, "metrics.jsonl": ["as written", "other rows"]}
        result.resume = resume.model_copy(update={"exact": False, "changed": changed})


def store_result(
    folder: RunFolder, result: RunResult, error: BaseException | None, log: Callable[[str], object]
) -> BaseException | None:
    """Write the result. Return the error the run ends with: ``error``, or that nothing can be written."""

    def write() -> None:
        try:
            restore(folder, result, log)
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
