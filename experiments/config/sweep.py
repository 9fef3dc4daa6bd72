"""A sweep: its runs are given to a launcher of Hydra, in an order that suits the machine."""

from __future__ import annotations

import os
import shutil
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
from archbench.experiments.runtime.child_processes import asked_to_stop, begin_worker, hand_signals_on
from archbench.experiments.runtime.errors import ConfigError, LockedError, Preempted, RunError
from archbench.experiments.runtime.secrets import redact

Job = Callable[[DictConfig], object]

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


def check_launcher(sweep: DictConfig) -> None:
    """Raise ConfigError where the launcher of a sweep cannot work on this machine."""
    if "SlurmLauncher" in sweep.hydra.launcher._target_ and shutil.which("srun") is None:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: there is no srun on this machine, so it cannot submit jobs; "
            "use hydra/launcher=parallel, or leave it out"
        )


def launch(
    hydra: Hydra, sweep: DictConfig, cells: Sequence[Cell], task_function: Job, parallel: Parallel | None
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
    size = sweep.hydra.sweeper.get("max_batch_size") or len(batch)
    callbacks.on_multirun_start(config=sweep, config_name=sweep.hydra.job.config_name)
    with _shown(parallel, described and [described[run] for run in order], batch), _stopped_workers():
        for begin in range(0, len(batch), size):
            yield from launcher.launch(batch[begin : begin + size], initial_job_idx=begin)
    callbacks.on_multirun_end(config=sweep, config_name=sweep.hydra.job.config_name)


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


def result(job: JobReturn, function: Job) -> object:
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


def wait_for(function: Job, cfg: DictConfig, overrides: Sequence[str]) -> object:
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
