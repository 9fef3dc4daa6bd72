"""Processes killed while two of them save a checkpoint together, beside the training: F01, sharded.

python -m tests.faults.sharded_kills --trials 50

A trial trains a run by two processes until SIGKILL ends one of them, or both, at a point of a save or at a
random moment of a run that always saves. Whoever is left has to end by itself. Then the run is given to 1,
2 or 4 processes, which must find the newest checkpoint that was committed, and end with the losses of a run
that nobody disturbed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint  # noqa: F401  (here once, not in every child)
from torch.distributed.checkpoint.filesystem import FileSystem

from archbench.experiments.training.checkpoints import checkpoint, sharded_checkpoint
from tests.experiments import commands
from tests.faults.children import in_children

STEPS, EVERY = 10, 2
WORDS = (
    *commands.TINY,
    *commands.RECALL,
    "backbone=decoder",
    f"budget.tokens={STEPS * 4 * 32}",
    "budget.batch_size=4",
    "trainer.log_every=1",
    "optimizer.ema=0.9",
)
SAVE = 3
"""The save, counted from 1, in which a process dies: the first after which an older checkpoint is removed."""
BOTH = -1
"""In the place of a rank: SIGKILL ends both processes at once."""


@dataclass(frozen=True)
class Kill:
    """Who dies, and when."""

    victim: int
    """A rank, or ``BOTH``."""
    point: str | None = None
    """Of ``POINTS``; None for a moment by the clock."""
    seconds: float = 0.0
    """After the first save has begun, where there is no point."""

    def __str__(self) -> str:
        who = "both processes" if self.victim == BOTH else f"process {self.victim}"
        return f"{who} {self.point or f'after {self.seconds:.3f} s of saving'}"


def before(owner: Any, name: str, call: int = 1, only: Callable[..., bool] = lambda *a: True) -> Any:
    """Die before the call of a function with that number for which ``only`` says yes."""
    return owner, name, call, only, False


def after(owner: Any, name: str, only: Callable[..., bool] = lambda *a: True) -> Any:
    """Die when it has returned."""
    return owner, name, 1, only, True


def named(path: Any, *more: Any, **options: Any) -> bool:
    """Return True for a call that concerns a checkpoint which has its name, or gets it."""
    return any(Path(each).name.startswith("step-") for each in (path, *more) if isinstance(each, str | Path))


FIRST_ONLY: dict[str, Any] = {
    "when the folder is made": after(sharded_checkpoint, "begin"),
    "before the commit": before(sharded_checkpoint, "commit"),
    "when the manifest is written": before(checkpoint, "sync"),
    "before the rename": before(Path, "rename", 1, named),
    "after the rename": after(Path, "rename", named),
    "when an old checkpoint has lost its manifest": before(checkpoint.shutil, "rmtree", 1, named),
}
"""Points that only the first process passes."""
EACH: dict[str, Any] = {
    "while tensors are copied": before(sharded_checkpoint, "own_parts", 2),
    "before its weights are written": before(sharded_checkpoint, "write_parts"),
    "with half of a file written": before(FileSystem, "create_stream"),
    "before its moments are written": before(sharded_checkpoint, "write_parts", 2),
    "before its files are hashed": before(sharded_checkpoint, "describe"),
    "when it is to read its files back": before(sharded_checkpoint, "_misread"),
}
POINTS = EACH | FIRST_ONLY


def kills(trials: int, seed: int = 1) -> Iterator[Kill]:
    """Every point for every victim that passes it, and then random moments."""
    planned = [Kill(victim, point) for point in EACH for victim in (0, 1, BOTH)]
    planned += [Kill(victim, point) for point in FIRST_ONLY for victim in (0, BOTH)]
    chance = random.Random(seed)
    for trial in range(trials):
        if trial < len(planned):
            yield planned[trial]
        else:
            yield Kill(chance.choice([0, 1, BOTH]), seconds=chance.uniform(0.0, 0.8))


def note(count: int) -> dict[str, object]:
    """Return the row of tests/faults/recorded.csv about this number of trials."""
    injected = "SIGKILL of one or both of two processes that save shards together, at a point or at random"
    happened = "newest committed step resumed by 1, 2 or 4, losses equal"
    return {"fault": "F01", "injected": injected, "count": count, "happened": happened}


def prepare(kill: Kill, rank: int, desk: Path) -> None:
    """In a process of the run: make it die as planned."""
    (desk / f"pid{rank}").write_text(str(os.getpid()))
    own = max(kill.victim, 0)
    if rank != own:
        return

    def die() -> None:
        if kill.victim == BOTH:
            os.kill(int((desk / "pid1").read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    saves = 0
    stage = sharded_checkpoint.stage

    def counted(*arguments: Any) -> Any:
        nonlocal saves
        saves += 1
        if kill.point is None and saves == 1:
            threading.Timer(kill.seconds, die).start()
        if kill.point is not None and saves == SAVE:
            arm(kill.point, die)
        return stage(*arguments)

    sharded_checkpoint.stage = counted  # type: ignore[assignment]


def arm(point: str, die: Callable[[], None]) -> None:
    """From now on, die at a point."""
    owner, name, call, only, late = POINTS[point]
    work, calls = getattr(owner, name), 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += only(*arguments, **options)
        now = calls == call and only(*arguments, **options)
        if now and point == "with half of a file written":
            return Half(arguments[1], die)
        if now and not late:
            die()
        result = work(*arguments, **options)
        if now:
            die()
        return result

    setattr(owner, name, wrapped)


class Half(io.FileIO):
    """A file of which the first half of what is written to it is, when the process dies."""

    def __init__(self, path: Path, die: Callable[[], None]) -> None:
        super().__init__(path, "w")
        self.die = die

    def write(self, content: Any) -> int:
        super().write(content[: len(content) // 2])
        return self.die() or 0


def trial(kill: Kill, desk: Path, expected: list[float], size: int) -> int:
    """Kill and resume; return the step from which ``size`` processes went on. Fails if anything is lost."""
    words = (*WORDS, f"trainer.checkpoint_every={EVERY if kill.point else 1}", f"runs={desk / 'runs'}")
    folder = commands.settings(*words).folder

    def train(rank: int) -> None:
        prepare(kill, rank, desk)
        commands.train(*words, "parallel=fsdp")

    codes = in_children(2, train, seconds=120)
    dead = [0, 1] if kill.victim == BOTH else [kill.victim]
    if kill.point is not None:
        assert [codes[rank] for rank in dead] == [-signal.SIGKILL] * len(dead), f"{kill}: codes {codes}"
        assert all(codes[rank] > 0 for rank in {0, 1} - set(dead)), f"{kill}: codes {codes}"
    names = [
        path for path in checkpoint.committed(folder / "checkpoints") if (path / "MANIFEST.json").exists()
    ]
    assert all(checkpoint.broken(path) is None for path in names), f"{kill}: a partial checkpoint has a name"
    newest = int(names[0].name[5:]) if names else 0
    if kill.point is not None:
        assert newest in (EVERY * (SAVE - 1), EVERY * SAVE), f"{kill}: step {newest}"
    resumed(size, words, desk)
    result = commands.result(folder)
    assert result["status"] == "complete", kill
    said = (folder / "train.log").read_text()
    if newest and codes != [0, 0]:
        assert f"resumed at step {newest}" in said, f"{kill}: not from step {newest}"
    found = losses(folder)
    assert found == pytest.approx(expected, rel=1e-6), f"{kill}: other losses"
    assert not list((folder / "checkpoints").glob(".tmp-*")), kill
    assert not list((folder / "checkpoints").glob("broken-*")), kill
    return newest


def resumed(size: int, words: tuple[str, ...], desk: Path) -> None:
    """Train a run to its end by so many processes, in processes of their own."""

    def train(rank: int) -> None:
        commands.train(*words, *(["parallel=fsdp"] if size > 1 else []))

    codes = in_children(size, train, seconds=120)
    assert codes == [0] * size, codes


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in commands.rows(folder) if row["kind"] == "train"]


def undisturbed(desk: Path) -> list[float]:
    """The losses of the run, trained by one process."""
    words = (*WORDS, f"trainer.checkpoint_every={EVERY}", f"runs={desk}")
    resumed(1, words, desk)
    return losses(commands.settings(*words).folder)


def main() -> None:
    """Run trials, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial, to go on from")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as desk:
        expected = undisturbed(Path(desk) / "alone")
        for number, kill in enumerate(kills(args.first + args.trials)):
            if number < args.first:
                continue
            (Path(desk) / str(number)).mkdir()
            size = (2, 1, 4)[number % 3]
            step = trial(kill, Path(desk) / str(number), expected, size)
            print(f"{number}: {kill}: {size} went on from step {step}, losses equal", flush=True)
    if path := os.environ.get("FAULT_RECORD"):
        with Path(path).open("a") as file:
            file.write(json.dumps(note(args.trials)) + "\n")


if __name__ == "__main__":
    main()
