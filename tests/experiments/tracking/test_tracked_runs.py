"""Real runs, interrupted and continued under each sink, read back from the sinks' own files."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.weights_and_biases import workspace as dashboard_views
from archbench.analysis.weights_and_biases.fetch import place
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.tracker import fold
from archbench.experiments.tracking.upload import upload
from tests import wandb_file
from tests.experiments import commands
from tests.experiments.tracking.processes import child, parts

pytestmark = pytest.mark.full  # four processes of a run, for all tests of this file

STEPS = 60
PATIENCE = 300
"""Seconds to wait for a process on a busy machine."""
VALIDATED = [10, 20, 30, 40, 50, 60]
WORDS = (
    *commands.TINY,
    *commands.RECALL,
    "backbone=decoder",
    "budget.batch_size=4",
    f"budget.tokens={STEPS * 4 * 32}",
    "trainer.log_every=1",
    "trainer.evaluate_every=10",
    "trainer.checkpoint_every=4",
)


def stop(runs: Path, mode: str, sign: signal.Signals, after: int) -> None:
    """Goes on with the run until it has a row past ``after`` and a checkpoint, then sends the signal."""
    folder = commands.settings(*WORDS, f"runs={runs}").folder
    process = commands.start("train", *WORDS, f"tracking={mode}", f"runs={runs}", HOME=str(runs))
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        rows = RunFolder(folder).rows()
        if rows and rows[-1].step > after and commands.newest_step(folder) >= after - 4:
            break
        time.sleep(0.01)
    process.send_signal(sign)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-sign if sign == signal.SIGKILL else 75), out + err


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folders of a run killed in its first sitting, asked to stop in its second, and then ended
    under W&B (``wandb``) and, from a copy, under TensorBoard (``tensorboard``)."""
    runs = tmp_path_factory.mktemp("tracked")
    stop(runs / "wandb", "wandb_offline", signal.SIGKILL, after=5)
    stop(runs / "wandb", "tensorboard", signal.SIGTERM, after=12)
    shutil.copytree(runs / "wandb", runs / "tensorboard")
    done = commands.run(
        "train", *WORDS, "tracking=wandb_offline", f"runs={runs / 'wandb'}", HOME=str(runs / "wandb")
    )
    assert done.returncode == 0, done.stderr
    commands.train(*WORDS, "tracking=tensorboard", f"runs={runs / 'tensorboard'}")
    return {
        name: commands.settings(*WORDS, f"runs={runs / name}").folder for name in ("wandb", "tensorboard")
    }


def expected_rows(folder: Path) -> list[dict[str, Any]]:
    """The record's rows under the names that are mirrored, spelt out here once more."""
    axes = ("step", "tokens", "flops", "seconds", "device_seconds")
    return [
        {f"progress/{axis}": row[axis] for axis in axes}
        | {f"{row['kind']}/{name}": value for name, value in row.items() if name not in ("kind", *axes)}
        for row in commands.rows(folder)
    ]


def test_the_newest_offline_file_holds_the_whole_run_once(ended: dict[str, Path]) -> None:
    folder = ended["wandb"]
    first, last = parts(folder)
    rows = wandb_file.history(last)
    assert [row["progress/step"] for row in rows if "train/loss" in row] == list(range(1, STEPS + 1))
    assert [row["progress/step"] for row in rows if "train/loss" not in row] == VALIDATED
    assert rows == expected_rows(folder)
    killed = wandb_file.history(first)  # holds what it was given, up to about a second before the kill
    assert [row["progress/step"] for row in killed] == list(range(1, len(killed) + 1))
    run_id = wandb_file.run_record(last).run_id
    assert first.name == last.name == f"run-{run_id}.wandb"
    # A run that is killed in its first second has no record of it.
    assert {record.run.run_id for record in wandb_file.records(first) if record.HasField("run")} <= {run_id}


def test_its_config_is_the_record_s_and_says_what_the_run_costs(ended: dict[str, Path]) -> None:
    folder = ended["wandb"]
    config = wandb_file.config(parts(folder)[-1])
    recorded = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(recorded, dict)
    assert config["cfg"] == fold(recorded, 3)
    derived, result = config["derived"], commands.result(folder)
    for name in ("parameters", "flops_per_token", "state_bytes_2k", "planned", "fingerprint", "digest"):
        assert derived[name] == result[name], name
    training = result["training"]
    assert derived["planned"] == {name: training[name] for name in ("steps", "tokens", "flops")}
    assert derived["tokens_per_parameter"] == training["tokens"] / result["parameters"]["total"]
    provenance = json.loads((folder / "provenance.json").read_text())
    for name in ("device", "versions", "git"):
        assert derived[name] == fold(provenance[name], 3)
    assert config["spec"] == 1


def test_its_summary_is_the_result(ended: dict[str, Path]) -> None:
    folder = ended["wandb"]
    summary, result = wandb_file.summary(parts(folder)[-1]), commands.result(folder)
    for metric in result["metrics"]:
        assert summary[f"result/metrics/{metric['split']}/{metric['name']}"] == metric["value"]
    for name in ("flops", "seconds", "device_seconds", "tokens_per_second"):
        assert summary[f"result/training/{name}"] == result["training"][name]
    losses = [row["train/loss"] for row in expected_rows(folder) if "train/loss" in row]
    assert summary["train/loss"] == {"min": min(losses), "max": max(losses), "last": losses[-1]}


