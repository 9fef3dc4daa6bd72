"""Edits of a submission, as somebody makes who cheats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from archbench.analysis.declared.study_frames import study_frame
from archbench.analysis.files import parquet
from archbench.experiments.tracking import provenance
from archbench.experiments.tracking.run_files import checksum, file_record
from tests.analysis.submission.toy_study import forget_module

Edit = Callable[[Path], object]


def run_in(folder: Path, seed: int) -> Path:
    """The run of a seed; 100 for a tuning run."""
    return sorted((folder / "records").glob(f"*/*/s{seed}"))[0]


def sealed(path: Path, edit: Callable[[dict[str, Any]], object] = lambda result: None) -> None:
    """Change a result as somebody does who knows its hashes."""
    result = json.loads((path / "result.json").read_text())
    edit(result)
    for name in result["files"]:
        if (path / name).exists():  # a submission has no checkpoints
            result["files"][name] = file_record((path / name).read_bytes()).model_dump()
    result["checksum"] = checksum(result)
    (path / "result.json").write_text(json.dumps(result))


def sealed_frame(folder: Path) -> None:
    """Write results.parquet again, as somebody does who has edited the runs."""
    (folder / "results.parquet").write_bytes(parquet(study_frame(folder / "records", "toy")))


def result_edit(edit: Callable[[dict[str, Any]], object]) -> Edit:
    """The result of seed 0 was changed, with its hashes and with results.parquet."""

    def change(folder: Path) -> None:
        sealed(run_in(folder, 0), edit)
        sealed_frame(folder)

    return change


def setting_edit(key: str, value: object) -> Edit:
    """The run of seed 0 had another value of a setting."""

    def change(folder: Path) -> None:
        path = run_in(folder, 0) / "config.yaml"
        config = yaml.safe_load(path.read_text())
        section, name = key.split(".")
        assert config[section][name] != value
        config[section][name] = value
        path.write_text(yaml.safe_dump(config))
        sealed(path.parent)

    return change


def code_edit(old: str, new: str, runs: bool) -> Edit:
    """The code of the model is another one; with ``runs``, also that which the runs have recorded."""

    def change(folder: Path) -> None:
        file = folder / "my_toy.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))
        for path in (folder / "records").glob("*/*/s*/provenance.json") if runs else ():
            record = json.loads(path.read_text())
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(folder)
                forget_module()
                record["code"]["my_toy"] = provenance.code_hashes(["my_toy"])["my_toy"]
            path.write_text(json.dumps(record))
            sealed(path.parent)
        sealed_frame(folder)

    return change


def other_seed(folder: Path) -> None:
    old, new = run_in(folder, 1), run_in(folder, 1).with_name("s7")
    shutil.move(old, new)
    record = json.loads((new / "provenance.json").read_text())
    (new / "provenance.json").write_text(json.dumps(record | {"key": f"{new.parent.name}-s7"}))
    sealed(new, lambda result: result.update(key=f"{new.parent.name}-s7", seed=7))
    sealed_frame(folder)


def missing_run(folder: Path) -> None:
    shutil.rmtree(run_in(folder, 1))
    sealed_frame(folder)


def more_trials(folder: Path) -> None:
    shutil.copytree(
        folder.parent / "other" / "toy_rates", folder / "records" / "toy_rates", dirs_exist_ok=True
    )


def rate_by_test_score(folder: Path) -> None:
    shutil.rmtree(run_in(folder, 0))
    shutil.copytree(folder.parent / "other" / "toy", folder / "records" / "toy", dirs_exist_ok=True)
    sealed_frame(folder)


def edited_frame(folder: Path) -> None:
    frame = pd.read_parquet(folder / "results.parquet")
    frame.loc[0, "score"] = 1.0
    (folder / "results.parquet").write_bytes(parquet(frame))


def edited_score(folder: Path) -> None:
    path = run_in(folder, 0) / "result.json"
    result = json.loads(path.read_text())
    result["metrics"][0]["value"] = 1.0
    path.write_text(json.dumps(result))


def edited_curve(folder: Path) -> None:
    path = run_in(folder, 0) / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss"', '"los"', 1))


def half_the_score(result: dict[str, Any]) -> None:
    metric = result["metrics"][0]
    metric["value"] /= 2
    metric["cluster_totals"] = [[bits, 2 * size] for bits, size in metric["cluster_totals"]]


def record_edit(**values: object) -> Edit:
    """submission.yaml has other values."""

    def change(folder: Path) -> None:
        path = folder / "submission.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))

    return change
