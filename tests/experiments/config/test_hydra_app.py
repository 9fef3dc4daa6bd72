"""Hydra's options may stand anywhere on the command line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from archbench.experiments.config.hydra_app import start


@pytest.mark.parametrize(
    "words",
    [
        "-m seed=1,2 scale=micro",
        "seed=1,2 scale=micro -m",
        "seed=1,2 -m scale=micro",
        "seed=1,2 --multirun --config-name config scale=micro",
    ],
)
def test_options_stand_before_between_and_after_overrides(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back
    monkeypatch.setattr(sys, "argv", ["train", f"runs={tmp_path}", *words.split(), "hydra/launcher=basic"])
    GlobalHydra.instance().clear()
    composed: list[tuple[int, str]] = []
    start(lambda cfg: composed.append((cfg.seed, cfg.names.scale)))
    assert composed == [(1, "micro"), (2, "micro")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("study:\n\tname: mine\n", "line 3, column 1: .*not by tabs"),
        ("seed: 1\nseed: 2\n", "line 3, column 1: the key 'seed' is there twice"),
        ("seed: " + "[" * 100_000, "nested too deeply"),
        ("seed: &a [*a]\n", "line 2, column 7: an alias is inside"),
    ],
)
def test_a_study_file_that_cannot_be_read_is_one_line(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.yaml").write_text("# @package _global_\n" + content)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "argv", ["train", "study=mine", "--config-dir", str(tmp_path)])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as stopped:
        start(lambda cfg: None)
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said.count("\n") == 1
    assert re.search(rf"study/mine\.yaml: cannot be read \({message}", said), said


def test_a_byte_order_mark_hides_no_package_of_a_study_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study").mkdir()
    content = "# @package _global_\ndefaults: [override /backbone: decoder]\nstudy: {name: mine}\nseed: 7\n"
    (tmp_path / "study" / "mine.yaml").write_bytes(b"\xef\xbb\xbf" + content.encode())
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "argv", ["train", "study=mine", "--config-dir", str(tmp_path)])
    GlobalHydra.instance().clear()
    seeds: list[int] = []
    start(lambda cfg: seeds.append(cfg.seed))
    assert seeds == [7]


def test_a_sweep_whose_folder_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["train", f"runs={tmp_path}/file/runs", "seed=1,2", "-m"])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as ended:
        start(lambda cfg: None)
    assert ended.value.code == 6
    assert re.fullmatch("error: storage fails: .*file/runs.*\n", capsys.readouterr().err)
