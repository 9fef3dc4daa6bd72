"""archbench check: every damage is listed with its remedy, and nothing is changed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.check import check_study, main
from archbench.experiments.data.corpus import CorpusConfig
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.tracking.run_files import FETCHED, checksum
from archbench.experiments.training.checkpoints.checkpoint import SAVED, describe
from tests.experiments import commands
from tests.results import write_result

WORDS = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one run, whose configuration names a cache of tokens."""
    root = tmp_path_factory.mktemp("check")
    commands.train(*WORDS, f"runs={root / 'runs'}")
    return root / "runs"


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs, tmp_path / "runs")
    [folder] = (tmp_path / "runs" / "single").glob("*/s0")
    return folder


def lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    capsys.readouterr()
    code = main(["study=single", f"runs={folder.parents[2]}"])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("runs=[a", r"study=single: there is no run in \[a/single"),
        ("study", r"'study': did you mean study=VALUE\?"),
        ("stdy=a", r"'stdy=a': did you mean 'study='\? the keys are study, runs"),
        ("study=another", r"study is given twice, as single and as another"),
        ("study=", r"'study=': write study=VALUE"),
    ],
)
def test_words_are_taken_as_they_stand(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study=single", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {message}", line)


def test_a_whole_study_is_said_to_be_whole(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    code, [line] = lines(run, capsys)
    assert code == 0
    assert line.startswith(
        "study single: 1 runs, 2 checkpoints and 0 prepared corpora verified; 0 damaged, 0 being"
    )
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("result.json", "continues from the last checkpoint"),
        ("provenance.json", "restore it"),
        ("metrics.jsonl", "train it again"),
        ("config.yaml", "train it again"),
        ("model.json", r"remove it and .*result.json.* writes it again"),
        (
            "checkpoints/step-00000031/model.safetensors",
            r"remove .*result.json.* the one before; .*-00000030",
        ),
        ("checkpoints/step-00000030/state.json", "remove it"),
    ],
)
def test_each_damaged_file_is_named_with_its_remedy(
    run: Path, capsys: pytest.CaptureFixture[str], name: str, remedy: str
) -> None:
    path = run / name
    data = bytearray(path.read_bytes())
    place = data.rindex(b"1") if path.suffix != ".safetensors" else len(data) // 2
    data[place] ^= 3
    path.write_bytes(data)
    code, found = lines(run, capsys)
    assert code == 6
    assert len(found) == 2
    assert str(path.parent if "step-" in name else path) in found[0]
    assert re.search(remedy, found[0])


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock.json", "checkpoints/step-00000031/MANIFEST.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, partial(os.symlink, "/dev/zero")])
def test_what_is_no_file_is_named_and_other_runs_are_verified(
    run: Path, capsys: pytest.CaptureFixture[str], name: str, make: Callable[[Path], object]
) -> None:
    shutil.copytree(run, run.with_name("s1"))
    (run.with_name("s1") / "config.yaml").unlink()  # another damage
    (run / name).unlink(missing_ok=True)
    make(run / name)
    code, found = lines(run, capsys)
    assert code == 6
    assert re.match(
        rf"damaged: {run / name}: is (a pipe|a folder|an endless device), not a file: put", found[0]
    )
    assert any("s1" in line for line in found[1:-1])
    assert "2 runs" in found[-1]


