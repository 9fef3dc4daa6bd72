"""F01 and F06 where several processes save together: killed at every phase, and on a disk that is full."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from archbench.experiments.run.model_files import model_checkpoint
from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.training.checkpoints import checkpoint, sharded_checkpoint
from archbench.experiments.training.checkpoints.checkpoint_policy import CheckpointSaver
from archbench.experiments.training.parallel import collectives
from tests.experiments import commands
from tests.faults import sharded_kills
from tests.faults.children import in_a_child, in_children
from tests.faults.models import at_step, begun, load
from tests.faults.sharded_kills import BOTH, WORDS, Kill, losses, note, resumed, trial, undisturbed
from tests.faults.test_fault_storage import small_disk


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return undisturbed(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(
    ("kill", "size"),
    [
        (Kill(1, "with half of a file written"), 2),
        (Kill(0, "with half of a file written"), 1),
        (Kill(BOTH, "when the manifest is written"), 2),
        (Kill(0, "after the rename"), 4),
        (Kill(BOTH, "when an old checkpoint has lost its manifest"), 1),
    ],
    ids=str,
)
@pytest.mark.full
def test_f01_processes_killed_while_they_save_together(
    tmp_path: Path, expected: list[float], kill: Kill, size: int, record: Any
) -> None:
    """A few of the fifty trials of ``python -m tests.faults.sharded_kills``."""
    step = trial(kill, tmp_path, expected, size)
    committed = kill.point in ("after the rename", "when an old checkpoint has lost its manifest")
    assert step == sharded_kills.EVERY * (sharded_kills.SAVE - (not committed))
    record(**note(1))


def fill(disk: Path) -> Path:
    """A file that takes all room of a disk."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    return filler


def save(saver: CheckpointSaver, step: int, *, last: bool = False) -> None:
    saver.save(step, *at_step(step), {"train_state": {"step": step}}, last=last)
    saver.wait()


def on_a_small_disk(disk: Path, work: Any) -> None:
    """Have two processes do ``work(rank)`` that see a disk of 256 KiB. Skips where none can be mounted."""

    def alone() -> None:
        try:
            small_disk(disk, "256k")
        except OSError:
            os._exit(42)
        os._exit(0 if in_children(2, work, seconds=120) == [0, 0] else 1)

    code = in_a_child(alone)
    if code == 42:
        pytest.skip("mounting a small file system needs more rights than there are")
    assert code == 0


@pytest.mark.full
def test_f06_a_full_disk_costs_several_processes_no_older_checkpoint(tmp_path: Path, record: Any) -> None:
    disk = tmp_path / "disk"

    def work(rank: int) -> None:
        collectives.start(torch.device("cpu"))
        folder, said = disk / "run", []
        if rank == 0:
            begun(folder)
        saver = CheckpointSaver(folder, 2, said.append)
        save(saver, 9)
        assert not said
        collectives.run_on_rank_zero(lambda: fill(disk).name)
        for step in (12, 15):
            save(saver, step)
        names = ["step-00000006", "step-00000009"]
        assert sorted(path.name for path in folder.iterdir()) == names
        if rank == 0:
            assert len(said) == 2, said
            assert all("No space left" in line for line in said), said
        with pytest.raises(CheckpointError, match=r"3 times in a row.*make room") as gave_up:
            save(saver, 18)
        assert gave_up.value.exit_code == 6
        assert load(folder) == 9
        collectives.run_on_rank_zero(lambda: (disk / "filler").unlink())
        save(saver, 21)
        assert saver.failures == 0
        assert load(folder) == 21

    on_a_small_disk(disk, work)
    record("F06", "disk full while two processes save", 3, "older checkpoints intact, given up at the third")


