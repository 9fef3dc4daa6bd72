"""The start of every command: Hydra, set up so that a mistake gives one message and an exit code.

Composing imports the classes that the YAML files name, and with them PyTorch, which takes most of the time
until ``--help`` or a mistake is printed. An entry point that needs much more than that names its function
instead of importing it, or imports what it needs in the function.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

import archbench.experiments.config.schema  # noqa: F401  # registers what the YAML files extend, and their reader
from archbench.experiments.config import CONF
from archbench.experiments.config.cells import Cell, cells
from archbench.experiments.config.handed_on import HandedOn, without_seed
from archbench.experiments.config.hydra_internals import command_line
from archbench.experiments.config.hydra_internals import run as run_hydra
from archbench.experiments.config.hydra_overrides import (
    checked_words,
    explain,
    no_option,
    unmatched,
)
from archbench.experiments.config.ineffective_overrides import check_words
from archbench.experiments.runtime.child_processes import (
    asked_to_stop,
    begin_worker,
    end_with_parent,
    hand_signals_on,
    is_worker,
    note_stop,
)
from archbench.experiments.runtime.errors import (
    ConfigError,
    LockedError,
    Preempted,
    RunError,
    is_full,
    to_run_error,
)
from archbench.experiments.runtime.machine import ensure_folders, process_rank
from archbench.experiments.runtime.preemption import ends_at_signals, is_default
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.special_files import refuse_pipes
from archbench.experiments.runtime.streams import guard_streams

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


@ends_at_signals()
def start(
    function: Function | str,
    config_name: str = "config",
    *,
    words: Sequence[str] | None = None,
    refused: Callable[[DictConfig, Sequence[str], str], object] | None = None,
    ended: Callable[[DictConfig], object] | None = None,
    parallel: Parallel | None = None,
) -> None:
    """Runs ``function`` on the composed configuration, once or for each run of a sweep.

    By its dotted path it is imported only once there is a configuration. A mistake ends the process with the
    exit code of ``experiments.runtime.errors``; with DEBUG=1 there is a traceback too.

    Args:
        function: what to run, or its dotted path.
        config_name: the YAML of the root.
        words: the command line without the command; by default that of this process.
        refused: called for each run of a sweep that cannot be composed, while others can: with the
            configuration of the sweep, the overrides of the run, and the reason. The other runs are started.
        ended: called with the configuration of a sweep after its last run.
        parallel: decides how the runs of a sweep share the machine, and shows them.
    """
    given = sys.argv[1:] if words is None else list(words)
    sweep = _Sweep(function, config_name, refused, parallel)
    single: list[tuple[DictConfig, Any]] = []
    with one_line_errors(config_name, given, sweep):
        try:
            checked = checked_words(given, config_name)
            with sweep.checked():
                run_hydra(checked, functools.partial(_run_job, function, single), CONF, config_name)
        finally:
            if sweep.config is not None and ended is not None:
                ended(sweep.config)
        if sweep.refused:
            raise ConfigError
        if single:
            cfg, hydra_config = single[0]
            HydraConfig.instance().cfg = hydra_config  # which Hydra has reset
            hydra, is_given = HydraConfig.get(), any(word.startswith("hydra.mode=") for word in given)
            check_words(cfg, hydra, hydra.overrides.task, mode_is_given=is_given)
            _imported(function)(cfg)


@ends_at_signals()
def for_cells(
    function: Callable[[list[Cell]], None], words: Sequence[str], config_name: str = "config"
) -> None:
    """Call ``function`` with the run configurations of a command line. A mistake ends the process.

    ``--help``, ``--cfg`` and the like are answered instead, as for ``archbench train``.
    """
    with one_line_errors(config_name, words):
        checked = checked_words(words, config_name)
        line = command_line(checked)
        if line.help or line.hydra_help or line.cfg or line.info or line.shell_completion:
            run_hydra(checked, print, CONF, config_name)
        else:
            function(cells(words, config_name))


def for_each_cell(
    function: Callable[[DictConfig], object], words: Sequence[str], config_name: str = "config"
) -> None:
    """Call ``function`` with each run configuration of a command line, in this process.

    The process ends at once where the command line is wrong, else with the code of the first that failed.
    """
    for_cells(functools.partial(_one_by_one, function), words, config_name)


def _one_by_one(function: Callable[[DictConfig], object], found: list[Cell]) -> None:
    failures: list[RunError] = []
    for cell in found:
        try:
            if cell.mistake:
                raise ConfigError(cell.mistake)
            function(cell.select())
        except RunError as error:
            if len(found) == 1:
                raise
            failures.append(error)
            cell.report(error)
    if failures:
        sys.exit(failures[0].exit_code)


@contextmanager
def one_line_errors(config_name: str, words: Sequence[str], sweep: _Sweep | None = None) -> Iterator[None]:
    """End the process with one line and an exit code where the block raises a user's mistake."""
    guard_streams()
    end_with_parent()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of Hydra's printer
    try:
        refuse_pipes()
        ensure_folders()
        yield
    except _CommandError as error:
        _fail(str(error), error.exit_code)
    except RunError as error:
        if sweep is None or sweep.config is None:  # no run of a sweep has begun
            _fail(str(error), error.exit_code, silent=not _speaks(error))
        _fail("at least one run failed, for the reason printed above", error.exit_code)
    except (HydraException, OmegaConfBaseException) as error:
        _fail(explain(error, config_name), 2)
    except OSError as error:  # Hydra makes the folder of a sweep first
        if error.filename is None and not is_full(error):
            raise
        failure = to_run_error(error)
        _fail(str(failure), failure.exit_code)
    except ValueError as error:
        if str(error).startswith(("Only one of --run", "The --resolve flag")):
            _fail(str(error), 2)
        if not str(error).startswith("Config group override"):  # Hydra's complaint about GROUP=null
            raise
        _fail(no_option(words) or f"a group has YAML files for values ({error})", 2)