def test_its_files_are_the_record(ended: dict[str, Path]) -> None:
    folder = ended["wandb"]
    (saved,) = folder.glob("wandb/offline-run-*/files/record")  # not of the sitting that was killed
    names = {"config.yaml", "provenance.json", "metrics.jsonl", "result.json"}
    assert {path.name for path in saved.iterdir()} == names
    for name in names:
        assert (saved / name).read_text() == (folder / name).read_text(), name
    listed = [f.path for r in wandb_file.records(parts(folder)[-1]) for f in r.files.files]
    assert sorted(listed) == sorted(f"record/{name}" for name in names)
    result = commands.result(folder)
    assert redact(result) == result


def test_what_is_fetched_gives_the_same_frame(ended: dict[str, Path], tmp_path: Path) -> None:
    """Of the network only the copying is missing: these are the files that W&B would send back."""
    folder = ended["wandb"]
    runs, study = folder.parents[2], folder.parents[1].name
    (saved,) = folder.glob("wandb/offline-run-*/files/record")
    assert place(saved, tmp_path, study) == "fetched"
    assert (tmp_path / folder.relative_to(runs) / "result.json").is_file()
    own, fetched = (load_study(root, study).drop(columns="path") for root in (runs, tmp_path))
    pd.testing.assert_frame_equal(own, fetched)
    own, fetched = (load_history(root, study).drop(columns="path") for root in (runs, tmp_path))
    assert len(own) == STEPS + len(VALIDATED)
    pd.testing.assert_frame_equal(own, fetched)


def test_uploading_the_record_gives_the_same_rows(
    ended: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    copy = tmp_path / ended["wandb"].relative_to(ended["wandb"].parents[2])
    shutil.copytree(ended["wandb"], copy, ignore=shutil.ignore_patterns("wandb", "checkpoints"))
    assert upload(RunFolder(copy), mode="offline") == "uploaded"
    (mirror,) = parts(copy)
    own = parts(ended["wandb"])[-1]
    assert wandb_file.history(mirror) == wandb_file.history(own) == expected_rows(copy)
    for name in ("cfg", "derived"):
        assert wandb_file.config(mirror)[name] == wandb_file.config(own)[name]
    assert wandb_file.run_record(mirror).run_group == wandb_file.run_record(own).run_group


def test_the_dashboard_s_names_are_names_of_this_run(ended: dict[str, Path]) -> None:
    folder = ended["wandb"]
    frame = load_study(folder.parents[2], folder.parents[1].name)
    view = dashboard_views.spec(dashboard_views.workspace(frame, "p", ""))["spec"]["section"]
    shown = [panel for each in view["panelBankConfig"]["sections"] for panel in each["panels"]]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for panel in shown:
        kinds.setdefault(panel["viewType"], []).append(panel["config"])
    lines, bars, points = (kinds[kind] for kind in ("Run History Line Plot", "Bar Chart", "Scatter Plot"))
    mirror = parts(folder)[-1]
    logged = {name for row in wandb_file.history(mirror) for name in row}
    assert {name for panel in lines for name in (panel["xAxis"], *panel["metrics"])} <= logged
    summary = wandb_file.summary(mirror)
    for panel in bars:
        assert panel["metrics"][0].removeprefix("summary_metrics.") in summary
    for panel in points:
        assert {panel[axis].removeprefix("summary:") for axis in ("xAxis", "yAxis")} <= set(summary)
    assert {panel["groupBy"] for panel in [*lines, *bars]} == {"derived.value.backbone"}
    assert wandb_file.config(mirror)["derived"]["backbone"] == "decoder"


def test_tensorboard_shows_every_number_of_the_record_once(ended: dict[str, Path]) -> None:
    folder = ended["tensorboard"]
    shown = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    wanted: dict[str, dict[int, float]] = {}
    for row in expected_rows(folder):
        for name, value in row.items():
            wanted.setdefault(name, {})[row["progress/step"]] = value
    for metric in commands.result(folder)["metrics"]:
        wanted[f"result/{metric['split']}/{metric['name']}"] = {STEPS: metric["value"]}
    assert set(shown.Tags()["scalars"]) == set(wanted)
    seconds = wanted["progress/seconds"]
    for name, values in wanted.items():
        found = shown.Scalars(name)
        assert [point.step for point in found] == list(values), f"{name}: each step once, in order"
        for point in found:  # event files hold float32
            assert math.isclose(point.value, values[point.step], rel_tol=1e-6), name
            assert point.wall_time == seconds[point.step]
    assert len(wanted["train/loss"]) == STEPS


def test_tensorboard_s_files_lose_at_most_about_a_second_to_a_kill(tmp_path: Path) -> None:
    body = """
        tracker = start("tensorboard")
        begun, step = time.monotonic(), 0
        while time.monotonic() - begun < 3:
            step += 1
            tracker.log(train(step, seconds=time.monotonic() - begun))
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert child(tmp_path, body).returncode == -signal.SIGKILL
    points = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    losses = points.Scalars("train/loss")
    assert [point.step for point in losses] == list(range(1, len(losses) + 1))
    assert losses[-1].wall_time > 3 - 1.75
