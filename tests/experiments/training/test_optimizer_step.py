"""A run with a moving average of its weights: evaluated by the average, continued from the weights."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from archbench.experiments.evaluation.measure import measure
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.errors import Preempted
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands

WORDS = (
    "backbone=masked_diffusion",
    *commands.RECALL,
    *commands.TINY,
    "budget.batch_size=4",
    f"budget.tokens={12 * 4 * 32}",
    "trainer.evaluate_every=5",
    "trainer.checkpoint_every=6",
    "optimizer.ema=0.9",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('whole')}")


def test_training_is_the_same_with_and_without_and_the_average_lies_apart(
    folder: Path, tmp_path: Path
) -> None:
    plain = commands.train(*WORDS, "optimizer.ema=null", f"runs={tmp_path}")
    averaged, weights = (
        load_file(commands.newest_checkpoint(f) / "model.safetensors") for f in (folder, plain)
    )
    assert any((averaged[name] - weights[name]).abs().max() > 1e-4 for name in weights)
    losses = [[row["loss"] for row in commands.rows(f) if row["kind"] == "train"] for f in (folder, plain)]
    assert losses[0] == losses[1]
    moments = load_file(commands.newest_checkpoint(folder) / "optimizer.safetensors")
    kept = [tensor for name, tensor in moments.items() if name.endswith(".average")]
    for value in weights.values():
        assert any(value.shape == other.shape and torch.equal(value, other) for other in kept)


def test_what_is_made_of_the_run_uses_the_average(folder: Path) -> None:
    saved = load_model(folder, torch.device("cpu"))
    metric = measure(
        saved.model, saved.objective, saved.task, "test", examples=8, batch_size=4, precision="fp32"
    )[0]
    assert metric.value == pytest.approx(commands.result(folder)["metrics"][0]["value"])


def test_an_interrupted_run_continues_bit_for_bit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.train_step

    def stopping(trainer: Trainer) -> dict[str, float]:
        row = step(trainer)
        if trainer.state.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return row

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopping)
        with pytest.raises(Preempted):
            commands.train(*WORDS, f"runs={tmp_path}")
    again = commands.train(*WORDS, f"runs={tmp_path}")
    assert commands.untimed(again) == commands.untimed(folder)
    assert commands.result(again)["metrics"] == commands.result(folder)["metrics"]
    for name in ("model", "optimizer"):
        found, expected = (
            load_file(commands.newest_checkpoint(f) / f"{name}.safetensors") for f in (again, folder)
        )
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name
