"""Status that archbench.slurm.status prints of a run, from its folder and its task in the queue."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
import rich.console

from archbench.slurm import status
from archbench.slurm.progress import Progress
from archbench.slurm.queue import Task
from archbench.slurm.status import Row, main, state_of, tables
from archbench.slurm.submission import StudyRun, new_folder, write_submission
from tests.results import row, write_result

PENDING, RUNNING, ENDING = (Task(job="7_0", state=state) for state in ("PENDING", "RUNNING", "COMPLETING"))


@pytest.fixture
def run(tmp_path: Path) -> StudyRun:
    folder = tmp_path / "runs" / "mine" / "a-b-c-0" / "s0"
    return StudyRun(key="a-b-c-0-s0", name="a-b-c", seed=0, folder=str(folder), words=[], task=0)


@pytest.mark.parametrize(
    ("result", "begun", "task", "expected"),
    [
        (None, False, None, "missing"),
        (None, True, None, "interrupted"),
        (None, False, PENDING, "waiting"),
        (None, True, PENDING, "waiting"),
        (None, False, RUNNING, "running"),
        (None, True, RUNNING, "running"),
        ("preempted", True, None, "preempted"),
        ("preempted", True, PENDING, "preempted"),
        ("preempted", True, ENDING, "preempted"),
        ("preempted", True, RUNNING, "running"),
        ("complete", True, RUNNING, "done"),
        ("complete", True, None, "done"),
        ("failed", True, None, "failed"),
        ("failed", True, PENDING, "waiting"),
        ("failed", True, RUNNING, "failed"),  # its neighbours in the task go on
        ("diverged", True, RUNNING, "diverged"),
        ("refused", True, None, "refused"),
        ("refused", True, PENDING, "waiting"),
    ],
)
def test_the_state_of_a_run(
    run: StudyRun, result: str | None, begun: bool, task: Task | None, expected: str
) -> None:
    folder = Path(run.folder)
    if begun:
        folder.mkdir(parents=True)
    if result:
        write_result(folder, {"status": result})
    assert state_of(run, task) == expected


def test_the_table(
    run: StudyRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Path(run.folder).parents[1]
    submitted = new_folder(study)
    write_submission(submitted, [run])
    name = f"archbench-mine-{submitted.name}"
    monkeypatch.setattr(status, "queued_tasks", lambda names: {(name, 0): PENDING} if name in names else {})
    monkeypatch.setattr(status, "finished_tasks", lambda names: {})
    monkeypatch.setattr(status, "allocated_seconds", lambda names: {})
    assert main(["study=mine", f"runs={study.parent}"]) == 0
    printed = capsys.readouterr().out
    assert "waiting" in printed
    assert "7_0" in printed
    assert printed.endswith("1 run: 1 waiting\n")


def test_the_table_says_how_fast_a_run_is_and_what_its_time_went_into(
    run: StudyRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, folder = Path(run.folder).parents[1], Path(run.folder)
    folder.mkdir(parents=True)
    progress = {"tokens": 4_000_000, "seconds": 2000.0, "device_seconds": 8000.0, "flops": 1.6e18}
    logged = row("train", 40, **progress, tokens_per_second=2000.0)
    (folder / "metrics.jsonl").write_text(json.dumps(logged) + "\n")
    submitted = new_folder(study)
    write_submission(submitted, [dataclasses.replace(run, tokens=11_200_000, peak_flops=1e15)])
    name = f"archbench-mine-{submitted.name}"
    monkeypatch.setattr(status, "queued_tasks", lambda names: {(name, 0): RUNNING})
    monkeypatch.setattr(status, "finished_tasks", lambda names: {})
    monkeypatch.setattr(status, "allocated_seconds", lambda names: {(name, 0): 2500.0})
    assert main(["study=mine", f"runs={study.parent}"]) == 0
    printed = capsys.readouterr().out
    line, queued = [line for line in printed.splitlines() if "a-b-c" in line]
    assert queued.split() == ["a-b-c", "0", "7_0", "RUNNING"]
    # 7.2M tokens at 2,000 a second are an hour; 1.6e18 FLOPs in 8,000 s of a GPU are 20% of 1e15 a second.
    assert line.split()[2:8] == ["running", "40", "2k", "20%", "1:00:00", "80%"]
    assert "goodput 80%: 33:20 of training in 41:40 of tasks" in printed


def test_refused_cells_are_rows_with_their_reasons_also_those_that_were_never_submitted(
    run: StudyRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Path(run.folder).parents[1]
    write_submission(new_folder(study), [run])
    other = study / "mambo-b-c-1" / "s0"
    (study / ".refused").mkdir()
    for number, (folder, reason) in enumerate([(Path(run.folder), "too small"), (other, "no such YAML")]):
        folder.mkdir(parents=True)
        cell, _, digest = folder.parent.name.rpartition("-")
        record = {"status": "refused", "message": reason, "key": f"{folder.parent.name}-s0", "cell": cell}
        write_result(folder, {**record, "digest": digest, "seed": 0})
        (study / ".refused" / f"{number}.json").write_text(json.dumps({"folder": f"{folder.parent.name}/s0"}))
    monkeypatch.setattr(status, "queued_tasks", lambda names: {})
    monkeypatch.setattr(status, "finished_tasks", lambda names: {})
    monkeypatch.setattr(status, "allocated_seconds", lambda names: {})
    assert main(["study=mine", f"runs={study.parent}"]) == 0
    printed = capsys.readouterr().out
    assert "too small" in printed
    assert "no such YAML" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.endswith("2 runs: 2 refused\n")


def test_lines_fit_80_columns_and_statuses_have_colours_on_a_terminal(run: StudyRun) -> None:
    shown = io.StringIO()
    console = rich.console.Console(width=80, file=shown, force_terminal=True)
    name = "encoder_decoder-recall_8_pairs-nano"
    pending = dataclasses.replace(PENDING, job="1234567_123", nodes_or_reason="ReqNodeNotAvail " * 4)
    for number, (state, why) in enumerate([("diverged", "loss is nan " * 9), ("done", ""), ("waiting", "")]):
        long = dataclasses.replace(run, name=name, key=f"{name}-0{number}-s0", seed=number)
        row = Row(run=long, state=state, progress=Progress(step=123_456, tokens_per_second=2e6, mfu=0.4),
                  allocated=0.0, task=pending, message=why)  # fmt: skip
        for part in tables([row, dataclasses.replace(row, run=run)]):
            console.print(part)
    assert "\x1b[31mdiverged" in shown.getvalue()
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue())
    assert max(len(line.rstrip()) for line in plain.splitlines()) <= 80
    assert "goodput" not in plain  # no run has one


def test_mistakes_are_named(run: StudyRun, capsys: pytest.CaptureFixture[str]) -> None:
    study = Path(run.folder).parents[1]
    write_submission(new_folder(study), [run])
    assert main(["study=mien", f"runs={study.parent}"]) == 2
    assert "did you mean 'mine'" in capsys.readouterr().err
    assert main(["study=mine", f"runs={study.parents[1]}/rnus"]) == 2
    assert "did you mean 'runs'" in capsys.readouterr().err
    assert main(["studdy=mine"]) == 2
    assert "did you mean 'study='" in capsys.readouterr().err
