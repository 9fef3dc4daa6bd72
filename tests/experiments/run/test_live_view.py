"""The live view of a study: what it says of real runs and of folders in every state."""

import dataclasses
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import rich.console

from archbench.experiments.run import live_view
from archbench.experiments.run.live_view import ENDED, OPEN, Look, following, look, screen, seconds_left
from archbench.experiments.run.planned import Planned
from archbench.experiments.runtime import run_lock as lock
from archbench.experiments.runtime.console import SILENT
from archbench.experiments.tracking.run_files import TrainRow, parse_rows
from tests import results
from tests.experiments import commands
from tests.results import write_result

LONGEST = "encoder_decoder-recall_8_pairs-nano"


def planned(folder: Path, backbone: str = "decoder", tokens: int = 1000) -> Planned:
    return Planned(cell=f"{backbone}-recall-nano", backbone=backbone, seed=0, folder=folder, tokens=tokens)


def row(kind: str, step: int, **metrics: float) -> str:
    return json.dumps(results.row(kind, step, tokens=step * 10, **metrics)) + "\n"


def test_a_folder_in_every_state(tmp_path: Path) -> None:
    run = planned(tmp_path / "s0")
    assert look(run).status == "missing"
    run.folder.mkdir()
    assert look(run).status == "interrupted"
    assert look(run).seconds_left is None
    metrics = run.folder / "metrics.jsonl"
    metrics.write_text(
        row("train", 10, loss=3.0) + row("validation", 20, bits=2.0) + row("train", 25, loss=2.5)
    )
    with metrics.open("a") as file:
        file.write('{"kind": "train", "step": 30, "lo')  # a row that is being written
    with lock.RunLock(run.folder):
        seen = look(run)
        assert seen.status == "running"
        assert f"process {os.getpid()} on" in seen.writer
    assert (seen.fraction_done, seen.seconds_left) == (0.25, 12.5 * 3)
    assert seen.train is not None
    assert seen.validation is not None
    assert (seen.train.loss, seen.validation.measured["bits"]) == (2.5, 2.0)
    assert look(run).status == "interrupted"
    for status in ("complete", "diverged", "preempted"):
        result = {"status": status, "message": "why\nand how", "training": {"tokens": 500, "seconds": 7.0}}
        write_result(run.folder, result)
        seen = look(run)
        assert (seen.status, seen.message, seen.fraction_done) == (status, "why and how", 0.5)


def test_looking_leaves_a_run_as_it_is(tmp_path: Path) -> None:
    with lock.RunLock(tmp_path):
        (tmp_path / "metrics.jsonl").write_text(row("train", 10, loss=3.0))
        before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        look(planned(tmp_path))
        assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_lock_whose_holder_is_gone_writes_nothing(tmp_path: Path) -> None:
    held = lock.RunLock(tmp_path)
    with held:
        assert lock.writer(tmp_path) is not None
        (tmp_path / lock.NAME).write_text(json.dumps(held.holder | {"started": "1"}))
        assert lock.writer(tmp_path) is None
        (tmp_path / lock.NAME).write_text(json.dumps(held.holder | {"host": "elsewhere"}))
        assert lock.writer(tmp_path) == f"process {os.getpid()} on elsewhere"
        os.utime(tmp_path / lock.NAME, (0, time.time() - lock.STALE - 60))
        assert lock.writer(tmp_path) is None


