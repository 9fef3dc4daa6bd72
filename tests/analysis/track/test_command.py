"""A track in a temporary folder, run by its command: part by part, a second time, and with another model."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis.declared.tracks import check_backbones
from archbench.analysis.track.__main__ import TrackConfig, main, prepare
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments.test_toy_backbone import PYTHON, YAML

STUDY = """# @package _global_
defaults:
  - /track/toy: lookup
  - override /device: cpu
  - override /budget: smoke

study:
  name: track_toy
  tuned: ${{runs}}/track_toy_rates/analysis/rates.yaml
  fixed_grid: true
  stored: {stored}
scale: {{depth: 1, mixer_depth: 1}}
device: {{threads: 1}}
trainer: {{validation_examples: 8, test_examples: 8, evaluate_every: 10}}

hydra:
  mode: MULTIRUN
  sweeper:
    params:
      track/toy: lookup
      backbone: decoder
      seed: 0,1
"""
RATES = """# @package _global_
defaults:
  - track/toy
  - _self_

study:
  name: track_toy_rates
  tuned: null
trainer: {extra_evaluations: []}

hydra:
  sweeper:
    params:
      optimizer.learning_rate: 1e-3,1e-2
      seed: 100
"""
WORKLOAD = """# @package _global_
# Look-up.
defaults:
  - override /task: recall

names: {task: lookup}
study:
  workload:
    differ: "they need not"
    target: 0.0
    held_out: {longer: "sequence_length=32"}
scale: {targets: {flops: 100_000}}
trainer: {extra_evaluations: ["sequence_length=32"]}
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder with the YAML files of a track of one model."""
    conf = tmp_path / "conf"
    for name, text in {
        "study/track/toy.yaml": STUDY.format(stored=tmp_path / "toy.parquet"),
        "study/track/toy_rates.yaml": RATES,
        "track/toy/lookup.yaml": WORKLOAD,
    }.items():
        (conf / name).parent.mkdir(parents=True, exist_ok=True)
        (conf / name).write_text(text)
    return tmp_path


def cells(folder: Path) -> set[str]:
    """The run folders of a study, without their digests."""
    return {
        f"{path.parent.parent.name.rsplit('-', 1)[0]}/{path.parent.name}"
        for path in folder.glob("*/s*/result.json")
    }


def test_before_a_track_has_run_its_cost_is_printed_and_there_are_no_tables(
    toy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["toy", f"config_dir={toy}/conf", f"runs={toy}/runs"]
    assert main([*words, "--dry-run"]) == 0, capfd.readouterr().err
    assert "decoder" in capfd.readouterr().out
    assert main([*words, "--tables"]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: no run of the track toy is in ")
    assert error.count("\n") == 1


def test_a_backbone_that_does_not_exist_is_one_error_before_any_plan(
    toy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["toy", f"config_dir={toy}/conf", f"runs={toy}/runs"]
    assert main([*words, "backbones=decoder,decodr", "--dry-run"]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "did you mean 'decoder'?" in printed.err
    assert printed.err.count("\n") == 1
    (toy / "conf" / "backbone").mkdir()
    (toy / "conf" / "backbone" / "decodr.yaml").touch()
    check_backbones(["decodr", "my_mixer.MyMixer", "glob(mamba*)"], f"{toy}/conf")


@pytest.mark.full
def test_a_track_is_run_once_and_takes_another_model(
    toy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["toy", f"config_dir={toy}/conf", f"runs={toy}/runs"]
    assert main(words) == 0, capfd.readouterr().err
    analysis = toy / "runs" / "track_toy" / "analysis"
    frame = pd.read_parquet(analysis / "toy.parquet")
    assert frame.groupby("study").size().to_dict() == {"track_toy": 2, "track_toy_rates": 2}
    assert (frame["status"] == "complete").all()
    assert not frame["command"].str.contains(f"{toy}/runs").any(), "paths of a machine"
    assert cells(toy / "runs" / "track_toy") == {"decoder-lookup-nano/s0", "decoder-lookup-nano/s1"}

    # Elsewhere, with the frame and without the run folders: nothing is trained.
    shutil.copy(analysis / "toy.parquet", toy / "toy.parquet")
    shutil.rmtree(toy / "runs")
    capfd.readouterr()
    assert main(words) == 0
    printed = capfd.readouterr().out
    assert "Nothing was trained" in printed
    assert not cells(toy / "runs" / "track_toy")

    # A model of two files outside the checkout: only its runs are trained, then compared with the others.
    (toy / "conf" / "backbone").mkdir()
    (toy / "conf" / "backbone" / "toy_of_a_track.yaml").write_text(YAML.replace("my_toy", "toy_of_a_track"))
    (toy / "toy_of_a_track.py").write_text(PYTHON)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(toy))
    assert main([*words, "add=toy_of_a_track"]) == 0, capfd.readouterr().err
    assert re.search(
        "^lookup: (toy_of_a_track against decoder|decoder against toy_of_a_track): ",
        capfd.readouterr().out,
        re.MULTILINE,
    )
    assert cells(toy / "runs" / "track_toy") == {
        "toy_of_a_track-lookup-nano/s0",
        "toy_of_a_track-lookup-nano/s1",
    }
    assert cells(toy / "runs" / "track_toy_rates") == {"toy_of_a_track-lookup-nano/s100"}
    pairs = pd.read_csv(analysis / "toy_pairs.csv")
    assert {*pairs["model"], *pairs["other"]} == {"decoder", "toy_of_a_track"}
    assert pairs["verdict"].notna().all()
    assert "| toy_of_a_track |" in (analysis / "toy.md").read_text()
    scores = pd.read_csv(analysis / "toy_scores.csv")
    assert set(scores.loc[scores["variant"] == "longer", "arm"]) == {"decoder", "toy_of_a_track"}


def test_a_track_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "name a track: laptop, cpu" in capsys.readouterr().err


def test_what_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu", "workloads=parrity"]) == 2
    assert "did you mean 'parity'" in capsys.readouterr().err


def test_a_model_is_added_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_by_its_file.py").write_text(PYTHON)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    part = prepare(TrackConfig(track="cpu", add="./toy_by_its_file.py:Toy"))
    assert part.backbones == ["toy_by_its_file.Toy"]
    with pytest.raises(ConfigError, match="no class 'Tou'"):
        prepare(TrackConfig(track="cpu", add="./toy_by_its_file.py:Tou"))
