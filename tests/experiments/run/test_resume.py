"""A run that was killed and continued equals, bit for bit, one that was not: for every backbone.

The processes are real and so are the signals; most are forked from this one, and some are commands.
What is compared is everything but times: weights, the optimizer's moments, the state of training, every
row of metrics.jsonl, and the metrics of the result.
"""

import dataclasses
import functools
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from archbench.experiments.run.run import run
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.errors import Preempted
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands
from tests.faults.children import in_a_child
from tests.tiers import fast_only

PREEMPTED = 75
STEPS, LONG = 12, 30
"""Of a run that stops itself, and of one that is watched from outside."""
WORDS = (
    *commands.TINY,
    "budget.batch_size=4",
    "trainer.log_every=5",  # so that checkpoints fall between the rows
    "trainer.evaluate_every=4",
    "trainer.checkpoint_every=3",
    "trainer.keep_checkpoints=2",
)
LENGTH = {"text": 64, "recall": 32}
CASES = [(backbone, task, None) for backbone, task in zip(commands.BACKBONES, itertools.cycle(LENGTH))]
CANON = [("gated_deltanet backbone.canon=ABCD backbone.conv_width=0", "recall", None)]
DEPTHS = [("decoder backbone.mixture_of_depths=0.25", "recall", None)]
MICRO_BATCHES = [("moe", "recall", 2), ("encoder_decoder", "text", 2)]
FAST = [case for case in CASES if case[0] in ("decoder", "mamba")]
"""The cases of the fast tier."""
PATIENCE = 120
"""Seconds to wait for a process on a busy machine."""


def words(backbone: str, task: str, micro: int | None, steps: int = STEPS) -> tuple[str, ...]:
    return (
        *f"backbone={backbone}".split(),
        *commands.task_words(task),
        *WORDS,
        f"budget.tokens={steps * 4 * LENGTH[task]}",
        f"budget.micro_batch_size={'null' if micro is None else micro}",
    )


def settings_of(case: tuple, runs: Path, steps: int = STEPS) -> Settings:
    return dataclasses.replace(composed(case, steps), runs=runs)


@functools.cache
def composed(case: tuple, steps: int) -> Settings:
    return commands.settings(*words(*case, steps=steps))


def snapshot(folder: Path) -> dict[str, Any]:
    """All that must be equal, read from the files of a run."""
    newest = commands.newest_checkpoint(folder)
    state = json.loads((newest / "state.json").read_text())["train_state"]
    result = commands.result(folder)
    return {
        "status": result["status"],
        "metrics": result["metrics"],
        "training": {name: result["training"][name] for name in ("steps", "tokens", "flops")},
        "rows": commands.untimed(folder),
        "state": {name: state[name] for name in ("step", "tokens", "flops", "window_loss")},
        "checkpoints": sorted(path.name for path in (folder / "checkpoints").iterdir()),
        "model": load_file(newest / "model.safetensors"),
        "optimizer": load_file(newest / "optimizer.safetensors"),
    }


def check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for part in ("model", "optimizer"):
        assert found[part].keys() == expected[part].keys()
        different = [name for name, t in expected[part].items() if not torch.equal(t, found[part][name])]
        assert not different, f"{part}: {different}"
    assert expected["optimizer"], "no moments were saved"
    for part in ("status", "metrics", "training", "rows", "state", "checkpoints"):
        assert found[part] == expected[part], part


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory):
    """The same run without an interruption."""

    @functools.cache
    def uninterrupted(case: tuple[str, str, int | None], steps: int = STEPS) -> dict[str, Any]:
        settings = settings_of(case, tmp_path_factory.mktemp("reference"), steps)
        run(settings)
        found = snapshot(settings.folder)
        assert found["training"]["steps"] == steps
        trained = [row["step"] for row in found["rows"] if row["kind"] == "train"]
        assert trained[:-1] == list(range(5, steps, 5))
        shutil.rmtree(settings.folder)
        return found

    return uninterrupted


