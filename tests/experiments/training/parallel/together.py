"""Several real processes that train runs together, over gloo: forked from this one, which has imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from archbench.experiments.config.hydra_app import start
from archbench.experiments.run.run import run
from archbench.experiments.run.settings import Settings
from archbench.experiments.train import train
from archbench.experiments.training.parallel import collectives
from tests.experiments import commands
from tests.experiments.commands import ROOT
from tests.faults.children import environment, free_port, in_children

Cases = dict[str, tuple[str, ...]]
STEPS = 4
WORDS = (
    *commands.TINY,
    f"budget.tokens={STEPS * 4 * 32}",
    "budget.batch_size=4",
    "trainer.log_every=1",
    "trainer.checkpoint_every=1",
    "trainer.keep_checkpoints=9",
)
"""Of a run of so many steps."""


def train_together(size: int, cases: Cases, desk: Path) -> dict[str, Path]:
    """The run folders of the cases, by name, each trained by ``size`` processes. Fails if any fails.

    Runs go to folders of ``desk`` unless the words say where.
    """
    settings = {
        name: commands.settings(f"runs={desk / str(number)}", *words)
        for number, (name, words) in enumerate(cases.items())
    }
    run_together(size, settings)
    return {name: each.folder for name, each in settings.items()}


def run_together(size: int, cases: dict[str, Settings]) -> None:
    """Train runs one after another by ``size`` processes. Fails if any fails."""

    def work(rank: int) -> None:
        for name, settings in cases.items():
            began = time.process_time()
            print(f"case {name}:", flush=True)
            run(settings)
            print(f"case {name}: {time.process_time() - began:.1f} s in process {rank}", flush=True)

    assert in_children(size, work, seconds=3600) == [0] * size


def found_together(size: int, desk: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``work`` returns in the process of rank 0, by way of a JSON file. Fails if any fails."""

    def one(rank: int) -> None:
        collectives.start(torch.device("cpu"))
        found = work()
        if rank == 0:
            (desk / "found.json").write_text(json.dumps(found))

    assert in_children(size, one, seconds=600) == [0] * size
    found: dict[str, Any] = json.loads((desk / "found.json").read_text())
    return found


def commands_together(
    size: int, desk: Path, *words: str, prepare: Callable[[int], object] = lambda rank: None
) -> list[tuple[int, str, str]]:
    """Return exit codes and what was printed by ``archbench train`` in several processes.

    Args:
        prepare: called in each process before the command, with its rank.
    """

    def work(rank: int) -> None:
        for number, name in enumerate(("out", "err"), start=1):
            os.dup2(os.open(desk / f"{name}-{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
        sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115
        prepare(rank)
        start(train, words=words)

    codes = in_children(size, work)
    return [
        (code, (desk / f"out-{rank}").read_text(), (desk / f"err-{rank}").read_text())
        for rank, code in enumerate(codes)
    ]


def start_together(
    size: int, *words: str, module: str = "archbench.experiments.train"
) -> list[subprocess.Popen[str]]:
    """``python -m module words`` in several processes, as ``torchrun`` starts them."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=environment(rank, size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(size)
    ]


def ended(processes: list[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str, str]]:
    """Exit codes and what was printed. Fails if any process is still there after that long."""
    until = time.monotonic() + seconds
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            for each in processes:
                each.kill()
            raise
        found.append((process.returncode, out, err))
    return found
