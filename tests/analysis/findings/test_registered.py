"""Each claim was registered before the runs that decide it, by the history of the repository.

A clone that is shallow, or a copy without its history, cannot tell: the test is skipped there.
"""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from archbench.analysis.declared.frames import Frames
from archbench.analysis.declared.records import read_record
from archbench.analysis.findings.claims import Claim
from archbench.analysis.findings.verdicts import runs_of
from tests import ROOT

RECORDS = ROOT / "docs" / "findings"
DECISIVE = (
    "refuted_by",
    "effect",
    "relation",
    "track",
    "frame",
    "workload",
    "test",
    "model",
    "other",
    "seeds",
)
"""Fields that the verdict depends on."""


def git(*words: str) -> str:
    """Return the output of git at the root of the checkout; empty if it is missing."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def registration(path: Path) -> tuple[str, datetime]:
    """The commit that added a record, and its date."""
    added = git("log", "--diff-filter=A", "--format=%H %aI", "--", str(path.relative_to(ROOT))).split()
    return added[-2], datetime.fromisoformat(added[-1])


needs_history = pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository").strip() != "false", reason="the history is not here"
)


@needs_history
@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.yaml")))
def test_the_record_is_older_than_its_runs_and_was_not_changed_since(name: str) -> None:
    path = RECORDS / f"{name}.yaml"
    commit, added = registration(path)
    claim = read_record(path, Claim)
    runs: pd.DataFrame = runs_of(claim, Frames(ROOT / "none", ROOT / "docs" / "results"))
    ended = [datetime.fromisoformat(str(value)) for value in runs.get("finished_at", []) if pd.notna(value)]
    assert all(added < each for each in ended)

    def decisive(text: str) -> dict[str, Any]:
        values = yaml.safe_load(text)
        return {key: values.get(key) for key in DECISIVE}

    then = git("show", f"{commit}:{path.relative_to(ROOT)}")
    assert decisive(then) == decisive(path.read_text())
