"""Uploading afterwards: every step once, each run once. What would be sent is read from W&B's own files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from archbench.analysis.weights_and_biases import sync
from tests import SOURCE, wandb_file
from tests.results import row, write_result
from tests.slurm import jobs

IDENTITY = {
    "key": "mamba-recall-nano-ab12cd34-s0", "study": "pilot", "cell": "mamba-recall-nano",
    "digest": "ab12cd34", "seed": 0,
    "backbone": "mamba", "objective": "causal_lm", "task": "recall", "scale": "nano",
}  # fmt: skip


def make_run(runs: Path, seed: int, status: str | None) -> Path:
    folder = runs / "pilot" / "mamba-recall-nano-ab12cd34" / f"s{seed}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "tracking: {mode: offline, project: null, entity: null, tags: [mine], artifacts: false}\n"
    )
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row("train", step, loss=1 / step)) + "\n" for step in (20, 40, 60))
    )
    if status:
        metrics = [{"split": "test", "name": "answer_accuracy", "value": 0.5}]
        record = {**IDENTITY, "key": f"mamba-recall-nano-ab12cd34-s{seed}", "seed": seed, "status": status}
        record |= {"metrics": metrics, "training": {"steps": 60}, "planned": {"steps": 60}}
        write_result(folder, record)
    return folder


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


def run(calls: list[list[str]], home: Path) -> list[str]:
    """The lines that calls print one after the other, in a process without keys."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    code = "from archbench.analysis.weights_and_biases.sync import main\n"
    code += f"for words in {calls!r}: print('exit', main(words), flush=True)"
    done = subprocess.run(
        [sys.executable, "-m", "tests.run_code", code],
        cwd=jobs.ROOT,
        env=kept | {"HOME": str(home), "NETRC": str(home / "netrc"), "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_run_is_written_once_and_from_its_record(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done, begun, preempted = (make_run(runs, i, s) for i, s in enumerate(("complete", None, "preempted")))
    for sitting in ("20261120_000000", "20261121_000000"):  # what two sittings left: not what is uploaded
        (done / "wandb" / f"offline-run-{sitting}-{IDENTITY['key']}").mkdir(parents=True)
    whole = ["study=pilot", f"runs={runs}"]
    printed = run([whole, [*whole, "mode=offline"], [*whole, "mode=offline"]], tmp_path)
    later = [f"{folder}: no result yet" for folder in (begun, preempted)]
    # Online there is no key: the run is not marked as uploaded.
    assert printed[:1] == ["exit 2"]
    assert printed[1:5] == [f"{done}: uploaded", *later, "exit 0"]
    assert printed[5:] == [f"{done}: already there", *later, "exit 0"]
    (path,) = parts(done)
    record = wandb_file.run_record(path)
    assert (record.run_id, record.project, record.run_group) == (
        IDENTITY["key"],
        "pilot",
        "mamba-recall-nano-ab12cd34",
    )
    assert "mine" in record.tags
    rows = wandb_file.history(path)
    assert [each["progress/step"] for each in rows] == [20, 40, 60]
    assert [each["train/loss"] for each in rows] == [1 / 20, 1 / 40, 1 / 60]
    assert wandb_file.summary(path)["result/metrics/test/answer_accuracy"] == 0.5
    assert not parts(begun)
    assert not parts(preempted)


def test_without_a_key_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        make_run(tmp_path, seed, "complete")
    monkeypatch.setattr("archbench.analysis.weights_and_biases.options.signed_in", lambda: False)
    assert sync.main(["study=pilot", f"runs={tmp_path}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: no API key: set WANDB_API_KEY or run `wandb login`\n")


def test_a_refused_run_is_passed_over(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    refused = make_run(runs, 0, "complete")
    result = json.loads((refused / "result.json").read_text()) | {"status": "refused"}
    del result["planned"]
    write_result(refused, result)
    printed = run([["study=pilot", f"runs={runs}", "mode=offline"]], tmp_path)
    assert printed == [f"{refused}: never trained", "exit 0"]


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync.main([f"runs={tmp_path}", "study=none"]) == 2
    assert "there is no run" in capsys.readouterr().err
    assert sync.main(["study=x", "mode=onlin"]) == 2
    assert "did you mean 'online'" in capsys.readouterr().err
