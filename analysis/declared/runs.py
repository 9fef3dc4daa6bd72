"""The runs of a command line: their list, the missing ones, and the commands that train them.

Runs are trained by ``archbench train`` in a subprocess; the command is printed before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import pandas as pd
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from archbench.experiments.config.cells import cells
from archbench.experiments.config.hydra_overrides import explain
from archbench.experiments.config.study import typed_command
from archbench.experiments.run.listed_run import listed_runs
from archbench.experiments.runtime.child_processes import run_python
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.run_status import FINAL

DIVERGED = 4
"""Exit code of ``experiments.train`` if a run diverged, which is a result."""
REFUSED = 2
"""Exit code if a run was rejected and the remaining runs were not, which is a row of the table."""
DONE = ("done", "stored")
MAX_ROUNDS = 8
"""Rounds of a search: four decades. An optimum further out is a mistake somewhere else."""


def listed(words: Sequence[str]) -> pd.DataFrame:
    """Return the runs of a sweep: task, backbone, cell, digest, seed, status, refused, words (its overrides).

    Raises ConfigError if all of them are wrong.
    """
    try:
        found = cells(words)
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        raise ConfigError(f"{typed_command('plan', *words)}: {explain(error)}") from None
    for cell in found:
        if cell.mistake:
            cell.report(cell.mistake)
    columns = ["task", "backbone", "cell", "digest", "seed", "status", "refused", "words"]
    return pd.DataFrame(map(asdict, listed_runs(found)), columns=columns)


def missing(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that have not ended and can be trained."""
    status = runs["status"].str.removeprefix("stored: ").str.partition(":")[0]
    return runs[~status.isin([*DONE, *FINAL, "refused"])]


def train_missing(words: Sequence[str], name: str) -> int:
    """Train the missing runs of a sweep, and return how many there were.

    Args:
        words: the command line.
        name: what is printed before their number.

    Raises:
        ValueError: all runs are wrong, or the command that trains them fails.
    """
    runs = listed(words)
    left, refused = missing(runs), runs[runs["status"] == "refused"]
    print(f"{name}: {len(runs)} runs, {len(left)} missing, {len(refused)} refused", flush=True)
    for _, cell in refused.drop_duplicates("backbone").iterrows():
        print(f"  {cell['backbone']}: {str(cell['refused']).splitlines()[0]}")
    if len(left):
        _run("train", words, (0, DIVERGED, REFUSED))
    return len(left)


def show_plan(words: Sequence[str]) -> None:
    """Print the cost of the runs of a sweep. Raises ValueError if the command fails."""
    _run("plan", words, (0, REFUSED))


def search(trials: Callable[[], list[list[str]]], name: str) -> int:
    """Train the trials that a tuning rule asks for, in rounds, and return how many runs were trained.

    The search ends when the rule asks for no more, or again for what could not be trained.

    Args:
        trials: returns the command lines of the next trials, which follow from the runs that have ended.
        name: what is printed before the number of runs.

    Raises:
        ValueError: the search has not ended after ``MAX_ROUNDS`` rounds, or a command fails.
    """
    trained, before = 0, None
    for _ in range(MAX_ROUNDS):
        commands = trials()
        if not commands or commands == before:
            return trained
        trained += sum(train_missing(words, name) for words in commands)
        before = commands
    raise ValueError(f"{name}: the search has not ended in {MAX_ROUNDS} rounds: look at its runs")


def _run(command: str, words: Sequence[str], accepted: Sequence[int]) -> None:
    """Print a command and run it. Raises ValueError if its exit code is none of ``accepted``."""
    print(typed_command(command, *words), flush=True)
    code = run_python(["-m", f"archbench.experiments.{command}", *words]).returncode
    if code not in accepted:
        raise ValueError(f"the command above ended with exit code {code}: see its message")