def test_the_time_left_goes_by_backbone_and_by_how_many_run(tmp_path: Path) -> None:
    def at(backbone: str, status: str, tokens: float = 0.0, seconds: float = 0.0, size: int = 1) -> Look:
        run = dataclasses.replace(planned(tmp_path, backbone), size=size)
        return Look(planned=run, status=status, tokens=tokens, seconds=seconds)

    done, slow = at("decoder", "complete", 1000, 10), at("mamba", "running", 250, 10)
    assert seconds_left([done, slow]) == 30
    assert seconds_left([done, slow, at("decoder", "missing")]) == 40
    # 40 seconds after the 20 of the run that ends first
    assert seconds_left([done, slow, at("mamba", "missing"), at("mamba", "running", 500, 20)]) == 60
    waiting = [at("decoder", "missing"), at("decoder", "missing"), at("decoder", "missing", size=4)]
    assert seconds_left([done, *waiting, slow, slow]) == 30 + 40  # the longest first, the others beside it
    assert seconds_left([done, at("decoder", "missing")]) is None  # nothing runs
    assert seconds_left([at("decoder", "running")]) is None  # nothing tells
    # Between two runs fewer are running than there are processes.
    between = [done, slow, at("mamba", "missing"), at("mamba", "missing")]
    assert (seconds_left(between), seconds_left(between, at_once=2)) == (110, 70)


def test_a_failure_is_shown_with_its_reason(tmp_path: Path) -> None:
    looks = [
        Look(planned=planned(tmp_path), status="complete", tokens=1000, seconds=10),
        Look(planned=planned(tmp_path, "s4"), status="diverged", message="loss is nan at step 7", tokens=70),
    ]
    shown = io.StringIO()
    rich.console.Console(width=80, file=shown).print(screen("mine", looks))
    text = shown.getvalue()
    assert "mine: 1 of 2 runs done, 1 failed, 100% trained" in text
    assert re.search(r"s4-recall-nano +0 +diverged: loss is nan at step 7", text)
    assert "\x1b" not in text  # without colours in a file


def test_lines_fit_80_columns_and_terminals_have_colours(tmp_path: Path) -> None:
    long = dataclasses.replace(
        planned(tmp_path, "encoder_decoder"), cell="encoder_decoder-recall_8_pairs-nano"
    )
    train = next(parse_rows([row("train", 10, loss=3.0)]))[1]
    assert isinstance(train, TrainRow)
    looks = [
        Look(
            planned=long, status="running", tokens=100, seconds=9999, train=train, writer="process 1 on host"
        ),
        *(Look(planned=long, status=status, message="why " * 40, tokens=10) for status in (*ENDED, *OPEN)),
    ]
    shown = io.StringIO()
    rich.console.Console(width=80, file=shown, force_terminal=True).print(screen("mine", looks))
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue())
    assert plain != shown.getvalue()
    assert max(map(len, plain.splitlines())) <= 80
    assert re.search(r"encoder_decoder-recall_8_pairs-nano +0 +10% +3\.0000 .*24:59:51", plain), plain


@pytest.mark.parametrize("terminal", [True, False])
def test_a_sweep_is_followed_until_it_ends(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen_text = io.StringIO()
    console = rich.console.Console(width=80, file=screen_text, force_terminal=terminal)
    monkeypatch.setattr(live_view, "table_console", lambda: console)
    monkeypatch.setattr(live_view, "EVERY", 0.01)
    monkeypatch.setattr(live_view, "QUIET", 0.1)
    run = planned(tmp_path / "runs" / "mine" / "cell" / "s0")
    with following("mine", [run, run.with_seed(1)]):
        assert SILENT in os.environ  # the runs leave the output to the view
        run.folder.mkdir(parents=True)
        write_result(run.folder, {"status": "complete", "training": {"tokens": 1000, "seconds": 7.0}})
        time.sleep(0.5)
    assert SILENT not in os.environ
    text = screen_text.getvalue() if terminal else capsys.readouterr().out
    assert "mine: 0 of 2 runs done, 0% trained" in text or not terminal
    assert "mine: 1 of 2 runs done, 50% trained" in text
    assert "live view" not in [thread.name for thread in threading.enumerate()]


def test_a_log_file_has_a_line_for_each_run_and_the_answer_after_each_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_view, "EVERY", 0.01)
    monkeypatch.setattr(live_view._Sweep, "answer", lambda sweep: f"{len(sweep.looks)} runs are compared")
    small = dataclasses.replace(planned(tmp_path / "runs" / "mine" / "a" / "s0"), stage="small")
    large = dataclasses.replace(planned(tmp_path / "runs" / "mine" / "b" / "s0"), stage="large")
    failed = {"status": "diverged", "message": "loss is nan", "training": {"tokens": 500, "seconds": 3.0}}
    with following("mine", [small, small.with_seed(1), large]):
        for run, result in ((small, failed), (small.with_seed(1), complete(2.5)), (large, complete(1.5))):
            run.folder.mkdir(parents=True)
            write_result(run.folder, result)
            time.sleep(0.2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "[decoder-recall-nano s0] diverged: loss is nan, 0:03 of training",
        "[decoder-recall-nano s1] bits_per_byte 2.5000, 0:07 of training",
        "After small:",
        "3 runs are compared",
        "[decoder-recall-nano s0] bits_per_byte 1.5000, 0:07 of training",
        "After large:",
        "3 runs are compared",
    ]
    assert lines[1].endswith("; mine: 1 of 3 runs done, 1 failed, 67% trained")


