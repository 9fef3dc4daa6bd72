"""The YAML files of a submission are those of its model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from archbench.analysis.submission.folder import Submission, config_problems, model_configs
from archbench.analysis.submission.study import read_study, sections_set


def test_a_submission_has_the_yaml_files_of_its_model_only(tmp_path: Path) -> None:
    files = {
        "mine": "defaults: [parts/base@_here_, _self_]\n_target_: my_toy.Toy\n",
        "parts/base": "d_ff: 8\n",
        "draft": "_target_: my_toy.Toy\n",
        "global": "# @package _global_\ntrainer: {test_examples: 1}\n",
        "sweep": "# @package hydra.sweeper\nparams: {trainer.test_examples: 1}\n",
    }
    for name, text in files.items():
        path = tmp_path / "backbone" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    configs = model_configs(["task=text", "backbone=mine"], tmp_path)
    assert sorted(configs) == ["backbone/mine.yaml", "backbone/parts/base.yaml"]
    assert configs["backbone/mine.yaml"] == hashlib.sha256(files["mine"].encode()).hexdigest()
    assert model_configs(["backbone=decoder"], tmp_path) == {}
    study = read_study("compare", tmp_path)
    changed = {name: sections_set(study, [f"backbone={name}", "task=recall_8_pairs"]) for name in files}
    assert changed["mine"] == []
    assert changed["global"] == ["trainer"]
    assert changed["sweep"] == ["hydra"]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("backbone/mine.yaml", None),
        ("study/compare.yaml", "a submission has YAML files of its backbone only"),
        ("backbone/decoder.yaml", "is a file of the project"),
    ],
)
def test_other_yaml_files_are_rejected(file: str, reason: str | None, tmp_path: Path) -> None:
    path = tmp_path / "configs" / file
    path.parent.mkdir(parents=True)
    path.write_text("d_model: 8\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    listed_file = Submission(study="compare", overrides=[], authors="A.", configs={file: digest})
    found = list(config_problems(listed_file, tmp_path))
    assert found == [] if reason is None else reason in found[0]
    (unlisted,) = config_problems(Submission(study="compare", overrides=[], authors="A."), tmp_path)
    assert "is not the file of submission.yaml" in unlisted
