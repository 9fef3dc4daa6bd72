"""F11, F12, F14 and F23: signals, the end of a job, restarts without progress, steps that hang."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from archbench.experiments.run import run, session
from archbench.experiments.runtime import atomic_io, run_lock, watchdog
from archbench.experiments.runtime.errors import Preempted, RunError
from archbench.experiments.runtime.preemption import Interruptions, stops_at_once
from archbench.experiments.runtime.run_lock import RunLock
from archbench.experiments.runtime.watchdog import Watchdog
from archbench.experiments.tasks.recall.mqar import Recall
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.evaluator import Evaluator
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands
from tests.faults.children import in_a_child, times

WORDS = (
    *commands.TINY,
    *commands.RECALL,
    "trainer.log_every=5",
    "trainer.evaluate_every=6",
    "trainer.checkpoint_every=4",
    "budget.micro_batch_size=2",
)


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Hears SIGINT and SIGHUP, which ``nohup`` and jobs in the background leave ignored."""
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for sign, handler in before.items():
        signal.signal(sign, handler)


def snapshot(folder: Path) -> dict[str, Any]:
    newest = commands.newest_checkpoint(folder)
    tensors = load_file(newest / "model.safetensors")
    return {
        "rows": commands.untimed(folder),
        "metrics": commands.result(folder)["metrics"],
        "model": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return snapshot(commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('undisturbed')}"))


def stop_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *signs: int) -> None:
    """Sends this process signals in the middle of the given call of a function."""
    honest, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(honest)
    def disturbed(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            for sign in signs:
                os.kill(os.getpid(), sign)
        return honest(*arguments, **options)

    monkeypatch.setattr(owner, name, disturbed)


MOMENTS = {
    "in a step": (Trainer, "train_step", 9, [signal.SIGTERM]),
    "between two micro-batches": (Trainer, "_gradients", 3, [signal.SIGUSR1]),
    "while saving": (checkpoint, "save_file", 3, [signal.SIGUSR2]),
    "twice while saving": (checkpoint, "sync", 5, [signal.SIGTERM, signal.SIGTERM]),
    "in the first evaluation": (Evaluator, "evaluate", 1, [signal.SIGTERM]),
    "in the last evaluation": (Evaluator, "evaluate", 6, [signal.SIGTERM]),
    "in the final test": (Evaluator, "evaluate", 7, [signal.SIGINT]),
}


OFTEN = ("while saving", "in the last evaluation")


@pytest.mark.parametrize(
    "moment", [m if m in OFTEN else pytest.param(m, marks=pytest.mark.full) for m in MOMENTS]
)
def test_f11_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], moment: str, record: Any
) -> None:
    owner, name, call, signs = MOMENTS[moment]
    stop_in(monkeypatch, owner, name, call, *signs)
    with pytest.raises(Preempted) as stopped:
        commands.train(*WORDS, f"runs={tmp_path}")
    assert stopped.value.code == 75
    monkeypatch.undo()
    folder = commands.settings(*WORDS, f"runs={tmp_path}").folder
    found = commands.result(folder)
    assert found["status"] == "preempted"
    assert found["message"] == f"stopped by {signal.Signals(signs[0]).name}"
    assert found["training"]["steps"] == commands.newest_step(folder), "not saved where it stopped"
    commands.train(*WORDS, f"runs={tmp_path}")
    assert snapshot(folder) == undisturbed
    record("F11", f"signal {moment}", 1, "saved at that step, exit 75, resumed bit for bit")


BEFORE = {
    "while the run is planned": (run, "plan", signal.SIGHUP),
    "while the model is built": (run, "build", signal.SIGTERM),
    "while the record is begun": (session, "begin_record", signal.SIGXCPU),
    "while its files are written": (atomic_io.os, "fsync", signal.SIGUSR1),
    "while the tracker is opened": (session, "open_tracker", signal.SIGUSR2),
    "while the lock is taken": (RunLock, "__enter__", signal.SIGINT),
}


