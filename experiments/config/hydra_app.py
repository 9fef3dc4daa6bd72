"""The start of every command: Hydra, set up so that a mistake gives one message and an exit code.

Composing imports the classes that the YAML files name, and with them PyTorch, which takes most of the time
until ``--help`` or a mistake is printed. An entry point that needs much more than that names its function
instead of importing it, or imports what it needs in the function.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

import archbench.experiments.config.schema  # noqa: F401  # registers what the YAML files extend, and their reader
from archbench.experiments.config import CONF
from archbench.experiments.config.cells import Cell, cells, single_cell, sweep_config, swept_cells
from archbench.experiments.config.hydra_internals import answers, command_line, is_expandable, loaded
from archbench.experiments.config.hydra_internals import run as run_hydra
from archbench.experiments.config.hydra_overrides import checked_words, explain, no_option
from archbench.experiments.config.sweep import (
    Function,
    Parallel,
    check_launcher,
    imported,
    run_sweep,
    search,
)
from archbench.experiments.runtime.child_processes import (
    end_with_parent,
)
from archbench.experiments.runtime.errors import (
    ConfigError,
    RunError,
    is_full,
    to_run_error,
)
from archbench.experiments.runtime.machine import ensure_folders, process_rank
from archbench.experiments.runtime.preemption import ends_at_signals
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.special_files import refuse_pipes
from archbench.experiments.runtime.streams import guard_streams


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
    began = _Began()
    with one_line_errors(config_name, given, began):
        checked = checked_words(given, config_name)
        line = command_line(checked)
        if answers(line):
            run_hydra(checked, print, CONF, config_name)
            return
        with loaded(line.config_dir, CONF) as hydra:
            sweep = sweep_config(hydra, config_name, line.overrides, line.multirun)
            if sweep is None:
                cell = single_cell(hydra, config_name, line.overrides)
            else:
                check_launcher(sweep)
                found = swept_cells(hydra, config_name, sweep) if is_expandable(sweep) else None
                began.sweep = sweep
                try:
                    if found is None:
                        search(hydra, config_name, line.overrides, function)
                    else:
                        run_sweep(hydra, sweep, found, function, refused, parallel)
                finally:
                    if ended is not None:
                        ended(sweep)
        if sweep is None:
            imported(function)(cell.select())


@ends_at_signals()
def for_cells(
    function: Callable[[list[Cell]], None], words: Sequence[str], config_name: str = "config"
) -> None:
    """Call ``function`` with the run configurations of a command line. A mistake ends the process.

    ``--help``, ``--cfg`` and the like are answered instead, as for ``archbench train``.
    """
    with one_line_errors(config_name, words):
        checked = checked_words(words, config_name)
        if answers(command_line(checked)):
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


@dataclass
class _Began:
    """Tells apart mistakes of a command line from failures of the runs of a sweep."""

    sweep: DictConfig | None = None
    """Configuration of the sweep, once its runs begin."""


@contextmanager
def one_line_errors(config_name: str, words: Sequence[str], began: _Began | None = None) -> Iterator[None]:
    """End the process with one line and an exit code where the block raises a user's mistake."""
    guard_streams()
    end_with_parent()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of Hydra's printer
    try:
        refuse_pipes()
        ensure_folders()
        yield
    except RunError as error:
        if began is None or began.sweep is None:  # no run of a sweep has begun
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
