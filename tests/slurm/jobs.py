"""Submits jobs in tests and watches them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests import ROOT

CELL = (
    "scale.axis=non_embedding",
    "scale.targets.non_embedding=20000",
    "budget=smoke",
    "budget.tokens=51200",
    "device=cpu",
    "device.threads=1",
    "trainer.checkpoint_every=20",
    "trainer.evaluate_every=1000",
    "trainer.validation_examples=8",
    "trainer.test_examples=32",
    "task=recall",
    "task.sequence_length=32",
    "task.num_symbols=32",
)
"""A run of 400 steps, some seconds."""
LONG = (*CELL, "budget.tokens=12800000")
"""One that does not end within a test."""


def cluster_file(folder: Path, partition: str, options: str = "") -> Path:
    path = folder / f"{partition}.env"
    path.write_text(
        f"CLUSTER_PARTITION={partition}\nCLUSTER_MEM=1000M\nCLUSTER_TIME=30\nCLUSTER_PYTHON={sys.executable}\n"
        f'CLUSTER_OPTIONS="{options}"\nOMP_NUM_THREADS=1\n'
    )
    return path


def run(*command: str, expected: int = 0) -> str:
    """What a command prints, from the root of the checkout."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == expected, (command, done.stdout, done.stderr)
    return done.stdout + (done.stderr if expected else "")


def module(name: str, *words: str, expected: int = 0) -> str:
    return run(sys.executable, "-m", name, *words, expected=expected)


def sbatch(*words: str) -> str:
    """The id of a job."""
    return run("sbatch", "--parsable", *words).strip()


def open_partition(name: str, state: str) -> None:
    """Let jobs of a partition start (``UP``), or keep them in the queue (``DOWN``)."""
    run("scontrol", "update", f"PartitionName={name}", f"State={state}")


def wait_for(what: str, ready: Callable[[], bool], seconds: float = 180, pause: float = 0.2) -> None:
    """Until ``ready``, asked every ``pause`` seconds; a bound that only something broken reaches."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(pause)


def queue(*options: str) -> str:
    return run("squeue", "--noheader", "--array", *options)


def wait_until_gone(*options: str) -> None:
    """Until no job of these (options of squeue) is in the queue."""
    wait_for(f"the end of {options}", lambda: not queue(*options).strip())


def sacct(job: str) -> str:
    """The state and the exit code of an ended job, as the accounts have them once they are written."""
    answer = ""

    def written() -> bool:
        nonlocal answer
        answer = run("sacct", "-n", "-X", "-P", "-j", job, "--format=State,ExitCode").strip()
        return answer != "" and not answer.startswith(("RUNNING", "PENDING", "REQUEUED", "COMPLETING"))

    wait_for(f"the accounts of job {job}", written)
    return answer


def trainers(words: Sequence[str]) -> list[int]:
    """Return the ids of the processes that train the run of these words, one for each rank."""
    command = [sys.executable, "-m", "archbench.experiments.train", *words]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_text().split("\0")[:-1] == command:
                found.append(int(path.parent.name))
    return found


def kill(words: Sequence[str], number: int) -> None:
    """Send a signal to the processes that train the run of these words."""
    processes = trainers(words)
    assert processes, words
    for process in processes:
        os.kill(process, number)


def hold(*runs: tuple[Sequence[str], Path]) -> None:
    """Stop the processes of runs once they have a checkpoint, so that none ends before it is disturbed.

    A signal sent to them from then on waits for SIGCONT.

    Args:
        runs: the words of each, and its folder.
    """
    waiting = list(runs)

    def held() -> bool:
        for words, folder in list(waiting):
            if step(folder) > 0:
                kill(words, signal.SIGSTOP)
                assert not (folder / "result.json").exists(), f"{folder} ended before it could be stopped"
                waiting.remove((words, folder))
        return not waiting

    wait_for("a checkpoint of each run", held, pause=0.02)


def step(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if it is missing."""
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")), default=0)


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def only_run(runs: Path) -> Path:
    """The folder of the only run, once it is there."""
    wait_for("a run folder", lambda: len(list(runs.glob("*/*/s*/config.yaml"))) == 1)
    return next(runs.glob("*/*/s*/config.yaml")).parent