@pytest.mark.parametrize("moment", BEFORE)
def test_f11_a_signal_before_the_first_step_ends_the_run_with_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], moment: str, record: Any
) -> None:
    owner, name, sign = BEFORE[moment]
    handler = signal.getsignal(sign)
    with monkeypatch.context() as disturbed:
        stop_in(disturbed, owner, name, 1, sign)
        with pytest.raises(Preempted) as stopped:
            commands.train(*WORDS, f"runs={tmp_path}")
    assert (stopped.value.code, signal.getsignal(sign)) == (75, handler)
    assert stopped.value.reason == f"stopped by {sign.name}, with nothing to save"
    assert not list(tmp_path.rglob("lock.json"))
    folder = commands.train(*WORDS, f"runs={tmp_path}")
    assert snapshot(folder) == undisturbed
    assert not list(folder.rglob("*.tmp"))
    record("F11", f"signal {moment}", 1, "exit 75, nothing left behind")


AFTER = {
    "while the result is stored": (session, "store_result", signal.SIGTERM),
    "while the last lines are printed": (session, "closing_lines", signal.SIGINT),
    "while the lock is released": (run_lock, "_read", signal.SIGTERM),
}


@pytest.mark.parametrize("moment", AFTER)
def test_f11_a_signal_after_the_last_step_leaves_a_complete_run_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], moment: str, record: Any
) -> None:
    """It still reaches whoever began the run: a sweep begins no further one."""
    owner, name, sign = AFTER[moment]
    folder = commands.settings(*WORDS, f"runs={tmp_path}").folder
    honest = getattr(owner, name)

    def disturbed(*arguments: Any) -> Any:
        if owner is not run_lock or (folder / "result.json").exists():
            os.kill(os.getpid(), sign)
        return honest(*arguments)

    monkeypatch.setattr(owner, name, disturbed)
    with pytest.raises(Preempted) as stopped:
        commands.train(*WORDS, f"runs={tmp_path}")
    monkeypatch.undo()
    assert stopped.value.reason == f"stopped by {sign.name}, with nothing to save"
    assert not list(tmp_path.rglob("lock.json"))
    assert commands.result(folder)["status"] == "complete"
    assert snapshot(folder) == undisturbed
    record("F11", f"signal {moment}", 1, "the run is complete, its lock released, exit 75")


def test_a_late_signal_does_not_kill_a_process_that_nobody_asked_to_handle_it() -> None:
    """Of several processes of a run, each ends as if the signal had not come: its lock is still there."""
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with Interruptions(0) as interruptions:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruptions.reason == "stopped by SIGTERM"


def test_a_late_signal_does_not_replace_an_error() -> None:
    def fail() -> None:
        with stops_at_once(), Interruptions(0):
            os.kill(os.getpid(), signal.SIGTERM)
            raise RunError("disk")

    with pytest.raises(RunError, match="disk"):
        fail()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """``nohup`` starts a program so that it outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stops_at_once(), Interruptions(0) as interruptions:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interruptions.reason is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_evaluation_is_left_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a long one would outlast the time between the signal and the kill."""
    batches: list[str] = []
    honest = Recall.batch

    def watched(self: Recall, split: str, *more: Any) -> Any:
        batches.append(split)
        if batches.count("validation") == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return honest(self, split, *more)

    monkeypatch.setattr(Recall, "batch", watched)
    with pytest.raises(Preempted):
        commands.train(*WORDS, f"runs={tmp_path}")
    assert batches.count("validation") == 2, "8 examples, 2 at a time: 4 batches"


