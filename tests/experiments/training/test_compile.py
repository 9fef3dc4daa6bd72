"""Blocks that torch.compile compiles train as those that are not."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from archbench.experiments.config.schema import TrainerConfig
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.training import trainer
from tests.experiments import commands

WORDS = (*commands.TINY, *commands.RECALL, "trainer.log_every=1", "budget.tokens=768", "optimizer.ema=0.9")
"""Six steps."""
COMPILED = "trainer.compile=blocks"


def check_same(*words: str, runs: Path) -> Path:
    """Trains with and without compiling; gives the folder of the compiled run."""
    plain = commands.train(*WORDS, *words, f"runs={runs / 'plain'}")
    torch._dynamo.reset()
    folder = commands.train(*WORDS, *words, COMPILED, f"runs={runs / 'compiled'}")
    losses = [
        [row["loss"] for row in commands.rows(each) if row["kind"] == "train"] for each in (folder, plain)
    ]
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for found, expected in zip(*(commands.result(each)["metrics"] for each in (folder, plain)), strict=True):
        assert found["value"] == pytest.approx(expected["value"], rel=1e-4)
    return folder


def use_backend(monkeypatch: pytest.MonkeyPatch, backend: str, **more: bool) -> None:
    """Trace for a compiler, but do not generate code, which takes most of a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend, **more))


def test_blocks_are_traced_whole_and_their_time_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(monkeypatch, "eager", fullgraph=True)
    counters.clear()
    folder = check_same("backbone=decoder", runs=tmp_path)
    assert counters["stats"]["unique_graphs"] >= 1
    training = commands.result(folder)["training"]
    assert training["compile_seconds"] > 0.01
    assert "torch.compile took" in capsys.readouterr().out
    steps = [row["seconds"] for row in commands.rows(folder) if row["kind"] == "train"]
    assert steps[0] < training["compile_seconds"], "compiling is among the seconds of the first step"
    kernels = json.loads((folder / "provenance.json").read_text())["kernels"]
    assert kernels["blocks"] == "compiled"


def title(words: tuple[str, ...]) -> str:
    return "-".join(word.partition("=")[2] for word in words)


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [("backbone=mamba",), ("backbone=decoder", "parallel.activation_checkpointing=block")],
    ids=title,
)
def test_compiled_blocks_give_the_same_losses(tmp_path: Path, words: tuple[str, ...]) -> None:
    check_same(*words, runs=tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [("backbone=s4",), ("backbone=moe",), ("backbone=encoder_decoder",)], ids=title
)
def test_traced_blocks_give_the_same_losses(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward are traced and run operation by operation."""
    use_backend(monkeypatch, "aot_eager")
    check_same(*words, runs=tmp_path)


def test_a_step_that_compiles_longer_than_it_takes_has_a_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch counts some of its time twice."""
    monkeypatch.setattr(trainer, "compile_seconds", itertools.count(0, 100).__next__)
    folder = commands.train(*WORDS, f"runs={tmp_path}")
    assert all(row["tokens_per_second"] > 0 for row in commands.rows(folder) if row["kind"] == "train")


def test_without_a_compiler_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(ConfigError, match=r"trainer.compile=blocks: there is no C\+\+ compiler .*CXX"):
        commands.train(*WORDS, COMPILED, f"runs={tmp_path}")


def test_it_does_not_enter_the_digest_and_typos_are_refused() -> None:
    assert commands.settings(*WORDS, COMPILED).key == commands.settings(*WORDS).key
    with pytest.raises(ValueError, match="did you mean 'blocks'"):
        TrainerConfig(compile="block")
