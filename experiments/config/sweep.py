"""A sweep: the runs that can be composed are given to a launcher of Hydra, in an order for this machine.

The others are printed and recorded, and the sweep fails at its end. A search is left to its sweeper.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from archbench.experiments.config.cells import Cell
from archbench.experiments.config.handed_on import HandedOn
from archbench.experiments.config.hydra_internals import Hydra, launcher_of, outcome
from archbench.experiments.config.ineffective_overrides import check_words
from archbench.experiments.runtime.child_processes import (
    asked_to_stop,
    begin_worker,
    hand_signals_on,
    is_worker,
    note_stop,
)
from archbench.experiments.runtime.errors import ConfigError, LockedError, Preempted, RunError
from archbench.experiments.runtime.preemption import is_default
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.streams import redacted_errors

Function = Callable[[DictConfig], object]

WAIT = 2.0
"""Seconds between two attempts at a run of a sweep that another process holds."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Decides how the runs of a sweep share the machine, and shows their progress."""

    cost: Callable[[DictConfig], Any]
    """Estimates the cost of a run from its configuration, which ``HydraConfig`` holds during the call."""
    listed: Callable[[DictConfig], Any]
    """Returns what ``show`` needs of a run, where runs begin one after another."""
    arrange: Callable[[dict[str, Any], list[Any]], list[int]]
    """Completes the options of joblib by the costs of runs, and returns the order in which they begin."""
    show: Callable[[list[Any], list[Sequence[str]]], AbstractContextManager[None]]
    """Shows the progress of runs, by what ``cost`` or ``listed`` returned, and their overrides."""


def run_sweep(
    hydra: Hydra,
    sweep: DictConfig,
    cells: Sequence[Cell],
    function: Function | str,
    refused: Callable[[DictConfig, Sequence[str], str], object] | None,
    parallel: Parallel | None,
) -> None:
    """Run the cells of a sweep that can be composed. Raises RunError if a run failed, or does not compose."""
    wrong = [cell for cell in cells if cell.mistake]
    for cell in wrong:
        cell.report(cell.mistake)
        if refused is not None:
            refused(sweep, cell.words, cell.mistake)
    ready = [cell for cell in cells if not cell.mistake]
    jobs = list(launch(hydra, sweep, ready, functools.partial(_run_job, function), parallel))
    for job in jobs:
        result(job, imported(function))
    if wrong:
        raise ConfigError


def search(hydra: Hydra, config_name: str, overrides: list[str], function: Function | str) -> None:
    """Run a search, whose sweeper chooses the runs by their scores.

    The sweeper is not ours: it may print the overrides of a run that failed, with secrets in them.
    """
    trial = functools.partial(_run_trial, function, os.getpid())
    with redacted_errors():
        hydra.multirun(config_name, trial, [*overrides, "hydra.mode=MULTIRUN"])


def check_launcher(sweep: DictConfig) -> None:
    """Raise ConfigError where the launcher of a sweep cannot work as configured, or on this machine."""
    _batch_size(sweep, 1)
    if "SlurmLauncher" in sweep.hydra.launcher._target_ and shutil.which("srun") is None:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: there is no srun on this machine, so it cannot submit jobs; "
            "use hydra/launcher=parallel, or leave it out"
        )


def launch(
    hydra: Hydra, sweep: DictConfig, cells: Sequence[Cell], task_function: Function, parallel: Parallel | None
) -> Iterator[JobReturn]:
    """Give the runs of a sweep to its launcher, and yield what became of each.

    Args:
        hydra: it has composed the runs.
        sweep: the configuration that they share.
        cells: the runs that can be composed.
        task_function: is called with the configuration of each run.
        parallel: decides how they share the machine, and shows them.
    """
    in_order = str(sweep.hydra.launcher._target_).endswith("BasicLauncher")
    loader = HandedOn(hydra.config_loader)
    for cell in cells if in_order else ():  # each process of a launcher would get all configurations
        loader.keep(cell.words, cell.composed)
    launcher, callbacks = launcher_of(sweep, loader if in_order else hydra.config_loader, task_function)
    joblib = getattr(launcher, "joblib", None)
    """Options for the processes of a parallel sweep."""
    described, order = None, list(range(len(cells)))
    if parallel is not None and (in_order or joblib is not None):
        described = _describe(cells, parallel.listed if in_order else parallel.cost)
    HydraConfig.instance().set_config(sweep)
    if joblib is not None:
        # Loky replaces a process whose memory has grown, between two runs.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        joblib |= {"initializer": begin_worker, "initargs": (os.getpid(),)}
        if parallel is not None and described is not None:
            order = parallel.arrange(joblib, described)
        if joblib["n_jobs"] != 1:
            hand_signals_on()
    batch = [list(cells[run].words) for run in order]
    size = _batch_size(sweep, len(batch))
    callbacks.on_multirun_start(config=sweep, config_name=sweep.hydra.job.config_name)
    with _shown(parallel, described and [described[run] for run in order], batch), _stopped_workers():
        for begin in range(0, len(batch), size):
            yield from launcher.launch(batch[begin : begin + size], initial_job_idx=begin)
    callbacks.on_multirun_end(config=sweep, config_name=sweep.hydra.job.config_name)


