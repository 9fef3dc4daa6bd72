"""What leaves a run folder: its small files, without secrets."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.tracking.run_files import TrainRow
from experiments.tracking.run_folder import RunFolder
from experiments.tracking.summary import derived, safe_texts
from tests.results import metric_row, result, row, write_result


def test_secrets_stay_here_and_everything_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a secret of the process that uploads, which the one that trained did not know."""
    monkeypatch.setenv("MY_SECRET", "canary-environment")
    (tmp_path / "config.yaml").write_text(
        "hub: {api_key: canary-config, name: visible}\ntracking: {mode: 'off', tags: [canary-environment]}\n"
    )
    (tmp_path / "provenance.json").write_text(json.dumps({"command": "train x.password=canary-words"}))
    record = {"message": "at https://me:canary-url@example.org", "flops_per_token": 5.0, "digest": "a" * 40}
    write_result(tmp_path, record)
    rows = json.dumps(row("train", 1, token_accuracy="nan")) + "\n"
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
