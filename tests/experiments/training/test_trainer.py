"""A step of training: what it does with the gradients and the random numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.experiments import commands
from tests.experiments.training.test_trainer_waits import trainer_of

PLAIN_SGD = ("optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0")


def test_a_step_is_as_long_as_the_clipped_gradient(tmp_path: Path) -> None:
    words = ("backbone=decoder", *commands.RECALL, *PLAIN_SGD)
    trainer = trainer_of(tmp_path, *words, "optimizer.clip_norm=0.01")
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    row = trainer.train_step()
    assert row["grad_norm"] > 0.01
    moved = torch.cat([(old - new).flatten() for old, new in zip(before, trainer.parameters, strict=True)])
    assert moved.norm().item() == pytest.approx(0.01 * row["learning_rate"], rel=1e-3)


def test_dropout_differs_from_step_to_step_and_not_from_run_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("backbone=decoder", *commands.RECALL, *PLAIN_SGD, "backbone.block.dropout=0.5")
    norms = []
    for _ in range(2):
        trainer = trainer_of(tmp_path, *words, "optimizer.learning_rate=1e-30")
        batch = trainer.batches.batch(0)
        monkeypatch.setattr(trainer.batches, "batch", lambda step, batch=batch: batch)
        norms.append([trainer.train_step()["grad_norm"] for _ in range(2)])
    assert norms[0] == norms[1]
    assert norms[0][0] != norms[0][1]