@pytest.mark.full
def test_f06_what_fails_in_the_background_ends_the_run_with_one_error(tmp_path: Path) -> None:
    """The second process cannot write; both go on from the checkpoint before, in the end."""

    def work(rank: int) -> None:
        write_parts, calls = sharded_checkpoint.write_parts, []

        def fail(*arguments: Any) -> Any:
            found = write_parts(*arguments)
            calls.append(1)
            if rank == 1 and len(calls) > 2:  # from the second checkpoint on
                raise OSError(28, "No space left on device")
            return found

        sharded_checkpoint.write_parts = fail  # type: ignore[assignment]
        commands.train(*WORDS, "trainer.checkpoint_every=2", "parallel=fsdp", f"runs={tmp_path}")

    assert in_children(2, work, seconds=120) == [6, 6]
    folder = commands.settings(*WORDS, f"runs={tmp_path}").folder
    result = commands.result(folder)
    assert result["status"] == "failed"
    assert "No space left on device (3 times in a row); older checkpoints are intact" in result["message"]
    assert [path.name for path in checkpoint.committed(folder / "checkpoints")] == ["step-00000002"]
    assert not list((folder / "checkpoints").glob(".tmp-*"))


@pytest.mark.full
def test_f15_a_lock_lost_while_files_are_written_ends_the_run(tmp_path: Path, record: Any) -> None:
    """The checkpoint gets no name: another process writes the run by then."""

    def work(rank: int) -> None:
        begin = sharded_checkpoint.begin

        def lose(folder: Path, step: int) -> Path:
            if step == 4:
                (folder.parent / "lock.json").write_text('{"token": "of another"}')
            return begin(folder, step)

        sharded_checkpoint.begin = lose  # type: ignore[assignment]
        commands.train(*WORDS, "trainer.checkpoint_every=2", "parallel=fsdp", f"runs={tmp_path}")

    assert in_children(2, work, seconds=120) == [7, 7]
    (checkpoints,) = tmp_path.glob("*/*/*/checkpoints")
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000002"]
    record("F15", "lock lost while two processes write shards", 1, "exit 7, the checkpoint gets no name")


@pytest.mark.full
def test_f02_f03_a_damaged_shard_is_found_and_the_checkpoint_set_aside(
    tmp_path: Path, expected: list[float], record: Any
) -> None:
    """Lost, cut, one bit flipped, or one that no manifest knows; the one before is taken."""
    words = (*WORDS, "trainer.checkpoint_every=2", "trainer.keep_checkpoints=9", f"runs={tmp_path}")

    def several(rank: int) -> None:
        commands.train(*words, "parallel=fsdp")

    assert in_children(2, several, seconds=120) == [0, 0]
    folder = commands.settings(*words).folder
    chance = random.Random(3)

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])

    def add(path: Path) -> None:
        path.with_name("shard-00003-model-00001-of-00001.safetensors").write_bytes(path.read_bytes())

    newest = 10
    for damage in (flip, cut, add, Path.unlink):
        path = commands.newest_checkpoint(folder)
        assert path.name == f"step-{newest:08d}"
        shards = sorted(path.rglob("*.safetensors"))
        assert [shard.relative_to(path).as_posix() for shard in shards] == [
            f"{kind}/shard-0000{rank}-model-00001-of-00001.safetensors"
            for kind in ("model", "optimizer")
            for rank in (1, 2)
        ]
        damage(chance.choice(shards))
        (folder / "result.json").unlink()
        before = path.with_name(f"step-{newest - 2:08d}")
        with pytest.raises(CheckpointError, match=f"{path.name}: .*name an older one: .*{before.name}"):
            model_checkpoint(folder)
        assert model_checkpoint(before) == before
        resumed(1, words, tmp_path)
        (aside,) = path.parent.glob(f"broken-step-{newest:08d}-*")
        assert "safetensors" in (aside / "REASON.txt").read_text()
        assert losses(folder) == pytest.approx(expected, rel=1e-6)
        for later in path.parent.iterdir():  # back to what two processes wrote
            if later.name.startswith("broken") or int(later.name[5:]) >= newest:
                os.rename(later, tmp_path / f"{newest}-{later.name}")
        newest -= 2
    record("F03", "shard with a bit flipped, cut, lost, or in no manifest", 4, "found, file named, fell back")
