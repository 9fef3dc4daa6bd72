from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from archbench.analysis.stats.learning_rates.choice import (
    best_rates,
    difference_error,
    extension,
    mixed_settings,
    rate_means,
    rate_table,
    robust_decades,
    undecided_rates,
)
from tests.results import write_result

WriteRun = Callable[..., Path]


def write_grid(
    write_run: WriteRun, backbone: str, scores: dict[float, float | None], **settings: Any
) -> None:
    """A run for each rate; None diverges."""
    target, seed = settings.pop("target", None), settings.pop("seed", 100)
    for rate, score in scores.items():
        fate = {"status": "diverged", "message": "loss is nan"} if score is None else {}
        digest = f"{rate:g}{backbone[0]}{target}{seed}".replace("-", "").replace(".", "")
        folder = write_run(backbone, seed, score, study="rates", digest=digest, **fate, **settings)
        config = {"optimizer": {"learning_rate": rate}, "scale": {"target": target}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def swept(tmp_path: Path, write_run: WriteRun) -> Path:
    """A decoder whose best rate lies inside the grid, a mamba whose best lies at its edge, one failure."""
    write_grid(write_run, "decoder", {1e-3: 2.6, 3e-3: 2.3, 1e-2: 2.35, 3e-2: None})
    write_grid(write_run, "mamba", {1e-3: 2.9, 3e-3: 2.7, 1e-2: 2.4})
    return tmp_path / "runs"


def best_of(runs: Path) -> pd.DataFrame:
    return best_rates(rate_table(runs, "rates")).set_index("backbone")


def test_the_best_validation_value_decides(swept: Path) -> None:
    best = best_of(swept)
    assert best.loc["decoder", "learning_rate"] == 3e-3
    assert best.loc["mamba", "learning_rate"] == 1e-2


def test_the_test_split_decides_nothing(swept: Path) -> None:
    before = best_of(swept)
    for path in swept.glob("rates/*/s*/result.json"):
        record = json.loads(path.read_text())
        for metric in record.get("metrics", []):
            metric["value"] = 1.0 if "decoder" in str(path) else 9.0
        write_result(path.parent, record)
    pd.testing.assert_frame_equal(best_of(swept), before)


def test_an_optimum_at_the_edge_is_flagged(swept: Path) -> None:
    assert best_of(swept)["edge"].to_dict() == {"decoder": "", "mamba": "upper"}


def test_a_divergence_beyond_the_best_rate_brackets_it(tmp_path: Path, write_run: WriteRun) -> None:
    write_grid(write_run, "decoder", {1e-3: 2.6, 3e-3: 2.3, 1e-2: None})
    assert best_of(tmp_path / "runs").loc["decoder", "edge"] == ""


def test_of_rates_that_tie_the_middle_is_taken(tmp_path: Path, write_run: WriteRun) -> None:
    write_grid(write_run, "decoder", {3e-4: 2.1, 1e-3: 2.1, 3e-3: 2.1, 1e-2: 3.0})
    best = best_of(tmp_path / "runs").loc["decoder"]
    assert (best["learning_rate"], best["edge"]) == (1e-3, "")


def test_a_rate_that_diverges_under_one_seed_is_never_the_best(tmp_path: Path, write_run: WriteRun) -> None:
    write_grid(write_run, "decoder", {1e-3: 2.6, 3e-3: 2.3, 1e-2: 2.0}, seed=100)
    write_grid(write_run, "decoder", {1e-3: 2.5, 3e-3: 2.4, 1e-2: None}, seed=101)
    best = best_of(tmp_path / "runs").loc["decoder"]
    assert (best["learning_rate"], best["seeds"], best["rates"]) == (3e-3, [100, 101], 3)


def test_a_rate_short_of_a_seed_does_not_count_as_tried(tmp_path: Path, write_run: WriteRun) -> None:
    write_grid(write_run, "decoder", {1e-3: 2.6, 3e-3: 2.3, 1e-2: 2.0}, seed=100)
    write_grid(write_run, "decoder", {1e-3: 2.5, 3e-3: 2.4}, seed=101)
    means = rate_means(rate_table(tmp_path / "runs", "rates"))
    assert means.to_dict() == {1e-3: pytest.approx(2.55 * 1.02), 3e-3: pytest.approx(2.35 * 1.02)}
    best = best_of(tmp_path / "runs").loc["decoder"]
    assert (best["learning_rate"], best["edge"], best["rates"]) == (3e-3, "upper", 2)


def test_where_all_diverged_the_grid_goes_down(tmp_path: Path, write_run: WriteRun) -> None:
    write_grid(write_run, "s4", {1e-2: None, 3e-2: None})
    rates = rate_table(tmp_path / "runs", "rates")
    best = best_rates(rates).iloc[0]
    assert math.isnan(best["learning_rate"])
    assert best["next_rates"] == [3e-3]


def test_sizes_are_arms_of_their_own(tmp_path: Path, write_run: WriteRun) -> None:
    write_grid(write_run, "decoder", {1e-3: 2.6, 3e-3: 2.3, 1e-2: 2.4}, target=30000)
    write_grid(write_run, "decoder", {1e-3: 2.1, 3e-3: 2.3, 1e-2: 2.4}, target=100000)
    best = best_rates(rate_table(tmp_path / "runs", "rates")).set_index("target")
    assert best["learning_rate"].to_dict() == {30000.0: 3e-3, 100000.0: 1e-3}
    assert best["edge"].to_dict() == {30000.0: "", 100000.0: "lower"}


@pytest.mark.parametrize("sign", [1, -1])
def test_the_better_batch_size_is_chosen_and_its_rival_may_be_second(
    sign: int, tmp_path: Path, write_run: WriteRun
) -> None:
    write_grid(write_run, "decoder", {3e-3: 2.3, 1e-2: 2.0, 3e-2: 2.4})
    large = rate_table(tmp_path / "runs", "rates").assign(batch_size=4.0, protocol="1.0")
    large["validation"] = [2.3, 2.0, 2.4]
    rates = pd.concat([large, large.assign(batch_size=1.0, validation=[2.5, 2.2, 2.9])])
    if sign < 0:
        rates = rates.assign(validation=-rates["validation"], direction="higher")
    best = best_rates(rates).set_index("batch_size")
    assert best["chosen"].to_dict() == {4: True, 1: False}
    assert best["trials"].tolist() == [6, 6]
    assert best.loc[4, "second_validation"] == sign * 2.2


def test_a_study_that_varies_something_else_is_told(tmp_path: Path, write_run: WriteRun) -> None:
    for digest in "ab":
        folder = write_run("decoder", 100, 2.0, study="rates", digest=digest)
        (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": 1e-3}}))
    mixed = mixed_settings(rate_table(tmp_path / "runs", "rates"))
    assert mixed == "decoder on text has two runs of rate 0.001 and seed 100"


@pytest.mark.parametrize(
    ("values", "higher", "decades", "is_open"),
    [
        # Lower is better: the limit is 2.1. Half of the decade below (2.0 -> 2.2), a quarter of that above.
        ([2.2, 2.0, 2.4], False, 0.5 + 0.25, False),
        # Higher is better: the limit is 0.95; 0.05 of a fall of 0.1, then of 0.2.
        ([0.9, 1.0, 0.8], True, 0.5 + 0.25, False),
        # All within 5%: the grid ends first.
        ([2.05, 2.0, 2.01], False, 2.0, True),
        # Beyond the best everything diverged: nothing is granted on that side.
        ([2.2, 2.0, math.nan], False, 0.5, False),
        # Far rates within 5% do not count where one between is not: (2.0 -> 2.2) twice.
        ([2.0, 2.2, 2.0, 2.2, 2.0], False, 0.5 + 0.5, False),
    ],
)
def test_decades_of_rate_within_five_percent(
    values: list[float], higher: bool, decades: float, is_open: bool
) -> None:
    mean = pd.Series(values, index=[10.0 ** (i - 4) for i in range(len(values))])
    best = mean.index[len(values) // 2]
    assert robust_decades(mean, best, higher=higher) == (pytest.approx(decades), is_open)


@pytest.mark.parametrize(
    ("tried", "edge", "further"),
    [
        ([1e-3, 3e-3, 1e-2], "upper", 3e-2),
        ([1e-3, 3e-3], "upper", 1e-2),
        ([1e-3, 3e-3], "lower", 3e-4),
        ([3e-4, 1e-3], "lower", 1e-4),
        ([2e-3, 5e-3], "upper", 1e-2),
        ([2e-3, 5e-3], "lower", 1e-3),
    ],
)
def test_the_grid_goes_on_by_half_decades(
    tried: list[float], edge: str, further: float, tmp_path: Path, write_run: WriteRun
) -> None:
    order = tried if edge == "upper" else tried[::-1]
    write_grid(write_run, "decoder", {rate: 3.0 - index / 10 for index, rate in enumerate(order)})
    rates = rate_table(tmp_path / "runs", "rates")
    best = best_rates(rates).iloc[0]
    assert best["edge"] == edge
    assert best["next_rates"] == pytest.approx([further], rel=1e-12)


def test_the_extension_is_the_command_of_the_study_for_one_arm(swept: Path, write_run: WriteRun) -> None:
    write_grid(write_run, "mamba", {1e-3: 2.9, 3e-3: 2.7, 1e-2: 2.4}, seed=101)
    rates = rate_table(swept, "rates")
    given = ["study=rates", "variant=mamba", "seed=100", "optimizer.learning_rate=0.01", "task.path=a b"]
    rates["overrides"] = [given] * len(rates)
    arm = best_rates(rates).set_index("backbone", drop=False).loc["mamba"]
    assert extension(arm, rates) == [
        "-m", "study=rates", "variant=mamba", "task.path=a b", "optimizer.learning_rate=0.03", "seed=100,101",
    ]  # fmt: skip


def arm_of(results: dict[float, list[np.ndarray]]) -> pd.DataFrame:
    """An arm: by rate, of each seed the bits of ten documents of 100 bytes."""
    rows = []
    for rate, seeds in results.items():
        for seed, bits in enumerate(seeds):
            totals = np.stack([bits, np.full(len(bits), 100.0)], axis=1)
            value = bits.sum() / (100 * len(bits))
            rows.append({"learning_rate": rate, "seed": seed, "validation": value, "totals": totals})
    return pd.DataFrame(rows)


def test_the_error_of_a_difference_is_that_of_the_differences_by_document() -> None:
    rng = np.random.default_rng(0)
    texts = rng.normal(250, 40, size=10)  # documents differ much, rates little
    gain = rng.normal(3, 1, size=10)
    arm = arm_of({1e-3: [texts], 3e-3: [texts - gain]})
    expected = gain.std(ddof=1) / math.sqrt(10) / 100
    assert difference_error(arm, 3e-3, 1e-3) == pytest.approx(expected)
    mean = rate_means(arm.assign(direction="lower"))
    assert undecided_rates(arm, mean, 3e-3) == []  # 3 bits of 100 bytes against 0.3
    noisy = arm_of({1e-3: [texts], 3e-3: [texts - rng.normal(0.1, 20, size=10)], 1e-2: [texts + 100]})
    best = float(rate_means(noisy).idxmin())
    assert undecided_rates(noisy, rate_means(noisy), best) == [1e-3 if best == 3e-3 else 3e-3]


def test_the_error_of_a_difference_holds_the_spread_of_seeds_too() -> None:
    texts = np.full(10, 250.0)
    arm = arm_of({1e-3: [texts, texts], 3e-3: [texts - 1, texts - 3]})
    assert difference_error(arm, 1e-3, 3e-3) == pytest.approx(np.std([0.01, 0.03], ddof=1) / math.sqrt(2))


def test_of_records_without_totals_nothing_is_called_undecided(swept: Path) -> None:
    assert best_of(swept)["undecided"].tolist() == [[], []]