def last_step(folder: Path) -> int:
    """The last step whose row is complete on disk; 0 before the first."""
    try:
        lines = (folder / "metrics.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return json.loads(lines[-1])["step"] if lines else 0


def stop(settings: Settings, chance: random.Random, sign: signal.Signals) -> None:
    """Start the run in a forked process, which sends itself a signal some time after its first checkpoint."""
    step, seconds = chance.randint(4, STEPS // 2), chance.uniform(0, 0.05)
    after_step = Trainer.after_step

    def watched(trainer: Trainer, *given: Any) -> None:
        after_step(trainer, *given)
        if trainer.state.step == step:
            until = time.monotonic() + PATIENCE
            while not commands.newest_step(settings.folder):
                assert time.monotonic() < until, "the first checkpoint is not saved"
                time.sleep(0.001)
            threading.Timer(seconds, os.kill, (os.getpid(), sign)).start()

    def work() -> None:
        Trainer.after_step = watched  # type: ignore[method-assign]
        try:
            run(settings)
        except Preempted as preempted:
            sys.exit(preempted.code)

    assert in_a_child(work) == (-sign if sign == signal.SIGKILL else PREEMPTED)
    assert 3 <= commands.newest_step(settings.folder) < STEPS


def interrupt(case: tuple, runs: Path, chance: random.Random, sign: signal.Signals, after: int) -> str:
    """Start the command and send it a signal at some moment after a step; return its output.

    The step is drawn between ``after`` and the middle. A run whose training had
    ended before the signal came is undone, and tried again with an earlier step.
    """
    folder = settings_of(case, runs, LONG).folder
    began = last_step(folder)
    kept = runs / "kept"
    for latest in (LONG // 2, LONG // 3, after, after):
        if folder.exists():
            shutil.copytree(folder, kept)
        step = chance.randint(after, max(after, latest))
        process = commands.start("train", *words(*case, steps=LONG), f"runs={runs}")
        until = time.monotonic() + PATIENCE
        # The rows of an interrupted run are there from the beginning: wait for new ones.
        while process.poll() is None and (last_step(folder) < step or commands.newest_step(folder) <= began):
            assert time.monotonic() < until, "the run does not get to its first checkpoint"
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.1))
        process.send_signal(sign)
        out, err = process.communicate(timeout=PATIENCE)
        stopped = process.returncode == (-sign if sign == signal.SIGKILL else PREEMPTED)
        if stopped and commands.newest_step(folder) < LONG:
            shutil.rmtree(kept, ignore_errors=True)
            return out + err
        assert process.returncode in (0, -sign, PREEMPTED), out + err
        shutil.rmtree(folder)
        if kept.exists():
            kept.rename(folder)
    raise AssertionError("every run ended before the signal came")


@pytest.mark.fast
@pytest.mark.parametrize(
    "case",
    fast_only([*CASES, *CANON, *DEPTHS, *MICRO_BATCHES], FAST),
    ids=lambda case: "-".join(map(str, case)),
)
def test_a_killed_run_continues_bit_for_bit(reference, tmp_path: Path, case: tuple) -> None:
    expected, settings = reference(case), settings_of(case, tmp_path)
    stop(settings, random.Random("-".join(map(str, case))), signal.SIGKILL)
    assert not (settings.folder / "result.json").exists()
    run(settings)
    check_equal(snapshot(settings.folder), expected)


def test_a_run_killed_twice_continues_in_a_process_of_its_own(reference, tmp_path: Path) -> None:
    case = ("decoder", "recall", None)
    folder = settings_of(case, tmp_path, LONG).folder
    chance = random.Random(7)
    interrupt(case, tmp_path, chance, signal.SIGKILL, after=4)
    interrupt(case, tmp_path, chance, signal.SIGKILL, after=10)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 2, "lo')  # as a kill while writing would leave it
    ended = commands.run("train", *words(*case, steps=LONG), f"runs={tmp_path}")
    assert ended.returncode == 0, ended.stderr
    assert "resumed at step" in ended.stdout
    check_equal(snapshot(folder), reference(case, LONG))


def test_a_run_asked_to_stop_continues(reference, tmp_path: Path) -> None:
    case = ("decoder", "recall", None)
    settings = settings_of(case, tmp_path, LONG)
    output = interrupt(case, tmp_path, random.Random(15), signal.SIGTERM, after=4)
    assert "Traceback" not in output
    check_stopped(settings.folder, LONG)
    run(settings)
    # The stop made a checkpoint of its own, but the last two are those of steps 27 and 30.
    check_equal(snapshot(settings.folder), reference(case, LONG))


def test_a_run_asked_by_slurm_to_stop_continues(reference, tmp_path: Path) -> None:
    case = ("decoder", "recall", None)
    settings = settings_of(case, tmp_path)
    stop(settings, random.Random(10), signal.SIGUSR1)
    check_stopped(settings.folder, STEPS)
    run(settings)
    check_equal(snapshot(settings.folder), reference(case))


def check_stopped(folder: Path, steps: int) -> None:
    """Check that a run has saved what it had done and says so."""
    stopped = commands.result(folder)
    assert stopped["status"] == "preempted"
    assert 4 <= stopped["training"]["steps"] < steps
    assert commands.newest_step(folder) == stopped["training"]["steps"]
    assert 0 <= stopped["training"]["steps"] - commands.rows(folder)[-1]["step"] < 5


def test_micro_batches_may_change_between_sittings(reference, tmp_path: Path) -> None:
    """They change memory, not the run: its folder is the same, and its losses to rounding."""
    case = ("decoder", "recall", None)
    stop(settings_of(case, tmp_path), random.Random(5), signal.SIGKILL)
    settings = settings_of(("decoder", "recall", 2), tmp_path)
    run(settings)
    found, expected = commands.untimed(settings.folder), reference(case)["rows"]
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    losses, others = ([row["loss"] for row in rows if row["kind"] == "train"] for rows in (found, expected))
    assert losses == pytest.approx(others, rel=1e-4)
