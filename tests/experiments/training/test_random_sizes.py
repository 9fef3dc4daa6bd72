"""Dropout is drawn for a micro-batch: a run whose micro-batch size changes is not marked as exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from archbench.experiments.runtime.errors import Preempted
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands

WORDS = (*commands.TINY, *commands.RECALL, "backbone=decoder", "budget.tokens=512", "budget.batch_size=4")


@pytest.mark.parametrize(
    ("word", "size", "exact"),
    [
        ("backbone.block.dropout=0.1", 2, False),
        ("backbone.block.dropout=0.1", 4, True),
        pytest.param("backbone.block.stochastic_depth=0.5", 2, False, marks=pytest.mark.full),
        ("backbone.block.dropout=0.0", 2, True),
    ],
)
def test_another_micro_batch_size_is_exact_only_without_dropout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, size: int, exact: bool
) -> None:
    words = (*WORDS, word, f"runs={tmp_path}")
    with monkeypatch.context() as stopping:
        stopping.setattr(Trainer, "_stop_reason", lambda self: "stopped" if self.state.step == 2 else None)
        with pytest.raises(Preempted):
            commands.train(*words)
    folder = commands.train(*words, f"budget.micro_batch_size={size}")
    resume = commands.result(folder)["resume"]
    assert (resume["sittings"], resume["exact"]) == (2, exact)
    assert resume["changed"] == ({} if exact else {"micro_batch_size": [4, size]})