def complete(score: float) -> dict:
    """Return the result of a complete run."""
    training = {"tokens": 1000, "seconds": 7.0}
    return {"status": "complete", "training": training, "metrics": [{"value": score}]}


def test_a_real_study_is_seen_to_run_to_be_killed_and_to_end(tmp_path: Path) -> None:
    words = ("-m", *commands.TINY, *commands.RECALL, "study.name=seen", "seed=0,1", f"runs={tmp_path}")
    slow = (*words, "budget.tokens=4000000", "trainer.log_every=1")

    def shown(*words: str) -> str:
        ended = commands.run("plan", *words, "--watch")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert "seen: 0 of 2 runs done, 0% trained\n" in shown(*slow)
    process = commands.start("train", *slow)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("seen/*/s0/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    text = shown(*slow)
    assert re.search(r"decoder-recall-nano +0 +\d+% +\d\.\d{4} +[\d.]+k? ", text), text
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert re.search(r"backbone +interrupted +missing", shown(*slow))
    assert commands.run("train", *words).returncode == 0
    assert "seen: 2 of 2 runs done, 100% trained" in shown(*words)


def read_all(leader: int) -> bytes:
    """Return the text that a process writes to a terminal until it ends."""
    text = b""
    while True:
        try:
            text += os.read(leader, 4096)
        except OSError:  # the process is gone
            break
    os.close(leader)
    return text


def test_on_a_terminal_it_ends_with_the_study(tmp_path: Path) -> None:
    words = (*commands.TINY, *commands.RECALL, "study.name=seen", f"runs={tmp_path}")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "archbench.experiments.plan", *words, "--watch"]
    viewer = subprocess.Popen(command, cwd=commands.ROOT, stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    assert commands.run("train", *words).returncode == 0
    text = read_all(leader)
    assert viewer.wait(timeout=60) == 0
    assert b"1 of 1 runs done" in text


def test_runs_one_after_another_share_one_view_on_a_terminal(tmp_path: Path) -> None:
    words = ("-m", *commands.TINY, *commands.RECALL, "study.name=seen", f"runs={tmp_path}")
    words += ("trainer.log_every=1", "objective=causal_lm", "backbone=decoder,mamba,encoder")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "archbench.experiments.train", *words]
    trained = subprocess.Popen(command, cwd=commands.ROOT, stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", read_all(leader).decode())
    assert trained.wait(timeout=60) == 2, text  # a causal encoder is refused
    assert "seen: 0 of 2 runs done" in text
    assert "] 1/" not in text  # no line of a step
    assert text.count("error: ") == 2  # of the run, and of the command
    assert re.search(r"decoder +\d\.\d{4} +1 ", text.rpartition("study seen: 2 complete")[2]), text


def test_watch_with_a_mistyped_backbone_is_one_error() -> None:
    ended = commands.run("plan", "backbone=mambba", "--watch")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "did you mean 'mamba'?" in ended.stderr