@pytest.mark.parametrize(
    "sign",
    [
        signal.SIGKILL,
        signal.SIGINT,
        *(pytest.param(s, marks=pytest.mark.full) for s in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_f11_the_processes_of_a_killed_sweep_save_themselves_and_end(
    tmp_path: Path, sign: signal.Signals, record: Any
) -> None:
    """A worker trains; two wait, one of which never had any work."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child inherits one that is ignored
    words = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=100000", f"runs={tmp_path}")
    tokens = (20_000_000, 400)
    budgets = f"budget.tokens={','.join(map(str, tokens))}"
    process = commands.start(
        "train", "-m", budgets, *words, "hydra/launcher=parallel", "hydra.launcher.n_jobs=3"
    )
    signal.signal(signal.SIGINT, before)
    long, short = (commands.settings(*words, f"budget.tokens={count}").folder for count in tokens)
    wait(lambda: (short / "result.json").exists() and (long / "metrics.jsonl").exists())
    children = [
        int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert len(children) >= 3
    process.send_signal(sign)
    out, err = process.communicate()
    wait(lambda: not any(alive(pid) for pid in children), seconds=15)
    if sign != signal.SIGKILL:  # it waited for the worker, and sums up as a sweep in one process does
        assert process.returncode == Preempted.exit_code
        assert "1 complete, 1 preempted" in out
        assert "leaked" not in err
        assert "Traceback" not in err
    found = commands.result(long)
    assert (found["status"], found["message"]) == ("preempted", "stopped by SIGTERM")
    assert commands.newest_step(long) == found["training"]["steps"] > 0
    assert not list(tmp_path.rglob("lock.json"))
    record("F11", f"{sign.name} to a parallel sweep's parent", 1, "its worker saved itself, all 3 ended")


def test_f11_the_sweep_of_a_killed_track_saves_itself_and_ends(tmp_path: Path, record: Any) -> None:
    words = [*commands.TINY, *commands.RECALL, "budget.tokens=20_000_000", f"runs={tmp_path}"]
    call = f"train_missing({['-m', 'seed=0', *words]!r}, 'x')"
    code = f"from archbench.analysis.declared.runs import train_missing; {call}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.run_code", code], cwd=commands.ROOT, stdout=subprocess.DEVNULL
    )
    folder = commands.settings(*words).folder
    wait(lambda: (folder / "metrics.jsonl").exists())
    sweep = json.loads((folder / "lock.json").read_text())["pid"]
    process.kill()
    process.wait()
    wait(lambda: not alive(sweep), seconds=15)
    assert commands.result(folder)["status"] == "preempted"
    record("F11", "SIGKILL of a track", 1, "the sweep that it ran saved itself and ended")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_f11_a_track_that_is_stopped_ends_its_sweep_and_says_so(tmp_path: Path, sign: signal.Signals) -> None:
    words = [*commands.TINY, *commands.RECALL, "budget.tokens=20_000_000", f"runs={tmp_path}"]
    code = f"""
from archbench.analysis.declared.runs import train_missing
from archbench.experiments.cli import ends_at_signals
with ends_at_signals():
    train_missing({["-m", "seed=0", *words]!r}, "x")
"""
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.run_code", code], cwd=commands.ROOT, start_new_session=True, **pipes
    )
    folder = commands.settings(*words).folder
    wait(lambda: (folder / "metrics.jsonl").exists())
    os.killpg(process.pid, sign)
    _, err = process.communicate()
    assert (process.returncode, err) == (75, f"stopped by {sign.name}; give the same command again\n")
    assert commands.result(folder)["status"] == "preempted"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait(condition: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "nothing happens"
        time.sleep(0.05)


def test_f12_a_job_restarted_without_progress_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    words = (*commands.TINY, *commands.RECALL, f"runs={tmp_path}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")

    def die(self: Trainer) -> None:
        raise KeyError("dies before its first step")

    monkeypatch.setattr(Trainer, "train_step", die)
    for restart in range(3):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        with pytest.raises(RunError, match="dies before its first step"):
            commands.train(*words)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    with pytest.raises(RunError, match="job 17 restarted 3 times without a new checkpoint") as given_up:
        commands.train(*words)
    assert given_up.value.exit_code == 1
    folder = commands.settings(*words).folder
    assert json.loads((folder / "restarts.json").read_text())["without_progress"] == 3
    monkeypatch.undo()
    monkeypatch.setenv("SLURM_JOB_ID", "18")  # submitted again: it is tried again
    commands.train(*words)
    assert commands.result(folder)["status"] == "complete"
    record("F12", "job that dies before its first step, restarted", 3, "exit 1 with the reason at the third")


def test_f12_progress_starts_the_count_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    for restart, step in enumerate([0, 0, 0, 5, 5, 5, 9, 9, 9]):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        watchdog.check_progress(tmp_path, step)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "9")
    with pytest.raises(RunError, match="is at step 9"):
        watchdog.check_progress(tmp_path, 9)


@pytest.mark.full
def test_f43_restarts_that_train_less_than_they_cost_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    words = (*commands.TINY, *commands.RECALL, f"runs={tmp_path}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    # As with a time limit below the margin: each session is asked to stop at once, and takes one step.
    monkeypatch.setattr(Interruptions, "reason", property(lambda self: "stopped by SIGUSR1"))
    honest = Trainer._resume

    def slow_start(self: Trainer) -> None:
        time.sleep(0.2)
        honest(self)

    monkeypatch.setattr(Trainer, "_resume", slow_start)
    for restart in range(3):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        with pytest.raises(Preempted):
            commands.train(*words)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    with pytest.raises(RunError, match=r"to step 3, after .* s of starting.*CLUSTER_TIME") as given_up:
        commands.train(*words)
    assert given_up.value.exit_code == 1
    assert commands.newest_step(commands.settings(*words).folder) == 3
    record("F43", "time limit that allows one step a restart", 1, "exit 1 with both times at the third")


def test_f43_a_restart_that_trains_longer_than_it_costs_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    for restart in range(10):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        watchdog.check_progress(tmp_path, restart, 100.0 * restart, 5.0 * restart)
        path = tmp_path / watchdog.NAME
        path.write_text(json.dumps(json.loads(path.read_text()) | {"cost": 90.0}))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "10")
    watchdog.check_progress(tmp_path, 10, 1000.0, 60.0)  # compiling is part of the cost
    assert json.loads(path.read_text())["without_progress"] == 1


@times(default=1, recorded=50)
def test_f14_the_end_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], times: int, record: Any
) -> None:
    stopped, honest = 0, Trainer.train_step

    def slower(self: Trainer) -> Any:
        time.sleep(0.01)
        return honest(self)

    monkeypatch.setattr(Trainer, "train_step", slower)
    for trial in range(times):
        words = (*WORDS, "trainer.preemption_margin_seconds=100", f"runs={tmp_path}/{trial}")
        folder = commands.settings(*words).folder
        for seconds in (0.05 + 0.3 * trial / times, 1000):
            monkeypatch.setenv("SLURM_JOB_START_TIME", "0")
            monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 100 + seconds))
            with contextlib.suppress(Preempted):
                commands.train(*words)
            found = commands.result(folder)
            if found["status"] == "preempted":
                assert found["message"] == "stopped before the end of the job's time"
                assert commands.newest_step(folder) == found["training"]["steps"] >= 1
                stopped += 1
        assert snapshot(folder) == undisturbed
    assert stopped == times
    record(
        "F14", "end of the job's time near, no signal", times, "saved before it, exit 75, resumed bit for bit"
    )


def test_the_margin_is_at_most_a_tenth_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    for left, stops in ((50, True), (70, False)):
        monkeypatch.setenv("SLURM_JOB_START_TIME", str(now - 600 + left))
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(now + left))
        assert (Interruptions(120).reason is not None) == stops
    monkeypatch.setenv("SLURM_JOB_END_TIME", "soon")
    assert Interruptions(120).reason is None


def test_f23_a_step_that_hangs_ends_the_process_and_says_where(tmp_path: Path, record: Any) -> None:
    report = tmp_path / "failures" / "hang.txt"

    def a_place_to_hang() -> None:
        threading.Event().wait()

    def work() -> None:
        with Watchdog(0.1, report) as watchdog:
            with watchdog.step():
                pass
            with watchdog.step():
                a_place_to_hang()

    began = time.monotonic()
    assert in_a_child(work) == 1
    assert time.monotonic() - began < 60
    assert "a_place_to_hang" in report.read_text()
    record("F23", "a step that never ends", 1, "exit 1, stacks of all threads in failures/hang.txt")


def test_slow_steps_are_no_hanging_ones(tmp_path: Path) -> None:
    watchdog = Watchdog(0.1, tmp_path / "hang.txt")
    assert watchdog.allowed() == pytest.approx(0.6)  # kernels are compiled in the first
    for _ in range(3):
        with watchdog.step():
            time.sleep(0.05)
    assert 0.45 < watchdog.allowed() < 5


def test_the_end_of_a_job_that_has_ended_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that outlives its job, such as screen, hands the variable on."""
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(time.time() - 90_000))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() - 86_400))
    assert Interruptions(120).reason is None