def _batch_size(sweep: DictConfig, runs: int) -> int:
    """Return how many runs the launcher gets at once. Raises ConfigError for a number below 1."""
    size = sweep.hydra.sweeper.get("max_batch_size")
    if size is not None and size < 1:
        raise ConfigError(f"hydra.sweeper.max_batch_size={size} must be a number of runs, 1 or more, or null")
    return size or runs


def _describe(cells: Sequence[Cell], describe: Callable[[DictConfig], Any]) -> list[Any]:
    """Return the description of each run. Seeds of a configuration share one."""
    by_config: dict[int, Any] = {}
    for cell in cells:
        if id(cell.composed) not in by_config:
            by_config[id(cell.composed)] = describe(cell.select())
    return [by_config[id(cell.composed)] for cell in cells]


def _shown(
    parallel: Parallel | None, described: list[Any] | None, batch: list[list[str]]
) -> AbstractContextManager[None]:
    """Return a context with the view of the runs of a batch; a single run shows itself."""
    if parallel is None or described is None or len(batch) < 2:
        return nullcontext()
    return parallel.show(described, list(batch))


@contextmanager
def _stopped_workers() -> Iterator[None]:
    """Raise Preempted where a signal ended a worker before it was set up."""
    try:
        yield
    except RuntimeError as error:  # of joblib
        if not asked_to_stop():
            raise
        raise Preempted from error


def result(job: JobReturn, function: Function) -> object:
    """Return what a job returned, or raise what it raised.

    A run that another process trains is waited for. Raises RunError if that process fails.
    """
    found = outcome(job)
    if job.status == JobStatus.FAILED or isinstance(found, Preempted):
        raise found
    if not isinstance(found, LockedError):
        return found
    assert job.cfg is not None
    HydraConfig.instance().cfg = job.hydra_cfg  # type: ignore[assignment]
    return wait_for(function, job.cfg, job.overrides or [])


def wait_for(function: Function, cfg: DictConfig, overrides: Sequence[str]) -> object:
    """Return the result of a run that another process trains, or train what that leaves of it.

    Raises RunError if that fails.
    """
    while True:
        try:
            return function(cfg)
        except LockedError:
            time.sleep(WAIT)
        except RunError as error:
            sys.stderr.write(redact(f"error: {' '.join(overrides)}: {error}\n"))
            raise


def _run_job(function: Function | str, cfg: DictConfig) -> object:
    """Start one run of a sweep, and return what the sweep gets. A failure is printed, and raised."""
    try:
        if is_worker() and asked_to_stop():
            raise Preempted
        return imported(function)(cfg)
    except LockedError as held:
        words = " ".join(HydraConfig.get().overrides.task)
        print(
            redact(f"{words}: trained by another process, which is waited for at the end: {held}"), flush=True
        )
        return held
    except RunError as error:
        sys.stderr.write(redact(f"error: {' '.join(HydraConfig.get().overrides.task)}: {error}\n"))
        raise
    except Preempted as preempted:
        # A launcher that listens to USR2 (submitit's) puts this job, now saved, back into the queue.
        listener = signal.getsignal(signal.SIGUSR2)
        if callable(listener) and not is_default(signal.SIGUSR2):
            listener(signal.SIGUSR2, None)
        if not is_worker():
            raise
        note_stop()
        return preempted  # raised by the sweep when the other workers have ended theirs


def _run_trial(function: Function | str, sweep: int, cfg: DictConfig) -> object:
    """Start one run of a search, of the process with the number ``sweep``, and return its score."""
    if os.getpid() != sweep and not is_worker():
        begin_worker(sweep)
    hydra = HydraConfig.get()
    check_words(cfg, hydra, hydra.overrides.task)
    found = _run_job(function, cfg)
    if isinstance(found, LockedError):
        return wait_for(imported(function), cfg, hydra.overrides.task)
    return found


def imported(function: Function | str) -> Function:
    """Return a function that may be named by its dotted path."""
    if not isinstance(function, str):
        return function
    module, _, name = function.rpartition(".")
    found: Function = getattr(importlib.import_module(module), name)
    return found
