"""The runs of a track: their list, the missing ones, and the commands that train them.

Runs are trained by ``archbench train`` in a subprocess; the command is printed before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from archbench.analysis.track.rules import Track
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


def sweep(track: Track, study: str, workload: str, backbones: Sequence[str], *more: str) -> list[str]:
    """Return the arguments of ``experiments.plan`` and ``experiments.train`` for one workload's runs."""
    return ["-m", f"study={study}", f"{track.group}={workload}", f"backbone={','.join(backbones)}", *more]


def listed(overrides: Sequence[str]) -> pd.DataFrame:
    """Return the runs of a sweep: task, backbone, cell, digest, seed, status, refused, words (its overrides).

    Raises ConfigError if all of them are wrong.
    """
    try:
        found = cells(overrides)
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        raise ConfigError(f"{typed_command('plan', *overrides)}: {explain(error)}") from None
    for cell in found:
        if cell.mistake:
            cell.report(cell.mistake)
    columns = ["task", "backbone", "cell", "digest", "seed", "status", "refused", "words"]
    return pd.DataFrame(map(asdict, listed_runs(found)), columns=columns)


def missing(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that have not ended and can be trained."""
    status = runs["status"].str.removeprefix("stored: ").str.partition(":")[0]
    return runs[~status.isin([*DONE, *FINAL, "refused"])]


def train(overrides: Sequence[str]) -> None:
    """Train the missing runs of a sweep. Raises ValueError if the command fails."""
    print(typed_command("train", *overrides), flush=True)
    code = run_python(["-m", "archbench.experiments.train", *overrides]).returncode
    if code not in (0, DIVERGED, REFUSED):
        raise ValueError(f"the command above ended with exit code {code}: see its message")


def show_plan(overrides: Sequence[str]) -> None:
    """Print the cost of the runs of a sweep. Raises ValueError if the command fails."""
    print(typed_command("plan", *overrides), flush=True)
    code = run_python(["-m", "archbench.experiments.plan", *overrides]).returncode
    if code not in (0, REFUSED):
        raise ValueError(f"the command above ended with exit code {code}: see its message")
