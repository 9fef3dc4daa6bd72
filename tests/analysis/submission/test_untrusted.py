"""Nothing of a submission is copied or composed before it was checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from archbench.analysis.submission import validate
from archbench.analysis.submission.validate import main

VALUE = "7Aq9zLw2Rt5Ux8Vb1Nc4"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A submission whose files are checked before anything is composed: composing it fails the test."""
    write(tmp_path / "submission")
    monkeypatch.setenv("CANARY", VALUE)
    monkeypatch.setattr(validate, "open_submission", lambda *_: pytest.fail("opened before its check"))
    return tmp_path / "submission"


def write(folder: Path, **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    record = {"study": "compare", "overrides": ["backbone=decoder"], "authors": "A. Author"}
    (folder / "submission.yaml").write_text(yaml.safe_dump(record | changes))


def rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what ``validate`` prints of a rejected submission."""
    assert main([str(folder)]) == 3
    printed = capsys.readouterr()
    assert VALUE not in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err
    return printed.out


@pytest.mark.parametrize("name", ["x", "records/x", "submission.yaml", "records", "configs", "__pycache__"])
@pytest.mark.parametrize("target", ["/dev/zero", "/", "missing", "."])
def test_a_link_is_rejected_before_it_is_read(
    name: str, target: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    assert f"{name} is a link" in rejected(folder, capsys)


def test_a_pipe_and_a_file_with_holes_are_rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "my_model.py")
    assert "my_model.py is neither a file nor a folder" in rejected(folder, capsys)
    (folder / "my_model.py").unlink()
    with (folder / "my_model.py").open("wb") as file:
        file.truncate(2**40)
    assert "of together 1 GiB" in rejected(folder, capsys)


@pytest.mark.parametrize(
    "override",
    [
        "hydra.sweep.dir=/tmp/elsewhere",
        "hydra/launcher=submitit_slurm",
        "--config-dir=/tmp",
        "--config-dir",
        "-m",
        "~backbone",
        "+backbone.x=1",
        "backbone=decoder\nhydra.sweep.dir=/tmp",
        "",
    ],
)
def test_an_override_that_reaches_hydra_is_rejected(
    override: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, overrides=["backbone=decoder", override])
    assert "- overrides: " in rejected(folder, capsys)


@pytest.mark.parametrize("study", ["../compare", "compare hydra.sweep.dir=x", "", "-m"])
def test_a_study_that_is_no_name_is_rejected(
    study: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, study=study)
    assert "is no name of a study" in rejected(folder, capsys)


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:CANARY}",
        "${oc.decode:${oc.env:CANARY}}",
        "${hydra:runtime.cwd}",
        "${oc.select:hydra.runtime.cwd,1}",
        "${oc.env:${oc.select:names.task,CANARY}}",
    ],
)
@pytest.mark.parametrize("key", ["study", "overrides", "about"])
def test_a_record_that_refers_to_the_environment_is_rejected(
    key: str, value: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, **{key: [f"backbone.d_ff={value}"] if key == "overrides" else value})
    assert "submission.yaml refers to ${" in rejected(folder, capsys)


@pytest.mark.parametrize(
    "text",
    [
        "d_ff: ${oc.env:CANARY}",
        "d_ff: ${ oc.env : CANARY }",
        "d_ff: ${oc.decode:'1'}",
        "# @package _global_\nhydra: {sweep: {dir: x}}",
        "defaults: [override /hydra/launcher: submitit_slurm]",
        "defaults:\n- override /hydra/launcher: submitit_slurm",
    ],
)
def test_a_yaml_that_refers_to_more_than_settings_is_rejected(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "configs" / "backbone" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"{text}\n")
    out = rejected(folder, capsys)
    assert "configs/backbone/mine.yaml refers to" in out or "sets a package or Hydra's settings" in out
