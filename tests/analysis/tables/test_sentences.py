"""The sentences: what wins, by how much, how surely, at what cost, and what stays undecided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.tables.sentences import answers

NOISE = (0.00, 0.01, -0.008, 0.004, -0.006)


@pytest.fixture
def told(write_run: Any, tmp_path: Path) -> Any:
    """``told(decoder=2.4, mamba=2.3)`` is the sentence about five seeds of each model."""

    def tell(baseline: str | None = None, noise: float = 1.0, seeds: int = 5, **means: float) -> str:
        for name, mean in means.items():
            for seed in range(seeds):
                # Each model has the noise of other seeds, so that differences are noisy too.
                score = mean + noise * NOISE[(seed + len(name)) % 5]
                folder = write_run(name, seed, score, state_bytes=2000 if name == "mamba" else 64000)
                if baseline is not None:
                    (folder / "config.yaml").write_text(f"study:\n  baseline: {baseline}\n")
        [sentence] = answers(Comparison(load_study(tmp_path / "runs", "compare")).arms)
        return sentence

    return tell


def test_a_winner_over_the_named_baseline_with_size_certainty_and_cost(told: Any) -> None:
    text = told(baseline="decoder", decoder=2.4, mamba=2.3, s4=2.7)
    assert text.startswith(
        "text, nano, exact likelihoods: mamba has the best mean, 2.300 ± 0.009 bits per byte (5 seeds)"
    )
    assert "better than decoder by 0.100 ± 0.0" in text
    assert "(p < 0.0001)" in text
    assert (
        "It has 0.03 times the decoding state of decoder, and the same training FLOPs and tokens per" in text
    )
    assert "Worse than decoder: s4 by 0.300 ± 0.0" in text


def test_without_a_named_baseline_the_best_is_held_against_all(told: Any) -> None:
    text = told(decoder=2.4, mamba=2.3, s4=2.7)
    assert "mamba wins with 2.300 ± 0.009 bits per byte (5 seeds): all others are worse." in text
    assert "Worse than mamba: decoder by 0.100" in text


def test_undecided_says_how_many_seeds_would_decide(told: Any) -> None:
    text = told(decoder=2.4, mamba=2.391)
    assert "No winner is decided. mamba has the best mean, 2.391" in text
    assert "Undecided against mamba: decoder (" in text
    assert "more seeds would decide)" in text


SOLVED = {"decoder": (1.0, 0.99, 0.98), "moe": (0.99, 0.98, 1.0), "s4": (0.6, 0.61, 0.6)}


def test_models_that_solve_a_task_are_named_without_a_winner(write_run: Any, tmp_path: Path) -> None:
    for name, scores in SOLVED.items():
        for seed, score in enumerate(scores):
            write_run(name, seed, score, task="recall", likelihood=None)
    [sentence] = answers(Comparison(load_study(tmp_path / "runs", "compare")).arms)
    assert "recall, nano: decoder and moe solve the task. decoder has the best mean, 0.990" in sentence
    assert "Worse than decoder: s4" in sentence


def test_a_difference_of_solve_rates_is_told_from_one_of_scores(write_run: Any, tmp_path: Path) -> None:
    runs = {
        "decoder": (0.99, 0.98, 0.99, 0.98, 0.97),
        "hybrid": (0.99, 0.60, 0.98, 0.98, 0.97),
        "mamba": (0.72, 0.79, 0.67, 0.66, 0.80),
        "s4": (0.30, 0.31, 0.32, 0.31, 0.33),
    }
    for name, scores in runs.items():
        for seed, score in enumerate(scores):
            folder = write_run(name, seed, score, task="recall", likelihood=None)
            (folder / "config.yaml").write_text("study:\n  solved: 0.95\n")
    [sentence] = answers(Comparison(load_study(tmp_path / "runs", "compare")).arms)
    assert "s4 by 1.000 [" in sentence
    assert "] in solve rate (p = 0." in sentence
    assert sentence.count("in solve rate") == 2
    assert "mamba by 1.000" in sentence


def test_two_seeds_decide_nothing(told: Any) -> None:
    text = told(decoder=2.4, mamba=2.0, seeds=2)
    assert "Undecided against mamba: decoder (two seeds, and a verdict takes 3)." in text


def test_equivalent_models_are_said_to_be(told: Any) -> None:
    text = told(noise=0.02, decoder=2.4, mamba=2.4001)
    assert "Equivalent to decoder within 0.002: mamba." in text
    assert "Nothing is better than decoder" in text


def test_what_no_model_beats_is_said(told: Any) -> None:
    assert told(decoder=2.4, mamba=2.3).endswith("None is better than the reference xz.")
    assert "xz" not in told(gla=2.1)


def test_a_lone_model_and_one_with_missing_runs(told: Any, write_run: Any) -> None:
    assert "there is nothing of its type to compare it with" in told(decoder=2.4)
    write_run("s4", 0, 1.9)
    write_run("s4", 1, killed=True)
    text = told(mamba=2.3)
    assert "mamba wins" in text
    assert "s4 is not compared: runs are missing." in text


def test_where_nothing_is_learned_nothing_wins(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 0.02, task="recall")
        write_run("mamba", seed, 0.01, task="recall")
    [text] = answers(Comparison(load_study(tmp_path / "runs", "compare")).arms)
    not_learned = "no model has learned the task: none is better than any value (0.031 answer accuracy)."
    assert text == f"recall, nano: {not_learned}"


def test_where_data_differ_that_is_said_first_and_there_is_no_verdict(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 2.4 + seed / 100)
        write_run("mamba", seed, 2.2 + seed / 100, fingerprint="data-2")
    frame = load_study(tmp_path / "runs", "compare")
    [sentence] = answers(Comparison(frame.assign(baseline="decoder")).arms)
    assert sentence.partition(": ")[2].startswith("No verdict, as the runs saw different data: mamba 2.210 ±")
    assert "decoder by" not in sentence
    assert "wins" not in sentence
