from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.load.study import load_study
from analysis.stats.versus_baseline import difference_cells, with_differences

WriteRun = Callable[..., Path]


def arms(runs: Path, baseline: str | None = None) -> pd.DataFrame:
    frame = load_study(runs, "compare")
    table = with_differences(frame if baseline is None else frame.assign(baseline=baseline))
    return table.set_index(["task", "arm"], drop=False)


def three(write_run: WriteRun, *, seeds: int = 3) -> None:
    """A baseline, an arm that is surely better, and one that may be either."""
    for seed, noise in zip(range(seeds), (0.00, 0.01, -0.008), strict=False):
        write_run("decoder", seed, 2.40 + noise)
        write_run("mamba", seed, 2.30 + noise + seed * 0.001)
        write_run("s4", seed, 2.41 - noise)


def test_gains_are_paired_and_counted_towards_better(write_run: WriteRun, tmp_path: Path) -> None:
    three(write_run)
    found = arms(tmp_path / "runs", baseline="decoder").loc["text"]
    mamba = found.loc["mamba"]
    assert (mamba["baseline"], mamba["rank"], mamba["separated"]) == ("decoder", "1", True)
    # Gains .100, .099, .098: mean .099, deviation .001, t(0.975, 2) = 4.3027.
    assert mamba["gain"] == pytest.approx(0.099)
    assert mamba["gain_half_width"] == pytest.approx(4.3027 * 0.001 / math.sqrt(3), rel=1e-4)
    assert difference_cells(mamba)[1:] == ["+0.0990 ± 0.0025 (3)", f"{mamba['gain_p']:.2g}", "better"]
    s4 = found.loc["s4"]
    assert (s4["rank"], s4["gain"] < 0, s4["separated"]) == ("2-3", True, False)
    assert difference_cells(s4)[-1] == f"tie: MDD {s4['detectable']:.4f}"
    assert difference_cells(found.loc["decoder"]) == ["2-3", "", "", "baseline"]
    assert difference_cells(found.loc["xz"]) == ["", "", "", ""]


def test_without_a_baseline_it_is_the_best_of_the_class(study: Path) -> None:
    found = arms(study)
    text = found.loc["text"]
    # The best mean is of an arm that lacks runs, which is compared with none.
    assert set(text[text["likelihood"] == "exact"]["baseline"]) == {"decoder"}
    assert difference_cells(text.loc["moe"]) == ["1-4", "", "", "not compared"]
    assert text.loc["diffusion", "baseline"] == "diffusion"
    assert pd.isna(found.loc[("recall", "s4"), "rank"])


@pytest.mark.parametrize(("seeds", "verdict"), [(2, "tie: MDD 0."), (1, "tie: a verdict takes 3 seeds")])
def test_few_seeds_are_ties(write_run: WriteRun, tmp_path: Path, seeds: int, verdict: str) -> None:
    three(write_run, seeds=seeds)
    cells = difference_cells(arms(tmp_path / "runs", baseline="decoder").loc[("text", "mamba")])
    assert cells[-1].startswith(verdict)
    assert cells[1].startswith("+0.1" if seeds == 1 else "+0.0995 ±")


def test_a_sure_difference_below_the_margin_is_a_tie(write_run: WriteRun, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 2.4 + seed / 10)
        write_run("mamba", seed, 2.399 + seed / 10 + seed * 1e-6)
    cells = difference_cells(arms(tmp_path / "runs", baseline="decoder").loc[("text", "mamba")])
    assert cells[-1] == "tie: below the margin of 0.002"


def test_arms_without_common_seeds_are_told_to_be_unpaired(write_run: WriteRun, tmp_path: Path) -> None:
    for seed, noise in enumerate((0.0, 0.01, -0.01)):
        write_run("decoder", seed, 2.4 + noise)
        write_run("mamba", seed + 5, 2.0 + noise)
    cells = difference_cells(arms(tmp_path / "runs", baseline="decoder").loc[("text", "mamba")])
    assert cells[-1] == "better; unpaired"
