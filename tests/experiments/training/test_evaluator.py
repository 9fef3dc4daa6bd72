"""Rows of an evaluation; what is recorded of experts while a run trains, and that it changes nothing."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.training.evaluator import Evaluator
from archbench.experiments.training.micro_batcher import MicroBatcher
from tests.experiments import commands

WORDS = (
    "backbone=moe",
    *commands.task_words("recall"),
    *commands.TINY,
    "budget.batch_size=4",
    "budget.tokens=1024",  # 8 steps
    "trainer.log_every=4",
    "trainer.checkpoint_every=3",
    "trainer.keep_checkpoints=9",
)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = commands.newest_checkpoint(folder)
    return {
        f"{name} {key}": value
        for name in ("model", "optimizer")
        for key, value in load_file(newest / f"{name}.safetensors").items()
    }


def recorded(folder: Path) -> list[int]:
    return [int(path.stem[5:]) for path in sorted((folder / "routing").iterdir())]


def test_recording_changes_nothing_of_the_training(tmp_path: Path) -> None:
    """Dropout, noise of the router, a bias and an average of the weights: whatever could be disturbed."""
    words = (
        *WORDS, "backbone.block.dropout=0.1", "backbone.experts.jitter=0.1",
        "backbone.experts.bias_rate=0.01", "optimizer.ema=0.9",
    )  # fmt: skip
    often = commands.train(*words, "trainer.evaluate_every=1", f"runs={tmp_path}/often")
    never = commands.train(*words, "trainer.evaluate_every=1000", f"runs={tmp_path}/never")
    assert recorded(often) == list(range(1, 9))
    assert recorded(never) == [8]
    found, expected = weights(often), weights(never)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    losses = [[row["loss"] for row in commands.rows(f) if row["kind"] == "train"] for f in (often, never)]
    assert losses[0] == losses[1]


def test_rows_and_choices_of_every_layer(tmp_path: Path) -> None:
    folder = commands.train(*WORDS, "trainer.evaluate_every=5", f"runs={tmp_path}")
    rows = [row for row in commands.rows(folder) if row["kind"] == "routing"]
    assert [row["step"] for row in rows] == recorded(folder) == [5, 8]
    stored = load_file(folder / "routing" / "step-00000008.safetensors")
    assert len(stored) == 2
    for layer, expert_NK in stored.items():
        assert expert_NK.shape == (2048, 2)  # 64 examples of 32 tokens
        assert expert_NK.dtype == torch.int16
        load_X = torch.bincount(expert_NK.flatten().long(), minlength=4) / expert_NK.numel()
        torch.testing.assert_close(torch.tensor(rows[-1][f"{layer}/load"]), load_X)
        assert rows[-1][f"{layer}/max_violation"] == pytest.approx(4 * load_X.max().item() - 1, abs=1e-6)
        mean = (4 * load_X - 1).abs().mean().item()
        assert rows[-1][f"{layer}/mean_violation"] == pytest.approx(mean, abs=1e-6)
        assert rows[-1][f"{layer}/gate_mean"] == pytest.approx(0.5)  # two gates that add up to one
        assert rows[-1][f"{layer}/logit_norm"] > 0


def test_a_model_without_experts_records_nothing(tmp_path: Path) -> None:
    folder = commands.train(*WORDS, "backbone.feedforwards=[dense]", f"runs={tmp_path}")
    assert not (folder / "routing").exists()
    assert {row["kind"] for row in commands.rows(folder)} == {"train", "validation"}


def test_a_run_that_goes_on_records_each_step_once_and_the_same(tmp_path: Path) -> None:
    folder = commands.train(*WORDS, "trainer.evaluate_every=2", f"runs={tmp_path}")
    rows = commands.untimed(folder)
    choices = {path.name: load_file(path) for path in (folder / "routing").iterdir()}
    for path in (folder / "checkpoints").glob("step-*"):
        if int(path.name[5:]) > 3:
            shutil.rmtree(path)
    (folder / "result.json").unlink()
    assert commands.train(*WORDS, "trainer.evaluate_every=2", f"runs={tmp_path}") == folder
    assert commands.untimed(folder) == rows
    again = {path.name: load_file(path) for path in (folder / "routing").iterdir()}
    assert again.keys() == choices.keys()
    assert all(torch.equal(again[n][layer], value) for n in choices for layer, value in choices[n].items())


def test_rewinding_drops_later_recordings(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.routing.mkdir()
    for step in (2, 3, 4):
        (folder.routing / f"step-{step:08d}.safetensors").write_bytes(b"")
    folder.rewind(3)
    assert recorded(tmp_path) == [2, 3]


def test_capacity_that_limits_in_training_alone_is_accounted_for(tmp_path: Path) -> None:
    words = ("backbone.experts.capacity_factor=0.5", "backbone.experts.experts_per_token=1")
    folder = commands.train(*WORDS, *words, f"runs={tmp_path}")
    row = next(row for row in commands.rows(folder) if row["kind"] == "routing")
    names = [name for name in row if name.endswith("/dropped_in_training")]
    assert len(names) == 2
    for name in names:
        # Half an even share for each expert leaves at least half of all visits out.
        assert 0.5 <= row[name] < 1
        assert row[name.replace("dropped_in_training", "dropped_share")] == 0


@pytest.mark.parametrize(
    ("trained_rows", "vocabulary", "fits", "rows"),
    [
        (1, 256, 10_000, [32]),  # 8,192 tokens in sequences of 256
        (64, 256, 10_000, [64]),  # as in training
        (1, 50_000, 10_000, [1]),  # 41 tokens have two million logits
        (4, 256, 3, [32, 2]),  # out of memory: half of the rows of training
    ],
)
def test_a_forward_pass_has_enough_tokens_to_be_fast(
    trained_rows: int, vocabulary: int, fits: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def measure(*_: object, batch_size: int, **__: object) -> list[str]:
        tried.append(batch_size)
        if batch_size > fits:
            raise torch.OutOfMemoryError("none left")
        return ["a metric"]

    monkeypatch.setattr("archbench.experiments.training.evaluator.measure", measure)
    model = torch.nn.Linear(1, 1)
    model.vocab_size = vocabulary  # type: ignore[assignment]
    strategy = SimpleNamespace(
        evaluating=contextlib.nullcontext, dims=SimpleNamespace(evaluation_shard=lambda: None)
    )
    evaluator = Evaluator(
        model,  # type: ignore[arg-type]
        SimpleNamespace(task=SimpleNamespace(sequence_length=256)),  # type: ignore[arg-type]
        strategy=strategy,  # type: ignore[arg-type]
        optimizer=torch.optim.SGD(model.parameters()),
        micro_batcher=MicroBatcher("auto", trained_rows),
        precision="fp32",
        before_batch=lambda: None,
    )
    assert evaluator.evaluate("test", None) == ["a metric"]
    assert tried == rows
