"""The runs of a track: which there are, which are missing, and the commands that train them.

Everything is done by the commands a person would type (``archbench plan``, ``archbench train``), in
processes of their own and printed before they run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.track.rules import Track
from experiments.config.studies import typed_command
from experiments.runtime.child_processes import run_python
from experiments.runtime.run_status import FINAL

DIVERGED = 4
"""Exit code of ``experiments.train`` where a run diverged: an answer too."""
REFUSED = 2
"""Its exit code where a run was refused, while others were trained: a row of the table."""
DONE = ("done", "stored")


def sweep(track: Track, study: str, workload: str, backbones: Sequence[str], *more: str) -> list[str]:
    """Return the words of the runs of one workload, for ``experiments.plan`` and ``experiments.train``."""
    return ["-m", f"study={study}", f"{track.group}={workload}", f"backbone={','.join(backbones)}", *more]


def listed(words: Sequence[str]) -> pd.DataFrame:
    """Return the runs that words ask for: task, backbone, cell, digest, seed, status, refused.

    Raises ValueError where the command fails for all of them.
    """
    done = run_python(["-m", "experiments.plan", *words, "--list"], capture=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError(f"{typed_command('plan', *words)}: {done.stderr.strip() or 'no run was listed'}")
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    columns = ["task", "backbone", "cell", "digest", "seed", "status", "refused"]
    return pd.DataFrame(rows).reindex(columns=columns)


def missing(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that have not ended and can be trained."""
    status = runs["status"].str.removeprefix("stored: ").str.partition(":")[0]
    return runs[~status.isin([*DONE, *FINAL, "refused"])]


def train(words: Sequence[str]) -> None:
    """Train the missing runs of a sweep. Raises ValueError where the command fails as a whole."""
    print(typed_command("train", *words), flush=True)
    code = run_python(["-m", "experiments.train", *words]).returncode
    if code not in (0, DIVERGED, REFUSED):
        raise ValueError(f"the command above ended with exit code {code}: its message says why")


def show_plan(words: Sequence[str]) -> None:
    """Print the cost of runs."""
    print(typed_command("plan", *words), flush=True)
    run_python(["-m", "experiments.plan", *words])
