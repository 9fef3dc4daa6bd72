"""What all sinks share, and what no sink may do to a run."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from archbench.experiments.config.schema import TrackingConfig
from archbench.experiments.tracking import tracker as tracking
from archbench.experiments.tracking.run_files import MetricRow, RunResult, TrainRow
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.tracker import RunIdentity, Sink, Tracker, derived, safe_texts
from tests import ROOT, forked, results
from tests.experiments.tracking.processes import KEY, RECORD, child
from tests.results import metric_row, result, write_result

IDENTITY = RunIdentity.of(result(RECORD))


class Memory(Sink):
    """A sink that keeps what it is given."""

    name = "memory"
    at_start = 0
    last: Memory

    def __init__(self, *_: Any) -> None:
        self.stored_rows, self.rows = self.at_start, []
        type(self).last = self

    def log(self, step: int, seconds: float, names: dict[str, object]) -> None:
        self.rows.append(names)

    def close(self, result: RunResult | None, exit_code: int) -> None:
        self.result = result


@pytest.fixture
def open_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(tracking, "load_class", lambda *_: Memory)

    def open_it(held: int = 0, steps: int = 0) -> tuple[Tracker, Memory]:
        monkeypatch.setattr(Memory, "at_start", held)
        tracker = Tracker(TrackingConfig(mode="offline"), IDENTITY, tmp_path, {}, steps)
        return tracker, Memory.last

    return open_it


def row(step: int, kind: str = "train", **more: object) -> MetricRow:
    return metric_row(kind, step, **more)


def test_a_sink_that_goes_on_leaves_out_what_it_holds(open_memory: Any) -> None:
    """It held four rows when the run was stopped; the record goes on from its third."""
    tracker, memory = open_memory(held=4)
    for step in range(3):
        tracker.log(row(step))  # the record, given again
    for step in range(3, 6):
        tracker.log(row(step))  # computed again
    assert [each["progress/step"] for each in memory.rows] == [4, 5]
    tracker, memory = open_memory(held=2)  # its last row was lost on the way: it is made up for
    for step in range(5):
        tracker.log(row(step))
    assert [each["progress/step"] for each in memory.rows] == [2, 3, 4]


def test_a_long_run_mirrors_ten_thousand_rows_and_all_validations(open_memory: Any) -> None:
    tracker, memory = open_memory(steps=400_000)  # a row for every 40 steps
    for step in range(20, 2001, 20):
        tracker.log(row(step))
        if step % 100 == 0:
            tracker.log(row(step, "validation", loss=1.0))
    trained = [each["progress/step"] for each in memory.rows if "validation/loss" not in each]
    assert len(trained) == 51
    assert trained[:4] == [20, 40, 80, 120]
    assert sum("validation/loss" in each for each in memory.rows) == 20


def test_metrics_beyond_three_hundred_are_left_out(open_memory: Any) -> None:
    tracker, memory = open_memory()
    tracker.log(row(1, "routing", **{f"layer{i}": 0.5 for i in range(400)}))
    tracker.log(row(2, loss=1.0))
    assert len(memory.rows[0]) == 300
    axes = ("step", "tokens", "flops", "seconds", "device_seconds")
    assert list(memory.rows[1]) == [f"progress/{axis}" for axis in axes]


def test_tags_and_job_types_are_of_closed_lists() -> None:
    tags = {"arch": "mamba", "objective": "causal_lm", "task": "recall", "size": "nano"}
    assert IDENTITY.tags == tags | {"stage": "pretraining"}
    assert (
        RunIdentity.of(result(RECORD | {"initial": {"path": "x", "fingerprint": "f"}})).tags["stage"]
        == "fine_tuning"
    )
    assert IDENTITY.group == "mamba-recall-nano-ab12cd34"
    for change in ({"job_type": "trial"}, {"tags": {"mood": "good"}}):
        with pytest.raises(ValueError, match="closed lists"):
            RunIdentity(**(vars(IDENTITY) | change))


def test_off_never_imports_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", forked.honest_popen)  # a forked process has imported it
    body = """
        tracker = start("off")
        tracker.log(train(0))
        tracker.close(result({}), 0)
        print([name for name in ("wandb", "tensorboard") if name in sys.modules])
    """
    assert child(tmp_path, body).stdout == "[]\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "mode"),
    [("off", "off"), ("wandb", "online"), ("wandb_offline", "offline"), ("tensorboard", "tensorboard")],
)
def test_the_config_files_choose_the_mode_and_leave_the_rest(name: str, mode: str) -> None:
    tree = OmegaConf.load(ROOT / "conf" / "tracking" / f"{name}.yaml")
    assert isinstance(tree, DictConfig)
    del tree["defaults"]
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrackingConfig), tree))
    assert config == TrackingConfig(mode=mode)


def test_wrong_settings_are_refused_with_the_remedy() -> None:
    modes = "off, online, offline, tensorboard"
    with pytest.raises(ValueError, match=rf"tracking.mode='False' is not one of {modes}.*quotes"):
        TrackingConfig(mode="False")
    with pytest.raises(ValueError, match=r"tracking.tags='status:good': .* set by the run itself"):
        TrackingConfig(tags=["mine", "status:good"])
    for key in ("a" * 65, "a/b", ""):
        with pytest.raises(ValueError, match="cannot be a run id"):
            RunIdentity.of(result(RECORD | {"key": key}))
    assert IDENTITY.key == KEY


def test_secrets_stay_here_and_everything_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a secret of the process that uploads, which the one that trained did not know."""
    monkeypatch.setenv("MY_SECRET", "canary-environment")
    (tmp_path / "config.yaml").write_text(
        "hub: {api_key: canary-config, name: visible}\ntracking: {mode: 'off', tags: [canary-environment]}\n"
    )
    (tmp_path / "provenance.json").write_text(json.dumps({"command": "train x.password=canary-words"}))
    record = {"message": "at https://me:canary-url@example.org", "flops_per_token": 5.0, "digest": "a" * 40}
    write_result(tmp_path, record)
    rows = json.dumps(results.row("train", 1, token_accuracy="nan")) + "\n"
    (tmp_path / "metrics.jsonl").write_text(rows)
    texts = safe_texts(tmp_path)
    assert "canary" not in "".join(texts.values())
    config = OmegaConf.create(texts["config.yaml"])
    assert (config.hub.name, config.tracking.mode) == ("visible", "off")
    assert json.loads(texts["result.json"]).items() >= {"flops_per_token": 5.0, "digest": "a" * 40}.items()
    assert texts["metrics.jsonl"] == rows
    (tmp_path / "result.json").unlink()
    assert set(safe_texts(tmp_path)) == {"config.yaml", "provenance.json", "metrics.jsonl"}


