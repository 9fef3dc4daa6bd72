"""A study sent to a server by the real client, its views saved, and its runs fetched into another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis.load.study import load_study
from archbench.experiments.tracking.tracker import FILES
from tests.experiments import commands
from tests.experiments.tracking.processes import API_KEY
from tests.experiments.tracking.wandb_server import Server, serving

STUDY = ("study.name=sent", *commands.TINY, *commands.SHORT_TEXT)


def ended(server: Server, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command against the server."""
    environment = {**os.environ, "WANDB_API_KEY": API_KEY, "WANDB_BASE_URL": server.url}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=commands.ROOT, env=environment, capture_output=True, text=True)


def run(server: Server, module: str, *words: str) -> str:
    """Return what a command that succeeds printed."""
    done = ended(server, module, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def record(folder: Path) -> dict[str, bytes]:
    """The files of all runs that W&B is sent, by their place in the study."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.glob("*-*/s*/*"))
        if path.name in FILES
    }


@pytest.mark.full
def test_a_study_is_sent_and_comes_back(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for seed in (0, 1):
        commands.train(*STUDY, f"seed={seed}", f"runs={here}")
    with serving() as server:
        printed = run(server, "archbench.analysis.weights_and_biases.dashboard", "study=sent", f"runs={here}")
        assert printed.count(": uploaded") == 3, "two runs and their analysis"
        first = dict(server.views)
        again = run(server, "archbench.analysis.weights_and_biases.dashboard", "study=sent", f"runs={here}")
        fetched = run(server, "archbench.analysis.weights_and_biases.fetch", "study=sent", f"runs={there}")
    assert again.count(": already there") == 3
    # The workspace and the report are replaced by the second call, not doubled.
    assert first.keys() == server.views.keys()
    assert [view["type"] for view in first.values()] == ["project-view", "runs"]
    assert {view["projectName"] for view in first.values()} == {"sent"}
    (analysis,) = [each for each in server.runs.values() if each.name == "analysis-sent"]
    assert any(name.startswith("media/table/tables/results") for name in analysis.files)
    # What comes back is what was sent, byte for byte, and gives the same frame.
    assert fetched.count(": fetched") == 2
    assert record(there / "sent") == record(here / "sent") != {}
    frames = [load_study(runs, "sent").drop(columns="path") for runs in (here, there)]
    pd.testing.assert_frame_equal(*frames)


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "failure"),
    [
        ("archbench.analysis.weights_and_biases.dashboard", "401!"),
        ("archbench.analysis.weights_and_biases.fetch", "500!"),
        ("archbench.analysis.weights_and_biases.fetch", "hang!"),
    ],
)
def test_a_server_that_fails_is_one_line_and_an_exit_code(tmp_path: Path, module: str, failure: str) -> None:
    commands.train(*STUDY, f"runs={tmp_path}")
    before = record(tmp_path / "sent")
    with serving() as server:
        server.failures["*"] = [failure]
        begun = time.monotonic()
        done = ended(server, module, "study=sent", f"runs={tmp_path}")
        took = time.monotonic() - begun
        assert done.returncode == 1, done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: W&B failed:")
        assert API_KEY not in line
        assert took < 180, "far more than the 20 seconds that the client waits"
        server.failures.clear()
        run(server, module, "study=sent", f"runs={tmp_path}")
    assert record(tmp_path / "sent") == before
