"""The W&B mirror, written by real processes and read back record by record."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.config.schema import TrackingConfig
from archbench.experiments.tracking import wandb as weights_and_biases
from archbench.experiments.tracking.tracker import RunIdentity, open_tracker
from tests import ROOT, wandb_file
from tests.experiments.tracking.processes import (
    API_KEY,
    KEY,
    PRELUDE,
    RECORD,
    child,
    environment,
    parts,
    started,
)
from tests.results import metric_row, result

IDENTITY = RunIdentity.of(result(RECORD))
WANDB_FLUSH_SECONDS = 15
"""Seconds between W&B's own writes of a run that is offline."""


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run from start to end, with secrets in its environment, command line and config."""
    folder = tmp_path_factory.mktemp("run")
    body = """
        tracker = start(tags=["extra"])
        for step in range(3):
            tracker.log(train(step))
        tracker.log(train(3, loss=math.inf, grad_norm=math.nan))
        tracker.log(validation(3, bits_per_byte=2.0, answer_accuracy=0.5))
        tracker.log(validation(4, bits_per_byte=2.5, answer_accuracy=0.75))
        tracker.log(validation(5, bits_per_byte=2.25, answer_accuracy=0.25))
        print("printed-line")
        values = {"bits_per_byte": 2.5, "loss": 3.5}
        metrics = [{"split": "test", "name": name, "value": value} for name, value in values.items()]
        tracker.close(result({"metrics": metrics, "training": {"flops": 7.0}}), 0)
    """
    secrets = {"WANDB_API_KEY": API_KEY, "SOME_SECRET": "canary-environment"}
    return folder, child(folder, body, "hub.token=canary-argument", **secrets)


def test_the_run_says_what_it_is(offline: tuple[Path, Any]) -> None:
    (path,) = parts(offline[0])
    run = wandb_file.run_record(path)
    group = KEY.removesuffix("-s0")
    assert (run.run_id, run.project, run.run_group, run.job_type) == (KEY, "pilot", group, "train")
    tags = ["arch:mamba", "objective:causal_lm", "task:recall", "size:nano", "stage:pretraining", "extra"]
    assert list(run.tags) == [*tags, "status:running"]
    updated = [list(r.run.tags) for r in wandb_file.records(path) if r.HasField("run")]
    assert updated[-1] == [*tags, "status:complete"]
    config = wandb_file.config(path)
    assert config["cfg"]["backbone"] == {"d_model": 64, "mixer": {"scan/chunk": 16, "scan/kind": "plain"}}
    assert config["cfg"]["hub"] == {"api_key": "<redacted>", "name": "visible-marker"}
    assert config["derived"] == {"parameters": {"body": 10}, "flops_per_token": 5.0, "fingerprint": "f" * 40}


def test_every_row_is_there_once_with_its_axes(offline: tuple[Path, Any]) -> None:
    (path,) = parts(offline[0])
    rows = wandb_file.history(path)
    assert [row["progress/step"] for row in rows] == [0, 1, 2, 3, 3, 4, 5]
    assert rows[2] == {
        "progress/step": 2,
        "progress/tokens": 128,
        "progress/flops": 2e9,
        "progress/seconds": 1.0,
        "progress/device_seconds": 1.0,
        "train/loss": pytest.approx(4 / 3),
        "train/learning_rate": 0.003,
        "train/grad_norm": 0.5,
        "train/tokens_per_second": 0.5,
        "train/data_share": 0.5,
    }
    assert rows[3]["train/loss"] == math.inf
    assert math.isnan(rows[3]["train/grad_norm"])
    assert rows[4] == {
        "progress/step": 3,
        "progress/tokens": 192,
        "progress/flops": 3e9,
        "progress/seconds": 1.5,
        "progress/device_seconds": 1.5,
        "validation/bits_per_byte": 2.0,
        "validation/answer_accuracy": 0.5,
    }


def test_metrics_run_over_tokens_and_summaries_keep_the_best(offline: tuple[Path, Any]) -> None:
    (path,) = parts(offline[0])
    metrics = wandb_file.metrics(path)
    for name in ("train/*", "validation/*", "routing/*"):
        assert metrics[name].step_metric == "progress/tokens"
    summary = wandb_file.summary(path)
    assert summary["train/loss"] == {"min": pytest.approx(4 / 3), "max": math.inf, "last": math.inf}
    assert summary["validation/bits_per_byte"] == {"min": 2.0, "max": 2.5, "last": 2.25}
    assert summary["validation/answer_accuracy"] == {"min": 0.25, "max": 0.75, "last": 0.25}
    assert summary["progress/tokens"] == {"last": 5 * 64}
    assert summary["result/status"] == "complete"
    assert summary["result/training/flops"] == 7.0
    assert (summary["result/metrics/test/bits_per_byte"], summary["result/metrics/test/loss"]) == (2.5, 3.5)
    assert not [name for name in summary if name.startswith(("train/learning_rate", "routing/"))]


def test_a_summary_has_at_most_forty_keys_the_important_ones_first(tmp_path: Path) -> None:
    body = """
        tracker = start()
        for step in range(2):
            tracker.log(train(step, **{f"metric_{i}": 1.0 for i in range(50)}))
            tracker.log(metric_row("routing", step, **{f"load_{i}": 1.0 for i in range(50)}))
            tracker.log(validation(step, bits_per_byte=2.0, **{f"metric_{i}": 1.0 for i in range(20)}))
        metrics = [{"split": "test", "name": f"m{i}", "value": i, "standard_error": 0.1} for i in range(60)]
        training = {"flops": 7.0, "peak_memory_bytes": 9}
        tracker.close(result({**RECORD, "metrics": metrics, "training": training, "parameters": {}}), 0)
    """
    child(tmp_path, body)
    (path,) = parts(tmp_path)
    summary = {name: value for name, value in wandb_file.summary(path).items() if name[0] != "_"}
    keys = sum(len(value) if isinstance(value, dict) else 1 for value in summary.values())
    assert 30 <= keys <= weights_and_biases.MOST_SUMMARY == 40
    assert summary["result/status"] == "complete"
    assert (summary["result/metrics/test/m0"], summary["result/metrics/test/m0/standard_error"]) == (0, 0.1)
    assert (summary["result/training/flops"], summary["result/training/peak_memory_bytes"]) == (7.0, 9)
    assert summary["validation/bits_per_byte"] == {"min": 2.0, "max": 2.0, "last": 2.0}
    assert not [name for name in summary if "parameters" in name or "backbone" in name], "they are in config"


@pytest.mark.parametrize("status", ["complete", "diverged"])
def test_the_final_model_is_an_artifact_where_one_is_asked_for(tmp_path: Path, status: str) -> None:
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("hub: {api_key: canary}\n")
    (tmp_path / "result.json").write_text("{}")
    for step in (9, 10):
        checkpoint = tmp_path / "checkpoints" / f"step-{step:08}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "optimizer").mkdir()
        for name in ("MANIFEST.json", "model.safetensors", "optimizer/shard.safetensors"):
            (checkpoint / name).write_bytes(str(step).encode())
    body = f"""
        tracker = start(artifacts=True)
        metrics = [{{"split": "test", "name": "bits_per_byte", "value": 2.5}}]
        tracker.close(result({{"status": "{status}", "metrics": metrics, "training": {{"steps": 10}}}}), 0)
    """
    assert child(tmp_path, body).stderr == ""
    (path,) = parts(tmp_path)
    found = wandb_file.artifacts(path)
    if status != "complete":
        assert found == []
        return
    (artifact,) = found
    assert (artifact.name, artifact.type) == (f"{KEY}-model", "model")
    assert json.loads(artifact.metadata)["metrics/test/bits_per_byte"] == 2.5
    held = {entry.path: Path(entry.local_path).read_bytes() for entry in artifact.manifest.contents}
    assert set(held) == {
        "config.yaml", "result.json", "model.json",
        "checkpoints/step-00000010/MANIFEST.json", "checkpoints/step-00000010/model.safetensors",
        "checkpoints/step-00000010/optimizer/shard.safetensors",
    }  # fmt: skip
    assert held["checkpoints/step-00000010/model.safetensors"] == b"10"
    assert b"canary" not in held["config.yaml"]


def test_wandb_prints_nothing_and_copies_nothing(
    offline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = offline
    assert (done.returncode, done.stdout, done.stderr) == (0, "printed-line\n", "")
    (part,) = (folder / "wandb").iterdir()
    assert not part.is_symlink()
    names = {str(path.relative_to(part)) for path in part.rglob("*") if path.is_file()}
    logs = {f"logs/debug{suffix}.log" for suffix in ("", "-internal", "-core")}
    assert names == logs | {f"run-{KEY}.wandb"}, "neither code nor requirements nor metadata"
    assert b"printed-line" not in (part / f"run-{KEY}.wandb").read_bytes()


def test_no_secret_reaches_a_file(offline: tuple[Path, Any]) -> None:
    # The folder is also the home of the process, so W&B's logs outside the run are searched too.
    files = {path: path.read_bytes() for path in offline[0].rglob("*") if path.is_file()}
    marked = {path.suffix for path, data in files.items() if b"visible-marker" in data}
    assert marked == {".wandb", ".log"}, "the search must be able to find what was written"
    assert [path for path, data in files.items() if b"canary" in data] == []


def test_rows_are_in_the_file_long_before_the_end_and_outlast_a_kill(tmp_path: Path) -> None:
    """W&B itself flushes every 15 s or every block; the file holds rows earlier, and a kill takes none."""
    body = """
        tracker = start()
        begun = time.monotonic()
        for step in range(1, 300):
            tracker.log(train(step, seconds=time.monotonic() - begun))
            time.sleep(0.2)
    """
    process = started(tmp_path, body)
    try:
        while len(seen := [row for path in parts(tmp_path) for row in wandb_file.history(path)]) < 3:
            assert process.poll() is None, "it ended, and no row was in the file"
            time.sleep(0.05)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    (path,) = parts(tmp_path)
    assert path.stat().st_size < wandb_file.BLOCK, "no full block made W&B write"
    assert seen[0]["progress/seconds"] <= seen[-1]["progress/seconds"] < WANDB_FLUSH_SECONDS
    rows = wandb_file.history(path)
    assert [row["progress/step"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[: len(seen)] == seen


def test_the_newest_part_of_a_resumed_run_holds_every_row_once(tmp_path: Path) -> None:
    """As the trainer does: after a stop the record is given again, up to the checkpoint."""
    for first, exit_code in ((0, 75), (4, 0)):
        body = f"""
            tracker = start()
            for step in [*range({first}), *range({first}, {first} + 5)]:
                tracker.log(train(step))
            tracker.close(None, {exit_code})
        """
        assert child(tmp_path, body).returncode == 0
    before, after = parts(tmp_path)
    assert wandb_file.run_record(before).run_id == wandb_file.run_record(after).run_id == KEY
    assert wandb_file.run_record(after).resume
    steps = [[row["progress/step"] for row in wandb_file.history(path)] for path in (before, after)]
    assert steps == [list(range(5)), list(range(9))]
    preempted = [[r.HasField("preempting") for r in wandb_file.records(path)] for path in (before, after)]
    assert [any(flags) for flags in preempted] == [True, False]
    exits = [[r.exit.exit_code for r in wandb_file.records(p) if r.HasField("exit")] for p in (before, after)]
    assert exits == [[75], [0]]


def test_two_runs_of_one_process_stay_apart(tmp_path: Path) -> None:
    body = """
        one = start()
        other = RunIdentity.of(result(RECORD | {"key": "other-s1", "seed": 1}))
        two = open_tracker(TrackingConfig(mode="offline"), other, FOLDER, {}, {})
        one.log(train(1))
        two.log(train(2))
        two.close(None, 0)
        one.log(train(3))
        one.close(None, 0)
    """
    assert child(tmp_path, body).stderr == ""
    steps = {
        wandb_file.run_record(path).run_id: [row["progress/step"] for row in wandb_file.history(path)]
        for path in parts(tmp_path)
    }
    assert steps == {KEY: [1, 3], "other-s1": [2]}


def test_a_failing_start_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("broken\nat https://me:canary@example.org")

    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr("wandb.init", refuse)
    tracker = open_tracker(TrackingConfig(mode="offline"), IDENTITY, tmp_path, {}, {})
    tracker.log(metric_row("train", 1))
    tracker.close(None, 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert "W&B is off" in line
    assert "RuntimeError: broken at https://<redacted>@example.org" in line


@pytest.mark.parametrize("broken", ["log", "finish"])
def test_a_failing_call_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    class Run:
        def __init__(self) -> None:
            self.calls: list[str] = []
            self.summary: dict[str, object] = {}
            self.starting_step = 0

        def define_metric(self, *_: object, **__: object) -> None:
            pass

        def log(self, row: dict[str, object]) -> None:
            self.call("log")

        def finish(self, exit_code: int) -> None:
            self.call("finish")

        def call(self, name: str) -> None:
            self.calls.append(name)
            if name == broken:
                raise OSError("disk full")

    run = Run()
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr("wandb.init", lambda **_: run)
    tracker = open_tracker(TrackingConfig(mode="offline"), IDENTITY, tmp_path, {}, {})
    for step in range(3):
        tracker.log(metric_row("train", step))
    tracker.close(None, 0)
    tracker.close(None, 0)
    assert run.calls == (["log"] if broken == "log" else ["log", "log", "log", "finish"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "OSError: disk full" in line


def test_the_death_of_the_helper_process_warns_once_and_harms_no_other_run(tmp_path: Path) -> None:
    body = """
        first = start()
        threads = Path("/proc/self/task").iterdir()
        (helper,) = " ".join((thread / "children").read_text() for thread in threads).split()
        os.kill(int(helper), signal.SIGKILL)
        time.sleep(0.3)
        for step in range(100):
            first.log(train(step))
        first.close(None, 0)
        second = start()
        second.log(train(7))
        second.close(None, 0)
    """
    done = child(tmp_path, body)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "W&B is off" in line
    assert [row["progress/step"] for row in wandb_file.history(parts(tmp_path)[-1])] == [7]


def test_online_without_a_key_never_asks(tmp_path: Path) -> None:
    """On a terminal, where W&B would ask for a key and wait."""
    body = 'tracker = start("online"); tracker.log(train(0)); tracker.close(None, 0)'
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.run_code", PRELUDE + body, str(tmp_path)],
        env=environment(tmp_path, WANDB_BASE_URL="http://127.0.0.1:9"),
        cwd=ROOT,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    try:
        assert process.wait(timeout=30) == 0
        (line,) = os.read(terminal, 10_000).decode().splitlines()
    finally:
        process.kill()
        os.close(terminal)
    assert "no API key" in line
    assert "WANDB_API_KEY" in line


@pytest.mark.parametrize("network", ["refused", "never answers"])
def test_online_without_a_network_gives_up_soon(tmp_path: Path, network: str) -> None:
    body = """
        weights_and_biases.INIT_TIMEOUT = 1.0
        tracker = start("online")
        tracker.log(train(0))
        tracker.close(None, 0)
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        if network == "never answers":
            server.listen()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        start = time.monotonic()
        done = child(tmp_path, body, WANDB_BASE_URL=url, WANDB_API_KEY=API_KEY)
    assert time.monotonic() - start < 20
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "W&B is off" in line
    assert "canary" not in line