def test_rows_are_read_as_they_were_logged(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    logged = metric_row("train", 1, loss=math.inf, grad_norm=-math.inf, load=[0.5, 0.5])
    folder.log(logged)
    folder.log(metric_row("train", 2, loss=math.nan))
    with folder.metrics.open("a") as file:
        file.write('{"kind": "train", "st')
    first, second = folder.rows()
    assert first == logged
    assert isinstance(second, TrainRow)
    assert math.isnan(second.loss)


def test_what_is_not_known_is_left_out() -> None:
    """A run that was refused has no plan."""
    refused = derived(result({"status": "refused", "words": []}), None)
    assert refused["tokens_per_parameter"] is None
    assert not refused.keys() & {"planned", "parameters", "git", "status"}
    planned = result({"planned": {"tokens": 50}, "parameters": {"total": 10}})
    assert derived(planned, None)["tokens_per_parameter"] == 5.0


@pytest.mark.parametrize(
    "given",
    [{"tags": [""]}, {"tags": ["a", " "]}, {"tags": ["t" * 65]}, {"project": "a/b"}, {"project": "p" * 129}],
)
def test_what_wandb_would_not_take_is_rejected_when_it_is_read(given: dict[str, Any]) -> None:
    """W&B was switched off for the whole run."""
    with pytest.raises(ValueError, match=r"tracking\.(tags|project)=.*characters"):
        TrackingConfig(mode="offline", **given)
    TrackingConfig(mode="offline", tags=["t" * 64], project="p" * 128)
