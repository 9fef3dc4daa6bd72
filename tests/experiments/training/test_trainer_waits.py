"""A step of the harness waits for a GPU once, for the loss and the norm of the gradient: shown on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from archbench.architectures.layers.embedding import Embedding
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build
from archbench.experiments.training.parallel.device_mesh import ParallelDims
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands
from tests.recorded import Recorded, without_cpp_kernels


def trainer_of(folder: Path, *words: str) -> Trainer:
    settings = commands.settings(*commands.TINY, *words)
    planned = plan(settings)
    return Trainer(
        settings,
        strategy=build(settings, planned, ParallelDims()).strategy,
        task=planned.task,
        folder=Mock(checkpoints=folder),
        tracker=Mock(),
        console=Mock(),
        flops_per_token=1.0,
        interruptions=Mock(),
        lock=Mock(),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("backbone=decoder", *commands.SHORT_TEXT),
        ("backbone=decoder", *commands.RECALL),
        ("backbone=encoder", *commands.SHORT_TEXT),
        ("backbone=encoder_decoder", *commands.RECALL),
        ("backbone=mamba", *commands.RECALL, "budget.micro_batch_size=4"),
        ("backbone=moe", *commands.SHORT_TEXT, "backbone.experts.dispatch=reference"),
        ("backbone=masked_diffusion", *commands.SHORT_TEXT),
        ("backbone=hybrid", *commands.RECALL, "optimizer.ema=0.99"),
    ],
    ids=lambda words: "-".join(word.rpartition("=")[2] for word in words[:2]),
)
def test_a_step_waits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    without_cpp_kernels(monkeypatch)
    monkeypatch.setattr(Embedding, "_check_length", lambda *_: None)  # reads positions, on a CPU alone
    trainer = trainer_of(tmp_path, *words)
    recorded, to = Recorded(), View.to
    moved: list[View] = []

    def begin(self: View, device: torch.device) -> View:
        """What came before was done by the host, in its own memory; from here on a GPU has the batch."""
        moved.append(to(self, device))
        recorded.__enter__()
        return moved[-1]

    monkeypatch.setattr(View, "to", begin)
    try:
        trainer.train_step()
    finally:
        recorded.__exit__(None, None, None)
    # Where logits are wanted the host looks up in its own memory: for the model, and for the loss.
    parts = -(-len(moved[0].tokens_BT) // trainer.micro_batcher.size)
    lookups = [] if moved[0].scored_BT is None else ["nonzero"] * 2 * parts
    assert recorded.waits == [*lookups, "tolist"]
    assert trainer.state.step == 1


def test_a_batch_moves_without_a_wait_and_what_decides_shapes_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Watched(torch.Tensor):
        def pin_memory(self, *_: Any) -> torch.Tensor:  # type: ignore[override]
            calls.append("pinned")
            return self

        def to(self, *given: Any, **named: Any) -> torch.Tensor:
            calls.append((given, named))
            return self

    cuda = torch.device("cuda:0")
    tokens_BT, scored_BT = torch.zeros(2, 3).as_subclass(Watched), torch.ones(2, 3, dtype=torch.bool)
    view = View(
        tokens_BT=tokens_BT,
        valid_BT=None,
        target_BT=tokens_BT,
        weight_BT=tokens_BT,
        count_B=tokens_BT,
        scored_BT=scored_BT,
    )
    assert view.to(cuda).scored_BT is scored_BT
    assert calls == ["pinned", ((cuda,), {"non_blocking": True})] * 4
    calls.clear()
    view.to(torch.device("cpu"))
    assert "pinned" not in calls