def first(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the score of a result."""
    score: dict[str, Any] = tree["metrics"][0]
    return score


CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "training.steps is 3, but 31 in planned.steps": lambda tree: tree["training"].update(steps=3),
    "metrics on the test split is none": lambda tree: tree.update(metrics=[]),
    "status is diverged, but complete in steps": lambda tree: tree.update(status="diverged"),
    "metrics.answer_accuracy on test is 0.99": lambda tree: first(tree).update(value=0.99),
    "number of metrics.answer_accuracy on test is 2": lambda tree: tree["metrics"].append(first(tree)),
    "training.tokens_per_second is 1.0": lambda tree: tree["training"].update(tokens_per_second=1.0),
    "training.flops is .* in tokens": lambda tree: tree.update(flops_per_token=1.0),
    "training.tokens is 7": lambda tree: tree["training"].update(tokens=7),
    "setup.learning_rate is 1.0, but 0.003 in": lambda tree: tree["setup"].update(learning_rate=1.0),
    "setup.batch_size is 99": lambda tree: tree["setup"].update(batch_size=99),
    "backbone is mamba": lambda tree: tree.update(backbone="mamba"),
    "fingerprint is 0123": lambda tree: tree.update(fingerprint="0123"),
    "the hash of config.yaml is missing": lambda tree: tree.update(files={}),
    "a message is missing, but there in a run with status oom": lambda tree: tree.update(status="oom"),
    "parameters.total is 10, but": lambda tree: tree["parameters"].update(total=10),
    "parameters.active is 99999, but": lambda tree: tree["parameters"].update(active=99999),
    "parameters.body is 9, but": lambda tree: tree["parameters"].update(body=9),
    "state_bytes_2k is 9, but": lambda tree: tree.update(state_bytes_2k=9),
    "direction is lower, but higher": lambda tree: first(tree).update(direction="lower"),
    "items is 8000, but": lambda tree: first(tree).update(items=8000),
    "standard_error is 0.001, but": lambda tree: first(tree).update(standard_error=0.001),
    r"metrics on the test split is \['bits_per_answer'\], but": lambda tree: tree["metrics"].pop(0),
}


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_a_result_that_contradicts_another_record_is_named(run: Path, message: str) -> None:
    """Though the checksum was written again."""
    path = run / "result.json"
    tree = json.loads(path.read_text())
    CONTRADICTIONS[message](tree)
    path.write_text(json.dumps({**tree, "checksum": checksum(tree)}))
    report = check_study(run.parents[1])
    assert report.exit_code == 6
    assert any(re.search(f"result.json: .*{message}", line) for line in report.records), report.records


@pytest.mark.parametrize("change", [lambda lines: lines[2:], lambda lines: [*lines, lines[-1]]])
def test_rows_that_were_removed_or_repeated_contradict_the_checkpoint(
    run: Path, change: Callable[[list[str]], list[str]]
) -> None:
    path = run / "metrics.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    write_result(run, json.loads((run / "result.json").read_text()))
    assert any("the number of " in line and " row" in line for line in check_study(run.parents[1]).records)


def test_a_last_checkpoint_with_a_manifest_of_its_own_is_named(run: Path) -> None:
    folder = max(run.glob("checkpoints/step-*"))
    weights, manifest = folder / "model.safetensors", folder / "MANIFEST.json"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text()) | {"model.safetensors": describe(weights)})
    )
    [line] = check_study(run.parents[1]).records
    assert line.startswith(f"{manifest}: has changed since the run ended")


@pytest.mark.parametrize("file", [True, False])
def test_lost_checkpoints_of_a_run_without_a_result_are_named(run: Path, file: bool) -> None:
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints")
    if file:
        (run / "checkpoints").write_text("x")
    [line] = check_study(run.parents[1]).records
    assert ("is a file, not a folder" if file else "no checkpoint is left") in line


def test_a_changed_setting_contradicts_the_digest_in_the_path(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("weight_decay: 0.1", "weight_decay: 0.2"))
    write_result(run, json.loads((run / "result.json").read_text()))
    [line] = check_study(run.parents[1]).records
    assert f"the digest in the folder's name is {run.parent.name[-8:]}, but " in line


def test_a_complete_run_without_checkpoints_is_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints")
    code, [line, _] = lines(run, capsys)
    assert code == 6
    assert re.search("step-00000031: is missing: .* remove the run's folder", line)
    (run / FETCHED).write_text("{}")  # from W&B, which has none
    assert lines(run, capsys)[0] == 0


@pytest.mark.parametrize("content", [None, "", "{}", "[[", '{"step": 30}', '{"step": "31"}'])
def test_the_step_that_was_saved_last_is_checked(
    run: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = run / SAVED
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    code, [line, _] = lines(run, capsys)
    assert code == 6
    assert line.startswith(f"damaged: {path}: ")
    path.write_text(line[line.index('{"step') :].partition("}")[0] + "}")  # the remedy
    assert lines(run, capsys)[0] == 0


def test_the_remedy_of_a_file_that_a_run_writes_as_it_begins(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.json", "config.yaml", "result.json"):
        (run / name).unlink()
    (run / SAVED).write_text('{"step": true}')
    commands.train(*WORDS, f"runs={run.parents[2]}")
    assert lines(run, capsys)[0] == 0


def test_a_token_file_is_read_wholly(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "input.txt").write_text("words to read " * 500)
    corpus = CorpusConfig(source="files", paths=[str(tmp_path / "input.txt")])
    file = open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("task:\n", f"task:\n  cache_dir: {tmp_path / 'cache'}\n", 1))
    write_result(run, json.loads((run / "result.json").read_text()))
    report = check_study(run.parents[1])
    assert (report.token_files, report.exit_code) == (1, 0)
    data = bytearray((file.folder / "test.bin").read_bytes())
    data[-1] ^= 1
    (file.folder / "test.bin").write_bytes(data)
    code, found = lines(run, capsys)
    assert code == 3
    assert "run again to prepare it" in found[0]


def test_a_study_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study=nothing", f"runs={tmp_path}"]) == 2
    assert "there is no run" in capsys.readouterr().err
    assert main(["--help"]) == 0
