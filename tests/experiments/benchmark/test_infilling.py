"""Texts filled in by ``experiments.benchmark``: what a pass costs and which tokens count."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion
from archbench.experiments.benchmark import infilling, timing
from archbench.experiments.benchmark.__main__ import read
from archbench.experiments.benchmark.grid import Benchmark
from archbench.experiments.benchmark.subprocess_runner import known
from archbench.experiments.benchmark.worker import measure
from tests.experiments import commands

TINY = (
    "scale.targets.non_embedding=20000",
    "contexts=[12]", "batch_size=3", "repeats=2", "seconds=0", "warmup_seconds=0",
    "device=cpu", "device.threads=1", "mode=[sample]",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CPU_SIZES", (32,))
    monkeypatch.setattr(timing, "PASSED_BYTES", 0)


def chosen(*words: str) -> Benchmark:
    return read(commands.compose(*TINY, *words, root="benchmark"))


def rows(*words: str) -> list[dict[str, Any]]:
    """The row of every cell, measured in this process."""
    asked = chosen(*words)
    return [known(asked, cell) | json.loads(json.dumps(measure(asked.order(cell)))) for cell in asked.cells()]


def test_cells_are_batches_by_contexts_by_steps() -> None:
    cells = list(chosen("backbone=masked_diffusion", "contexts=[12,20]", "steps=[4,16,90]").cells())
    assert [(cell.batch_size, cell.context, cell.steps) for cell in cells] == [
        (batch, context, steps)
        for batch in (1, 3)
        for context, steps in ((12, 4), (12, 12), (20, 4), (20, 16), (20, 20))
    ]
    assert [cell.steps for cell in chosen("backbone=masked_diffusion").cells()] == [12, 12]


@pytest.mark.parametrize("name", ["masked_diffusion", "encoder", "mamba_bidirectional"])
def test_a_pass_reads_every_place_and_only_written_tokens_count(name: str) -> None:
    """In 4 steps each pass commits 3 of 12 tokens and reads all 12."""
    asked = chosen(f"backbone={name}")
    model = asked.cls(asked.config, vocab_size=asked.vocab_size, max_length=12)
    for row, batch in zip(rows(f"backbone={name}", "steps=[4]"), (1, 3), strict=True):
        assert (row["steps"], row["passes"], row["repeats"]) == (4, 4, 2)
        assert row["tokens"] == row["committed_tokens"] == 12 * batch
        assert row["tokens_per_second"] == pytest.approx(12 * batch / row["seconds_median"])
        assert row["seconds_per_text"] == pytest.approx(row["seconds_median"] / batch)
        assert row["flops"] == 4 * batch * model.sequence_flops(12).total
        assert 0 < row["least_bytes"] <= 4 * 4 * model.parameters_by_part().active
        assert row["bytes_per_token"] == row["least_bytes"] / (12 * batch)
        assert row["state_bytes"] is None


def test_without_a_number_of_steps_each_commits_a_token() -> None:
    (row, _) = rows("backbone=masked_diffusion")
    assert (row["steps"], row["passes"]) == (12, 12)


def test_blocks_are_read_behind_those_before_them() -> None:
    """10 tokens are three blocks of 4; in 6 steps each takes 2 passes and one more to stay."""
    asked = chosen("backbone=block_diffusion", "contexts=[10]", "steps=[6]")
    model = asked.cls(asked.config, vocab_size=asked.vocab_size, max_length=12)
    row = rows("backbone=block_diffusion", "contexts=[10]", "steps=[6]")[1]
    assert (row["passes"], row["tokens"]) == (9, 30)
    assert row["flops"] == 3 * 3 * model.sequence_flops(12).total
    weights = 4 * (model.sequence_flops(11) - model.sequence_flops(10)).linear // 2
    assert row["least_bytes"] == 9 * weights + 3 * 3 * (model.state_bytes(4) + model.state_bytes(8))


def test_the_objective_says_how_texts_are_filled_in() -> None:
    """A threshold that all tokens reach commits everything in one pass; guidance takes two for each."""
    (row, _) = rows("backbone=masked_diffusion", "objective.filling.threshold=1e-9")
    assert row["passes"] == 1
    assert json.loads(row["filling"])["threshold"] == 1e-9
    (guided, _) = rows("backbone=masked_diffusion", "objective.filling.guidance=1.0", "steps=[4]")
    assert guided["passes"] == 8


def test_each_text_is_written_anew_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the objective is asked for is what ``experiments.generate`` asks for."""
    asked: list[dict[str, Any]] = []
    form = chosen("backbone=masked_diffusion").objective[0]
    real = form.sample

    def spy(self: Any, model: Any, prompts: Any, **how: Any) -> Any:
        asked.append({"prompts": prompts, "steps": self.steps, **how})
        return real(self, model, prompts, **how)

    monkeypatch.setattr(form, "sample", spy)
    rows("backbone=masked_diffusion", "batch_size=1", "steps=[6]")
    assert [one["steps"] for one in asked] == [infilling.WARMUP_STEPS] * 2 + [6] * 2
    assert all(one["prompts"] == [[]] and one["max_tokens"] == 12 for one in asked)
    assert all(not one.get("stop") and one["sampling"].temperature == 1 for one in asked)
    states = {tuple(one["generators"][0].get_state().tolist()) for one in asked[2:]}
    assert len(states) == 1  # the same text each time


@pytest.mark.parametrize("words", [("backbone=block_diffusion",), ("backbone.time_embedding=true",)])
def test_training_gives_a_model_what_it_takes(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are trained with a clean copy beside the noisy one, so a step costs twice as much."""
    asked = chosen("backbone=masked_diffusion", *words, "mode=[train]")
    model = asked.cls(asked.config, vocab_size=asked.vocab_size, max_length=12)
    given: list[set[str]] = []
    real = asked.cls.forward

    def spy(self: MaskedDiffusion, tokens_BT: torch.Tensor, **more: Any) -> Any:
        given.append({name for name, value in more.items() if value is not None})
        return real(self, tokens_BT, **more)

    monkeypatch.setattr(asked.cls, "forward", spy)
    row = measure(asked.order(next(asked.cells())))
    copies = 2 if "backbone=block_diffusion" in words else 1
    assert set.union(*given) == {"clean_BT" if copies == 2 else "time_B"}
    assert row["flops"] == 3 * 3 * copies * model.sequence_flops(12).total
