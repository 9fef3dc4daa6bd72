"""F04 and F30: files and clocks that two processes see differently; and a first one that fails alone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from archbench.experiments.runtime.errors import Preempted
from archbench.experiments.runtime.run_lock import RunLock
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.parallel import collectives
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands
from tests.faults.children import in_children, times
from tests.faults.models import load, save

WORDS = (*commands.TINY, *commands.RECALL, "trainer.log_every=1", "trainer.checkpoint_every=5")
FILES = (*checkpoint.FILES, "MANIFEST.json")


@times(default=8, recorded=100)
def test_f04_a_file_that_is_not_there_for_one_or_for_all(tmp_path: Path, times: int, record: Any) -> None:
    """Both take the same older step. Where a machine sees a folder of its own, it is a copy here."""
    chance = random.Random(4)
    trials = []
    for trial in range(times):
        own = tmp_path / str(trial) / "first"
        own.mkdir(parents=True)
        for step in (3, 6, 9):
            save(own, step, keep=3)
        seen = [own, tmp_path / str(trial) / "second"] if trial % 2 else [own, own]
        if trial % 2:
            shutil.copytree(*seen)
        broken = chance.choice([(9,), (9, 6)])
        for step in broken:
            path = seen[-1] / f"step-{step:08d}" / chance.choice(FILES)
            if chance.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-1])
        trials.append((seen, {1: 6, 2: 3}[len(broken)]))

    def work(rank: int) -> None:
        collectives.start(torch.device("cpu"))
        found = [load(seen[rank]) for seen, _ in trials]
        (tmp_path / f"{rank}.json").write_text(json.dumps(found))

    assert in_children(2, work) == [0, 0]
    chosen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert chosen[0] == chosen[1] == [step for _, step in trials]
    asides = [len(list(seen[0].glob("broken-*/REASON.txt"))) for seen, _ in trials]
    assert asides == [{6: 1, 3: 2}[step] for _, step in trials]
    record(
        "F04",
        "file of a checkpoint missing or cut for one or both of two processes",
        times,
        "same older step",
    )


def test_f04_nothing_that_both_see_ends_both(tmp_path: Path) -> None:
    for name in ("first", "second"):
        save(tmp_path / name, 3)
    (tmp_path / "second" / "step-00000003" / "state.json").unlink()

    def work(rank: int) -> None:
        collectives.start(torch.device("cpu"))
        load(tmp_path / ("first", "second")[rank])

    assert in_children(2, work) == [6, 6]


@times(default=2, recorded=100)
def test_f30_the_clock_of_the_first_process_decides(tmp_path: Path, times: int, record: Any) -> None:
    """The other's is up to two hours ahead or behind; the job ends while they train."""
    chance = random.Random(30)
    skews = [chance.choice([-7200, -60, 60, 7200]) for _ in range(times)]
    honest, clock = Trainer.train_step, time.time

    def work(rank: int) -> None:
        def slower(self: Trainer) -> Any:
            time.sleep(0.01)
            return honest(self)

        Trainer.train_step = slower  # type: ignore[method-assign]
        os.environ["SLURM_JOB_START_TIME"] = "0"
        for trial, skew in enumerate(skews):
            # The job ends when it ends: what differs is what each process takes for now.
            os.environ["SLURM_JOB_END_TIME"] = str(clock() + 100.2 + 0.3 * trial / times)
            time.time = clock if rank == 0 else lambda skew=skew: clock() + skew  # type: ignore[assignment,misc]
            with contextlib.suppress(Preempted):
                commands.train(*WORDS, "trainer.preemption_margin_seconds=100", f"runs={tmp_path}/{trial}")

    assert in_children(2, work, seconds=300 + 30 * times) == [0, 0]
    stopped = 0
    for folder in (path.parent for path in tmp_path.glob("*/*/*/s0/result.json")):
        found = commands.result(folder)
        newest = commands.newest_checkpoint(folder)
        assert checkpoint.broken(newest) is None, "a partial save"
        assert not list(newest.parent.glob(".tmp-*")), "a partial save"
        assert commands.newest_step(folder) == found["training"]["steps"] >= 1
        if found["status"] == "preempted":
            assert found["message"] == "stopped before the end of the job's time"
            stopped += 1
    assert 0.8 * times <= stopped <= times
    record(
        "F30",
        "clocks of two processes a minute or two hours apart",
        times,
        "stopped by the first's, saved whole",
    )


def full_disk(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def unexpected(*arguments: Any) -> None:
    raise KeyError("the plug is out")


@pytest.mark.parametrize(
    ("owner", "name", "fault", "code"),
    [
        pytest.param(RunFolder, "finish", full_disk, 6, id="result"),
        pytest.param(RunLock, "check", unexpected, 1, id="unexpected"),
        pytest.param(RunLock, "check", full_disk, 6, id="storage", marks=pytest.mark.full),
    ],
)
def test_what_fails_in_the_first_process_alone_ends_both_alike(
    tmp_path: Path, owner: type, name: str, fault: Callable[..., None], code: int
) -> None:
    def work(rank: int) -> None:
        if rank == 0:
            setattr(owner, name, fault)
        commands.train(*WORDS, f"runs={tmp_path}")

    began = time.monotonic()
    assert in_children(2, work, seconds=60) == [code, code]
    assert time.monotonic() - began < 60
