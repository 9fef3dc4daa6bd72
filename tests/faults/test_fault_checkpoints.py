"""F02, F03, F05 and F32: files lost, damaged, or of another version; the newest whole checkpoint is found."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.training.checkpoints import checkpoint
from tests.experiments import commands
from tests.faults.children import times
from tests.faults.models import begun, load, save


def test_f02_everything_reaches_the_disk_before_the_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watch(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def commit(source: Any, target: Any) -> None:
        if Path(target).name.startswith("step-"):
            assert {*checkpoint.FILES, "MANIFEST.json", Path(source).name} <= set(synced)
            synced.append("renamed")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watch)
    monkeypatch.setattr(os, "rename", commit)
    save(tmp_path, 3)
    after = synced[synced.index("renamed") + 1]
    assert after == tmp_path.name, "the folder was not synced after the rename"


@times(default=10, recorded=50)
def test_f02_bytes_that_never_reached_the_disk(tmp_path: Path, times: int, record: Any) -> None:
    chance = random.Random(2)
    for trial in range(times):
        folder = begun(tmp_path / str(trial))
        path = folder / "step-00000006" / chance.choice([*checkpoint.FILES, "MANIFEST.json"])
        data = path.read_bytes()
        kept = chance.randrange(len(data))
        lost = chance.choice([b"", bytes(len(data) - kept)])  # cut off, or a hole of zeros
        path.write_bytes(data[:kept] + lost)
        assert load(folder) == 3, path
        assert (next(folder.glob("broken-step-00000006-*")) / "REASON.txt").read_text().strip()
    record("F02", "tail of a committed file lost or zero", times, "set aside, previous step resumed")


@times(default=40, recorded=1000)
def test_f03_one_flipped_byte(tmp_path: Path, times: int, record: Any) -> None:
    chance = random.Random(3)
    folder = begun(tmp_path / "run")
    for _ in range(times):
        name = chance.choice(checkpoint.FILES)
        path = folder / "step-00000006" / name
        data = bytearray(path.read_bytes())
        place, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        data[place] ^= bit
        path.write_bytes(data)
        assert load(folder) == 3
        (aside,) = folder.glob("broken-*")
        assert name in (aside / "REASON.txt").read_text()
        data[place] ^= bit
        (aside / name).write_bytes(data)
        (aside / "REASON.txt").unlink()
        aside.rename(folder / "step-00000006")
    assert load(folder) == 6
    record("F03", "one bit flipped in a file of the newest checkpoint", times, "found, file named, fell back")


def test_f03_a_flipped_byte_of_the_manifest_never_loads_anything_else(tmp_path: Path) -> None:
    whole = begun(tmp_path / "run")
    size = (whole / "step-00000006" / "MANIFEST.json").stat().st_size
    for place in range(0, size, 17):
        folder = tmp_path / str(place)
        shutil.copytree(whole, folder)
        path = folder / "step-00000006" / "MANIFEST.json"
        data = bytearray(path.read_bytes())
        data[place] ^= 4
        path.write_bytes(data)
        assert load(folder) in (3, 6)  # ``load`` compares every tensor


def test_f05_nothing_whole_is_no_fresh_start(tmp_path: Path, record: Any) -> None:
    folder = begun(tmp_path)
    for step, name in ((3, "optimizer.safetensors"), (6, "model.safetensors")):
        (folder / f"step-{step:08d}" / name).write_bytes(b"")
    for _ in range(2):  # the second launch as the first
        with pytest.raises(
            CheckpointError, match=r"no checkpoint is whole .*step-00000006.*has 0 bytes"
        ) as said:
            load(folder)
        assert "step-00000003" in str(said.value)
        assert said.value.exit_code == 6
    record("F05", "every checkpoint broken", 2, "exit code 6 with the reason of each, no restart at step 0")


def test_f32_a_checkpoint_of_a_later_version_is_refused_by_name(tmp_path: Path, record: Any) -> None:
    words = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10", f"runs={tmp_path}")
    folder = commands.train(*words)
    (folder / "result.json").unlink()
    newest = commands.newest_checkpoint(folder)
    state = json.loads((newest / "state.json").read_text())
    state["train_state"]["invented_later"] = 1
    rewrite_state(newest, state)
    with pytest.raises(CheckpointError, match="invented_later"):
        commands.train(*words)
    assert newest.exists()
    record("F32", "state of a later version", 1, "refused by name")


def rewrite_state(path: Path, state: dict[str, Any]) -> None:
    """Another state in a checkpoint, with a manifest that says so."""
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "MANIFEST.json").read_text())
    size, digest = (path / "state.json").stat().st_size, checkpoint._hash(path / "state.json")
    (path / "MANIFEST.json").write_text(
        json.dumps(manifest | {"state.json": {"bytes": size, "sha256": digest}})
    )
