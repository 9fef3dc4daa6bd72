"""Runs brought from W&B. The files are real; a stand-in hands them out where W&B's server would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.load.study import load_study
from archbench.analysis.weights_and_biases import fetch
from archbench.analysis.weights_and_biases.fetch import place
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tracking.run_files import FETCHED
from tests.results import write_result

CELL = Path("compare") / "decoder-causal_lm-text-nano-ab12cd34"


@pytest.fixture
def record(write_run: Any, tmp_path: Path) -> Callable[..., Path]:
    """``record(score, seed)``: the files that a run would have saved."""

    def write(score: float = 2.4, seed: int = 0) -> Path:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        folder = write_run("decoder", seed, score)
        (folder / "config.yaml").write_text("budget: {tokens: 5}\n")
        kept = tmp_path / f"record-{score}-{seed}"
        shutil.copytree(folder, kept)
        return kept

    return write


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_comes_to_the_folder_its_record_names(record: Any, tmp_path: Path) -> None:
    saved, here = record(2.4), tmp_path / "here"
    assert place(saved, here, "compare") == "fetched"
    assert files(saved).items() <= files(here / CELL / "s0").items()
    assert {path.name for path in (here / CELL).iterdir()} == {"s0"}, "nothing is left beside it"
    assert load_study(here, "compare")["score"].tolist() == [2.4]
    assert place(saved, here, "compare") == "already there"
    assert place(saved, here, "another") == "of another study"
    assert not (here / "another").exists()


def test_a_local_run_is_never_overwritten(record: Any, tmp_path: Path) -> None:
    saved, here = record(2.4), tmp_path / "here"
    for kept in ("metrics.jsonl", "checkpoints/step-00000020/model.safetensors"):
        path = here / CELL / "s0" / kept
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine\n")
        before = files(here)
        assert place(saved, here, "compare") == "already there"
        assert files(here) == before


def test_a_fetched_run_follows_w_and_b_until_it_is_continued_here(record: Any, tmp_path: Path) -> None:
    here = tmp_path / "here"
    assert place(record(2.4), here, "compare") == "fetched"
    assert place(record(2.5), here, "compare") == "fetched"
    assert load_study(here, "compare")["score"].tolist() == [2.5]
    (here / CELL / "s0" / "checkpoints").mkdir()
    assert place(record(2.6), here, "compare") == "already there"
    assert load_study(here, "compare")["score"].tolist() == [2.5]


def test_a_copy_that_breaks_off_leaves_nothing(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, here = record(2.4), tmp_path / "here"

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(fetch.os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            place(saved, here, "compare")
    assert files(here) == {}
    assert place(saved, here, "compare") == "fetched"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "../../escaped"}, "cell='../../escaped' is not a valid name"),
        ({"digest": ".."}, "digest='..' is not a valid name"),
        ({"seed": "0/../.."}, "seed: Input should be a valid integer"),
        ({"format": 2}, "another version"),
    ],
)
def test_a_record_that_names_no_run_folder_is_refused(
    record: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    saved = record(2.4)
    result = json.loads((saved / "result.json").read_text())
    write_result(saved, result | change)
    with pytest.raises(DataError) as refused:
        place(saved, tmp_path / "here", "compare")
    assert message in str(refused.value)
    assert not (tmp_path / "here").exists()


class File:
    def __init__(self, path: Path) -> None:
        self.path = path

    def download(self, root: str, replace: bool) -> None:
        target = Path(root) / "record" / self.path.name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(self.path, target)


class Run:
    def __init__(self, record: Path) -> None:
        self.id, self.record = record.name, record

    def files(self, names: list[str]) -> list[File]:
        paths = (self.record / name.removeprefix("record/") for name in names)
        return [File(path) for path in paths if path.exists()]


def test_the_command_brings_a_study_and_says_what_it_could_not(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [record(2.4, 0), record(2.5, 1), record(2.6, 2)]
    (records[2] / "result.json").unlink()

    class Api:
        default_entity = "me"

        def runs(self, path: str, filters: dict[str, str]) -> list[Run]:
            assert (path, filters) == ("me/compare", {"jobType": "train"})
            return [Run(each) for each in records]

    monkeypatch.setattr("wandb.Api", Api)
    monkeypatch.setattr("archbench.analysis.weights_and_biases.options.signed_in", lambda: True)
    here = tmp_path / "here"
    assert fetch.main([f"runs={here}"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(": ", 1)[1] for line in printed[:2]] == ["fetched", "fetched"]
    assert "cannot be used: there is no result.json" in printed[2]
    assert load_study(here, "compare")["seed"].tolist() == [0, 1]
    assert (here / CELL / "s0" / FETCHED).is_file()


def test_mistakes_and_a_failing_network_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr("wandb.Api", refuse)
    for signed_in, words, code, message in (
        (False, [], 2, "no API key: set WANDB_API_KEY or run `wandb login`"),
        (True, ["entiti=me"], 2, "did you mean 'entity="),
        (True, [], 1, "ConnectionError: refused"),
    ):
        monkeypatch.setattr(
            "archbench.analysis.weights_and_biases.options.signed_in", lambda found=signed_in: found
        )
        assert fetch.main([f"runs={tmp_path}", *words]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert not list(tmp_path.iterdir())
