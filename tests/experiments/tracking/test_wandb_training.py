"""Whole training runs mirrored online by the real client of W&B, against a server of ours."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.tracker import FILES, fold
from tests.experiments import commands
from tests.experiments.tracking.processes import API_KEY, environment
from tests.experiments.tracking.test_tracked_runs import PATIENCE, WORDS, expected_rows
from tests.experiments.tracking.wandb_server import Run, Server, serving

START, FINISH = 20, 60
"""Seconds that the page of tracking promises at most, at the start of a run and at its end."""
SLACK = 20
"""Seconds that a busy machine may add, and the end of the process."""


def begin(server: Server, runs: Path, module: str = "train", *words: str) -> subprocess.Popen[str]:
    """Start a command that finds the server where W&B would be."""
    words = words or (*WORDS, "tracking=wandb", f"runs={runs}")
    runs.mkdir(exist_ok=True)
    own = {name: value for name, value in environment(runs).items() if name in ("HOME", "NETRC")}
    return commands.start(module, *words, WANDB_API_KEY=API_KEY, WANDB_BASE_URL=server.url, **own)


def end(process: subprocess.Popen[str], code: int) -> str:
    """Wait for a command; return what it wrote to stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, out + err
    assert API_KEY not in out + err
    return err


def folder_of(runs: Path) -> Path:
    return commands.settings(*WORDS, f"runs={runs}").folder


def stop(server: Server, runs: Path, sign: signal.Signals, after: int) -> None:
    """Go on until the record is past ``after`` and a checkpoint is near, then send the signal."""
    process, folder = begin(server, runs), folder_of(runs)
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        rows = RunFolder(folder).rows()
        if rows and rows[-1].step > after and commands.newest_step(folder) >= after - 4:
            break
        time.sleep(0.01)
    process.send_signal(sign)
    end(process, -sign if sign == signal.SIGKILL else 75)


def received(run: Run) -> list[dict[str, Any]]:
    """The rows that the server has, without W&B's own columns."""
    return [{name: value for name, value in row.items() if name[0] != "_"} for row in run.history]


TIMED = ("progress/seconds", "progress/device_seconds", "train/tokens_per_second", "train/data_share")


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows]


def check_end(run: Run, folder: Path) -> None:
    """What the server has of a run that ended, beside its rows, is what the run folder has."""
    result = commands.result(folder)
    assert "status:complete" in run.tags
    for metric in result["metrics"]:
        assert run.summary[f"result/metrics/{metric['split']}/{metric['name']}"] == metric["value"]
    recorded = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(recorded, dict)
    assert run.config["cfg"] == fold(recorded, 3)
    for name in FILES:
        assert run.files[f"record/{name}"] == (folder / name).read_bytes(), name


@pytest.mark.full
def test_the_server_has_what_the_run_recorded(tmp_path: Path) -> None:
    with serving() as server:
        assert "W&B" not in end(begin(server, tmp_path), 0)
        (run,) = server.runs.values()
    folder = folder_of(tmp_path)
    assert received(run) == expected_rows(folder)
    assert run.exit_codes == [0]
    check_end(run, folder)


@pytest.mark.full
def test_a_run_killed_stopped_and_ended_is_one_run_there(tmp_path: Path) -> None:
    with serving() as server:
        stop(server, tmp_path, signal.SIGKILL, after=8)
        stop(server, tmp_path, signal.SIGTERM, after=24)
        end(begin(server, tmp_path), 0)
        (run,) = server.runs.values()
    folder = folder_of(tmp_path)
    # Repeated steps are there once; their clock is that of the first pass.
    assert untimed(received(run)) == untimed(expected_rows(folder))
    assert run.exit_codes == [75, 0]
    check_end(run, folder)


def wait_for_the_start(server: Server, process: subprocess.Popen[str]) -> None:
    """Wait until the server has made the run."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None and not server.runs:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.full
@pytest.mark.parametrize(
    ("failure", "begun"), [("401!", False), ("hang!", False), ("hang!", True), ("500!", True)]
)
def test_whatever_the_server_does_the_run_ends_in_time_and_is_sent_later(
    tmp_path: Path, failure: str, begun: bool
) -> None:
    """The times are those of a real run; test_wandb_online.py has more failures, and shorter times."""
    with serving() as server:
        server.failures["*"] = [] if begun else [failure]
        process = begin(server, tmp_path)
        if begun:
            wait_for_the_start(server, process)
            server.failures["*"] = [failure]
        err = end(process, 0)
        done = time.time()
        assert err.count("warning: W&B is off for the rest of this run") == 1
        folder = folder_of(tmp_path)
        rows = (folder / "metrics.jsonl").read_bytes()
        result, ended = commands.result(folder), (folder / "result.json").stat().st_mtime
        assert result["status"] == "complete"
        first = (folder / "provenance.json").stat().st_mtime  # written before W&B is asked
        waited = ended - first - result["training"]["seconds"]
        assert waited < START + SLACK, "the start waited"
        assert done - ended < FINISH + SLACK, "the end waited"
        server.failures.clear()
        sync = begin(
            server, tmp_path, "cli", "wandb", "sync", f"study={folder.parents[1].name}", f"runs={tmp_path}"
        )
        end(sync, 0)
        (run,) = server.runs.values()
    assert (folder / "metrics.jsonl").read_bytes() == rows
    assert received(run) == expected_rows(folder)
    check_end(run, folder)
