from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.versus_baseline import verdict_phrase

WriteRun = Callable[..., Path]


def arms(runs: Path, baseline: str | None = None) -> pd.DataFrame:
    frame = load_study(runs, "compare")
    table = Comparison(frame if baseline is None else frame.assign(baseline=baseline)).arms
    return table.set_index(["task", "arm"], drop=False)


def three(write_run: WriteRun, *, seeds: int = 3) -> None:
    """A baseline, an arm that is surely better, and one that may be either."""
    for seed, noise in zip(range(seeds), (0.00, 0.01, -0.008), strict=False):
        write_run("decoder", seed, 2.40 + noise)
        write_run("mamba", seed, 2.30 + noise + seed * 0.001)
        write_run("s4", seed, 2.41 - noise)


def test_gains_are_counted_towards_better(write_run: WriteRun, tmp_path: Path) -> None:
    three(write_run)
    found = arms(tmp_path / "runs", baseline="decoder").loc["text"]
    mamba = found.loc["mamba"]
    assert (mamba["baseline"], mamba["verdict"]) == ("decoder", "better")
    assert mamba["gain"] == pytest.approx(0.099)
    assert mamba["gain_low"] + mamba["gain_high"] == pytest.approx(2 * 0.099)
    s4 = found.loc["s4"]
    assert (s4["gain"] < 0, s4["separated"]) == (True, False)
    assert verdict_phrase(s4).startswith(f"undecided: MDD {s4['detectable']:.4f}")
    assert found.loc[["decoder", "mamba", "s4"], "rank"].isna().all()  # mamba and s4 were not compared
    assert found.loc[["decoder", "xz"], "verdict"].isna().all()


def test_without_a_baseline_it_is_the_best_of_the_class(study: Path) -> None:
    found = arms(study)
    text = found.loc["text"]
    # The best mean is of an arm that lacks runs, which is compared with none.
    assert set(text[text["likelihood"] == "exact"]["baseline"]) == {"decoder"}
    assert text.loc["moe", ["rank", "verdict"]].isna().all()
    assert text.loc["diffusion", "baseline"] == "diffusion"
    assert pd.isna(found.loc[("recall", "s4"), "rank"])


@pytest.mark.parametrize(("seeds", "words"), [(2, "two seeds"), (1, "one seed")])
def test_few_seeds_decide_nothing(write_run: WriteRun, tmp_path: Path, seeds: int, words: str) -> None:
    three(write_run, seeds=seeds)
    mamba = arms(tmp_path / "runs", baseline="decoder").loc[("text", "mamba")]
    assert verdict_phrase(mamba) == f"undecided: {words}"
    assert mamba["gain"] == pytest.approx(0.1 if seeds == 1 else 0.0995)


def test_two_arms_agree_with_welch(write_run: WriteRun, tmp_path: Path) -> None:
    first, second = [2.40, 2.41, 2.39], [2.0, 2.03, 1.98]
    for seed in range(3):
        write_run("decoder", seed, first[seed])
        write_run("mamba", seed + 5, second[seed])
    mamba = arms(tmp_path / "runs", baseline="decoder").loc[("text", "mamba")]
    oracle = stats.ttest_ind(first, second, equal_var=False)
    assert mamba["gain_p"] == pytest.approx(oracle.pvalue, rel=1e-4)
    assert mamba["gain_low"] == pytest.approx(oracle.confidence_interval(0.95).low, rel=1e-5)
    assert (mamba["test"], mamba["verdict"]) == ("Welch", "better")


def test_differences_within_the_margin_are_equivalent(write_run: WriteRun, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 2.4 + seed / 1e5)
        write_run("mamba", seed, 2.399 + seed / 1e5)
    mamba = arms(tmp_path / "runs", baseline="decoder").loc[("text", "mamba")]
    assert verdict_phrase(mamba) == "equivalent"


def test_arms_that_have_not_learned_have_no_rank_and_no_verdict(write_run: WriteRun, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 4.75 + seed / 100)  # a unigram has 4.7
        write_run("mamba", seed, 4.95 + seed / 90)
        write_run("s4", seed, 2.9 + seed / 110)
    found = arms(tmp_path / "runs").loc["text"]
    assert found.loc["s4", "rank"] == "1"
    assert found["rank"].isna().tolist()[:3] == [False, True, True]
    assert found.loc["decoder", "below"] == "unigram entropy; xz"
    assert (found.loc["s4", "below"], found.loc["s4", "learned"]) == ("xz", True)
    assert found.loc["mamba", "verdict"] == "worse"  # than S4, the best
    mamba = arms(tmp_path / "runs", baseline="decoder").loc[("text", "mamba")]
    assert verdict_phrase(mamba) == "undecided: none of these has learned the task"