class _CommandError(ConfigError):
    """A mistake of the whole command, before any of its runs is started."""


class _Sweep:
    """Composes the runs of a sweep before any is started, and leaves out those that cannot be."""

    def __init__(
        self,
        function: Function | str,
        config_name: str,
        handler: Callable[[DictConfig, Sequence[str], str], object] | None,
        parallel: Parallel | None,
    ) -> None:
        self.function, self.config_name = function, config_name
        self.handler, self.parallel = handler, parallel
        self.config: DictConfig | None = None
        """Configuration of the sweep, once it has begun."""
        self.refused = False
        """True if runs were left out."""
        self.view = ExitStack()
        """The view of the runs."""

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Replace Hydra's check of a batch, which ends the sweep at the first run that does not compose.

        Also replace its report of a job that failed, which prints the overrides again, with secrets in them.

        Hydra has no hook for either: all sweepers, those of plugins too, call these methods.
        """
        check, value = Sweeper.validate_batch_is_legal, JobReturn.return_value
        Sweeper.validate_batch_is_legal = lambda sweeper, batch: self._check(sweeper, batch)  # type: ignore
        JobReturn.return_value = property(self._value_of, value.fset)  # type: ignore
        try:
            yield
        except RuntimeError as error:  # of joblib: a signal ended a worker before it was set up
            if not asked_to_stop():
                raise
            raise Preempted from error
        finally:
            self.view.close()
            Sweeper.validate_batch_is_legal = check  # type: ignore[method-assign]
            JobReturn.return_value = value  # type: ignore[method-assign]

    def _value_of(self, job: JobReturn) -> object:
        """Return what a job returned, or raise what it raised. Sweepers ask when all jobs have ended."""
        if job.status == JobStatus.FAILED or isinstance(job._return_value, Preempted):
            raise job._return_value
        if isinstance(job._return_value, LockedError):
            job._return_value = self._wait_for(job)
        return job._return_value

    def _wait_for(self, job: JobReturn) -> object:
        """Wait until another process has ended a run; return its result, or train what is left of it.

        Raises RunError if that fails.
        """
        assert job.cfg is not None
        HydraConfig.instance().cfg = job.hydra_cfg  # type: ignore[assignment]
        while True:
            try:
                return _imported(self.function)(job.cfg)
            except LockedError:
                time.sleep(WAIT)
            except RunError as error:
                sys.stderr.write(redact(f"error: {' '.join(job.overrides or [])}: {error}\n"))
                raise

    def _check(self, sweeper: Sweeper, batch: Sequence[Sequence[str]]) -> None:
        """Remove the runs that do not compose from ``batch`` if it is a list, and order the others.

        Raises the first reason where none composes.
        """
        assert sweeper.config is not None
        self._check_command(sweeper, batch)
        joblib = getattr(sweeper, "launcher", None) and getattr(sweeper.launcher, "joblib", None)  # type: ignore
        if joblib is not None:  # its options for the processes of a parallel sweep
            # Loky replaces a process whose memory has grown, between two runs.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
            joblib |= {"initializer": begin_worker, "initargs": (os.getpid(),)}
        cells = [without_seed(words) for words in batch]
        checked = self._compose(sweeper, dict(zip(cells, batch, strict=True)), self._describe(sweeper))
        wrong = {
            index: mistake
            for index, cell in enumerate(cells)
            if isinstance(mistake := checked[cell], Exception)
        }
        if wrong and (len(wrong) == len(batch) or not isinstance(batch, list)):
            # The command is wrong, not a run; or a search chose the run, and waits for its score.
            first = next(iter(wrong.values()))
            raise _CommandError(str(first)) if isinstance(first, ConfigError) else first
        self.config = sweeper.config
        self._refuse(batch, wrong)
        order = [index for index in range(len(batch)) if index not in wrong]
        if self.parallel is not None and joblib is not None:
            begun = self.parallel.arrange(joblib, [checked[cells[index]] for index in order])
            order = [order[run] for run in begun]
        self._show([checked[cells[index]] for index in order], [batch[index] for index in order])
        if joblib is not None and joblib["n_jobs"] != 1:
            hand_signals_on()
        if isinstance(batch, list):  # a search tells its runs apart by their order
            batch[:] = [batch[index] for index in order]

    def _describe(self, sweeper: Sweeper) -> Callable[[DictConfig], Any] | None:
        """Return what is computed of each run before the first begins; None if the launcher submits jobs."""
        assert sweeper.config is not None
        if self.parallel is None:
            return None
        if getattr(getattr(sweeper, "launcher", None), "joblib", None) is not None:
            return self.parallel.cost
        in_order = str(sweeper.config.hydra.launcher._target_).endswith("BasicLauncher")
        return self.parallel.listed if in_order else None

    def _show(self, described: list[Any], batch: list[Sequence[str]]) -> None:
        """Show the runs of a batch, in place of the batch before it."""
        self.view.close()
        if self.parallel is not None and None not in described and len(batch) > 1:
            self.view.enter_context(self.parallel.show(described, batch))

    def _check_command(self, sweeper: Sweeper, batch: Sequence[Sequence[str]]) -> None:
        """Check what all runs have in common. Raises _CommandError."""
        assert sweeper.hydra_context is not None
        assert sweeper.config is not None
        if "SlurmLauncher" in sweeper.config.hydra.launcher._target_ and shutil.which("srun") is None:
            raise _CommandError(
                "hydra/launcher=submitit_slurm: there is no srun on this machine, so it cannot submit jobs; "
                "use hydra/launcher=parallel, or leave it out"
            )
        # Hydra's copy of the command line. Nobody reads it, and it would keep a secret given there.
        (Path(sweeper.config.hydra.sweep.dir) / "multirun.yaml").unlink(missing_ok=True)
        loader = sweeper.hydra_context.config_loader
        params = OmegaConf.to_container(sweeper.config.hydra.sweeper).get("params") or {}  # type: ignore
        swept = [f"{key}={value}" for key, value in params.items()]
        if (reason := unmatched([*swept, *sweeper.config.hydra.overrides.task], loader)) is not None:
            raise _CommandError(reason)
        if isinstance(batch, list) and not batch:
            raise _CommandError("the sweep has no runs: one of its settings has no values")

    def _refuse(self, batch: Sequence[Sequence[str]], wrong: Mapping[int, Exception]) -> None:
        """Report the runs of a batch, by their index, whose overrides are ``wrong``."""
        assert self.config is not None
        self.refused |= bool(wrong)
        for index, mistake in wrong.items():
            reason = explain(mistake, self.config_name)
            sys.stderr.write(redact(f"error: {' '.join(batch[index])}: {reason}\n"))
            if self.handler is not None:
                self.handler(self.config, batch[index], reason)

    def _compose(
        self,
        sweeper: Sweeper,
        cells: dict[tuple[str, ...], Sequence[str]],
        describe: Callable[[DictConfig], Any] | None,
    ) -> dict[tuple[str, ...], Any]:
        """Return the description of each cell, None without ``describe``, or the mistake in its overrides."""
        assert sweeper.hydra_context is not None
        assert sweeper.config is not None
        checked: dict[tuple[str, ...], Any] = {}
        handed_on = HandedOn(sweeper)
        for cell, words in cells.items():
            try:
                cfg = sweeper.hydra_context.config_loader.load_sweep_config(sweeper.config, list(words))
                handed_on.keep(words, cfg)
                HydraConfig.instance().set_config(cfg)
                with open_dict(cfg):
                    check_words(cfg, cfg.pop("hydra"), list(words))
                checked[cell] = None if describe is None else describe(cfg)
            except (HydraException, OmegaConfBaseException, ConfigError) as error:
                checked[cell] = error
        HydraConfig.instance().set_config(sweeper.config)
        return checked


def _run_job(function: Function | str, single: list[tuple[DictConfig, Any]], cfg: DictConfig) -> object:
    """Start one run of a sweep for Hydra, and return what the sweeper gets. A failure is printed, and raised.

    A single run is only noted, with Hydra's own part of the configuration: ``start`` runs it after Hydra has
    returned, since nobody waits for what it returns.
    """
    if HydraConfig.get().mode == RunMode.RUN:
        single.append((cfg, HydraConfig.instance().cfg))
        return None
    try:
        if is_worker() and asked_to_stop():
            raise Preempted
        return _imported(function)(cfg)
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


def _imported(function: Function | str) -> Function:
    if not isinstance(function, str):
        return function
    module, _, name = function.rpartition(".")
    imported: Function = getattr(importlib.import_module(module), name)
    return imported


def _speaks(error: RunError) -> bool:
    """Return True in the one process, of those that share a run, that reports why it fails."""
    # They cannot have met without it.
    collectives = sys.modules.get("archbench.experiments.training.parallel.collectives")
    return process_rank().rank == 0 if collectives is None else collectives.reports_error(error)


def _fail(message: str, code: int, *, silent: bool = False) -> None:
    """End the process while an exception is handled; ``silent`` if another process prints the reason."""
    if silent:
        sys.exit(code)
    if os.environ.get("DEBUG") == "1":
        sys.stderr.write(redact(traceback.format_exc()))
    sys.stderr.write(redact(f"error: {message}\n"))
    sys.exit(code)
