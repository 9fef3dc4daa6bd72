"""Checkpoints are whole or absent: broken ones are set aside, and nothing starts over in silence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from archbench.experiments.runtime.errors import CheckpointError, LockedError
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.checkpoints.checkpoint_policy import CheckpointSaver
from tests.experiments import commands


class Tied(nn.Module):
    """A model whose head is its embedding, with a buffer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embedding(tokens)))


def make(seed: int = 0, width: int = 8) -> tuple[Tied, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = Tied(width)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def advance(model: Tied, optimizer: torch.optim.AdamW, steps: int) -> None:
    for step in range(steps):
        tokens = torch.arange(11).roll(step)
        nn.functional.cross_entropy(model(tokens), tokens.roll(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.seen += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of steps 3 and 6."""
    model, optimizer = make()
    for step in (3, 6):
        advance(model, optimizer, 3)
        CheckpointSaver(tmp_path, 2, print).save(
            step, model, optimizer, {"train_state": {"step": step}}, last=True
        )
    return tmp_path


def load(folder: Path) -> int | None:
    """The step that is restored."""
    saved = checkpoint.load_newest(folder, *make(seed=1))
    return None if saved is None else saved["train_state"]["step"]


def flip_a_byte(name: str, place: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[place] ^= 1
        (path / name).write_bytes(data)

    return damage


def cut(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-10])  # type: ignore[return-value]


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


FILES = (*checkpoint.FILES, "MANIFEST.json")
DAMAGES = {
    "flipped byte at the end": flip_a_byte("model.safetensors", -1),
    "flipped byte of the moments": flip_a_byte("optimizer.safetensors", 400),
    "flipped byte of the header": flip_a_byte("model.safetensors", 20),
    "flipped byte of the manifest": flip_a_byte("MANIFEST.json", 40),
    **{f"cut {name}": cut(name) for name in FILES},
    **{f"missing {name}": remove(name) for name in FILES},
    "empty folder": lambda path: [file.unlink() for file in path.iterdir()],
    "manifest of nothing": lambda path: (path / "MANIFEST.json").write_text("{}"),
    "manifest that is a list": lambda path: (path / "MANIFEST.json").write_text("[]"),
}


def test_everything_comes_back(folder: Path) -> None:
    model, optimizer = make()
    advance(model, optimizer, 3)
    advance(model, optimizer, 3)
    restored, restored_optimizer = make(seed=1)
    assert checkpoint.load_newest(folder, restored, restored_optimizer) is not None
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, restored.state_dict()[name]), name
    assert restored.head.weight is restored.embedding.weight
    advance(model, optimizer, 4)
    advance(restored, restored_optimizer, 4)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, restored.state_dict()[name]), f"{name} after four more steps"


def test_a_tied_weight_is_stored_once(folder: Path) -> None:
    tensors = load_file(folder / "step-00000006" / "model.safetensors")
    assert set(tensors) == {"embedding.weight", "middle.weight", "middle.bias", "seen"}


def test_there_is_no_pickle(folder: Path) -> None:
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    assert files == set(FILES)
    for path in folder.rglob("*.json"):
        json.loads(path.read_text())


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_broken_checkpoint_is_set_aside(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / "step-00000006")
    assert load(folder) == 3
    aside = list(folder.glob("broken-step-00000006-*"))
    assert len(aside) == 1
    assert load(folder) == 3, "the second time as the first"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_without_a_whole_checkpoint_nothing_starts_over(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / "step-00000003")
    damage(folder / "step-00000006")
    with pytest.raises(CheckpointError, match="no checkpoint is whole") as refused:
        load(folder)
    assert refused.value.exit_code == 6
    assert "Remove the run's folder" in str(refused.value)
    assert "step-00000006" in str(refused.value)
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        load(folder)


def test_where_there_was_none_there_is_nothing_to_restore(tmp_path: Path) -> None:
    assert load(tmp_path / "absent") is None
    assert load(tmp_path) is None


def test_the_reason_is_said(folder: Path) -> None:
    flip_a_byte("model.safetensors", -1)(folder / "step-00000006")
    cut("optimizer.safetensors")(folder / "step-00000003")
    with pytest.raises(CheckpointError, match=r"model\.safetensors has changed .* bytes instead of"):
        load(folder)


def test_another_format_is_refused(folder: Path) -> None:
    shutil.rmtree(folder / "step-00000003")
    path = folder / "step-00000006"
    state = json.loads((path / "state.json").read_text()) | {"format": 99}
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "MANIFEST.json").read_text())
    manifest["state.json"] = {
        "bytes": (path / "state.json").stat().st_size,
        "sha256": checkpoint._hash(path / "state.json"),
    }
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="format 99, this version reads 1"):
        load(folder)
    assert path.exists(), "a checkpoint of another version is not broken"


@pytest.mark.parametrize("written", range(5))
def test_a_crash_while_saving_leaves_the_previous_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The process dies after ``written`` files, and then in the rename."""

    class Died(BaseException):
        pass

    calls = iter(range(100))

    def die_in_turn(work: Callable) -> Callable:
        def maybe(*args, **kwargs):
            if next(calls) == written:
                raise Died
            return work(*args, **kwargs)

        return maybe

    monkeypatch.setattr(checkpoint, "save_file", die_in_turn(checkpoint.save_file))
    monkeypatch.setattr(Path, "write_text", die_in_turn(Path.write_text))
    monkeypatch.setattr(Path, "rename", die_in_turn(Path.rename))
    model, optimizer = make()
    advance(model, optimizer, 9)
    with pytest.raises(Died):
        CheckpointSaver(folder, 2, print).save(9, model, optimizer, {"train_state": {"step": 9}}, last=True)
    monkeypatch.undo()
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000003", "step-00000006"]
    (left,) = folder.glob(".tmp-*")
    assert len(list(left.iterdir())) == written
    assert load(folder) == 6
    CheckpointSaver(folder, 2, print).save(9, model, optimizer, {"train_state": {"step": 9}}, last=True)
    assert not list(folder.glob(".tmp-*"))
    assert load(folder) == 9


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    model, optimizer = make()
    advance(model, optimizer, 1)
    for step in (1, 2, 10, 100):
        CheckpointSaver(tmp_path, keep, print).save(
            step, model, optimizer, {"train_state": {"step": step}}, last=True
        )
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"step-{step:08d}" for step in (1, 2, 10, 100)[-keep:]]


def test_a_checkpoint_of_the_same_step_replaces_the_old_one(folder: Path) -> None:
    model, optimizer = make(seed=5)
    advance(model, optimizer, 1)
    CheckpointSaver(folder, 2, print).save(6, model, optimizer, {"train_state": {"step": 6}}, last=True)
    restored, restored_optimizer = make(seed=1)
    checkpoint.load_newest(folder, restored, restored_optimizer)
    assert torch.equal(restored.embedding.weight, model.embedding.weight)


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"embedding\.weight"):
        checkpoint.load_newest(folder, *make(width=16))


def test_a_folder_that_cannot_be_written_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        CheckpointSaver(tmp_path / "file", 1, print).save(1, *make(), {}, last=True)


@pytest.mark.parametrize("parent", [False, True])
def test_a_run_that_lost_its_checkpoints_does_not_begin_anew(tmp_path: Path, parent: bool) -> None:
    words = (*commands.TINY, *commands.RECALL, f"runs={tmp_path}")
    folder = commands.train(*words)
    if parent:
        words = (*words, f"continue_from={folder}", "budget.tokens=20000", "study.name=continued")
        folder = commands.train(*words)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoints")
    rows = commands.rows(folder)
    with pytest.raises(CheckpointError, match=r"step \d+ was saved, and no checkpoint is left: .* remove"):
        commands.train(*words)
    (folder / checkpoint.SAVED).write_text("{")
    with pytest.raises(CheckpointError, match=r"saved.json: is damaged .*: remove the run's folder"):
        commands.train(*words)
    assert commands.rows(folder) == rows
    (folder / checkpoint.SAVED).unlink()  # as of a run that was killed before it saved any
    commands.train(*words)


def test_a_run_with_broken_checkpoints_ends_with_exit_code_6(tmp_path: Path) -> None:
    words = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10", f"runs={tmp_path}")
    folder = commands.train(*words)
    (folder / "result.json").unlink()
    kept = sorted((folder / "checkpoints").iterdir())
    assert [path.name for path in kept] == ["step-00000030", "step-00000031"]
    for path in kept:
        flip_a_byte("model.safetensors", -1)(path)
    rows = commands.rows(folder)
    ended = commands.run("train", *words)
    assert ended.returncode == 6
    assert ended.stderr.startswith("error: ")
    assert "no checkpoint is whole" in ended.stderr
    found = commands.result(folder)
    assert found["status"] == "failed"
    assert "no checkpoint is whole" in found["message"]
    assert commands.rows(folder) == rows, "the record is lost too"
    assert commands.run("train", *words).returncode == 6


def test_a_repeated_save_checks_the_lock_and_does_not_make_the_run_folder_again(tmp_path: Path) -> None:
    def lost() -> None:
        raise LockedError("the folder is gone")

    saver = CheckpointSaver(tmp_path / "run" / "checkpoints", 2, print, lost)
    with pytest.raises(LockedError, match="is gone"):
        saver.save(3, *make(), {"train_state": {"step": 3}})
    assert not (tmp_path / "run").exists()


def test_the_files_of_a_checkpoint_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        CheckpointSaver(tmp_path, 2, print).save(3, *make(), {"train_state": {"step": 3}})
    finally:
        os.umask(before)
    files = list(tmp_path.glob("step-*/*"))
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
    assert len(files) == 4
