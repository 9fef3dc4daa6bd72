"""The analysis of experts on real runs, each a second of training, through its command."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from archbench.analysis.experts.__main__ import main
from archbench.analysis.experts.recordings import follow, open_run
from archbench.analysis.experts.token_kinds import KINDS
from tests.experiments import commands

WORDS = (
    *commands.TINY, "budget.batch_size=4", "trainer.evaluate_every=3", "trainer.validation_examples=2",
    "trainer.test_examples=2",
)  # fmt: skip
TEXT = (*commands.SHORT_TEXT, "budget.tokens=1536", *WORDS)  # 6 steps


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.train("backbone=moe", *TEXT, f"runs={tmp_path_factory.mktemp('runs')}")


def test_everything_is_written_and_printed(moe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"run={moe}", "examples=16", "device=cpu"]) == 0
    out = capsys.readouterr().out
    folder = moe / "analysis"
    tables = {"training", "load", "coactivation", "domains", "vocabulary", "kinds"}
    expected = {f"experts_{name}.{kind}" for name in tables for kind in ("csv", "parquet")}
    expected |= {f"experts_{name}.svg" for name in ("training", "coactivation", "domains", "kinds")}
    assert {path.name for path in folder.iterdir()} == {*expected, "experts.md"}
    assert all(f"wrote {folder / name}" in out for name in expected)
    assert "blocks.1.feedforward" in out

    training = pd.read_parquet(folder / "experts_training.parquet")
    assert training["step"].tolist() == [3, 6, 3, 6]
    assert training["saturation"].tolist()[1::2] == [1, 1]
    assert training["saturation"].between(0, 1).all()
    assert set(training["chance"]) == {0.5}
    load = pd.read_csv(folder / "experts_load.csv")
    assert load.groupby(["layer", "step"])["load"].sum().tolist() == pytest.approx([1] * 4)

    kinds = pd.read_parquet(folder / "experts_kinds.parquet")
    assert set(kinds["kind"]) <= set(KINDS)
    assert kinds.groupby(["layer", "kind"])["share"].sum().tolist() == pytest.approx(
        [2] * len(kinds.groupby(["layer", "kind"]))
    )
    first = kinds[kinds["expert"] == 0]
    assert first.groupby("layer")["tokens"].sum().tolist() == [16 * 64] * 2
    domains = pd.read_parquet(folder / "experts_domains.parquet")
    assert set(domains["domain"]) == {
        "language reference", "library docstrings", "lines of prose", "lines of code",
    }  # fmt: skip
    vocabulary = pd.read_parquet(folder / "experts_vocabulary.parquet")
    assert set(vocabulary["side"]) == {"input", "predicted"}
    assert (vocabulary["tokens"] >= 10).all()


def test_kinds_are_those_of_the_text_one_place_on_for_a_causal_model(moe: Path) -> None:
    """Windows of held-out text lie side by side, so a word cut by their border is still one word."""
    saved = open_run(moe, torch.device("cpu"))
    layer = follow(saved, saved.task, "validation", 4)[0]
    assert layer.kind_N is not None
    tokens_BT = saved.task.batch("validation", 0, 0, 4).tokens_BT
    assert layer.token_N.reshape(4, 64)[:, 1:].tolist() == tokens_BT[:, :-1].tolist()
    kind_BT = layer.kind_N.reshape(4, 64)
    assert set(kind_BT[:, 0]) == {KINDS.index("special")}  # where each window begins
    text = saved.tokenizer.token_bytes
    spaces = [text[token].isspace() for token in tokens_BT[:, :-1].flatten().tolist()]
    found = (kind_BT[:, 1:] == KINDS.index("whitespace")).flatten()
    assert found.tolist() == spaces


def test_a_task_without_text_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("backbone=moe", *commands.RECALL, *WORDS, "budget.tokens=384", f"runs={tmp_path}")
    folder = commands.train(*words)
    for path in (folder / "routing").iterdir():  # as of a run that came from W&B
        path.unlink()
    assert main([f"run={folder}", "examples=8", f"out={tmp_path / 'there'}"]) == 0
    out = capsys.readouterr().out
    assert "the task has no text: kinds of words are left out" in out
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert "experts_training.csv" in names
    assert not {name for name in names if "kinds" in name or "domains" in name}


FAMILIES = {
    "encoder_decoder": ("backbone=switch", "backbone.encoder_feedforwards=[experts]"),
    "encoder": (
        "backbone=encoder",
        "backbone.feedforwards=[dense,experts]",
        "backbone.experts.choice=expert",
    ),
    "block_diffusion": ("backbone=block_diffusion", "backbone.feedforwards=[experts]"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_with_experts(family: str, tmp_path: Path) -> None:
    words = ["backbone.experts.num_experts=4", "budget.tokens=512", f"runs={tmp_path}"]
    folder = commands.train(*FAMILIES[family], *TEXT, *words)
    assert main([f"run={folder}", "examples=8"]) == 0
    kinds = pd.read_parquet(folder / "analysis" / "experts_kinds.parquet")
    training = pd.read_parquet(folder / "analysis" / "experts_training.parquet")
    assert set(kinds["layer"]) == set(training["layer"])
    if family == "encoder_decoder":
        assert any(layer.startswith("encoder.") for layer in kinds["layer"])
        assert any(layer.startswith("decoder.") for layer in kinds["layer"])
    if family == "encoder":  # its experts have their choice of tokens: half of them each, k = 2 of 4
        assert training["max_violation"].max() == pytest.approx(0, abs=1e-6)
    assert "whitespace" in set(kinds["kind"])


@pytest.mark.full
def test_a_tokenizer_that_was_learned_reads_the_domains_too(tmp_path: Path) -> None:
    words = ("task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=300", f"task.cache_dir={tmp_path}")
    folder = commands.train(
        "backbone=moe", *TEXT, *words, "task.source=embedded_reference", f"runs={tmp_path}"
    )
    assert main([f"run={folder}", "examples=4"]) == 0
    domains = pd.read_parquet(folder / "analysis" / "experts_domains.parquet")
    assert "library docstrings" in set(domains["domain"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "run has no value: set run=..."),
        (["rnu=there"], "'rnu=there': did you mean 'run='? the keys are run, out, examples, device"),
        (["run=nowhere"], "nowhere: there is no such folder"),
        (
            ["run=.", "examples=none"],
            "examples=none must be a whole number",
        ),
        (["run=.", "examples=0"], "examples=0 must be at least 1"),
        (["run=.", "device=gpu"], "name='gpu'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {words}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_run_without_experts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = commands.train("backbone=decoder", *TEXT, "budget.tokens=256", f"runs={tmp_path}")
    assert main([f"run={folder}"]) == 2
    assert "its model has no experts (backbone=decoder): name a run whose" in capsys.readouterr().err
    assert not (folder / "analysis").exists()
