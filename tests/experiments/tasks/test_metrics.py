import math

import numpy as np
import pytest
from scipy import stats

from archbench.experiments.tasks.metrics import (
    Metric,
    accuracy,
    jackknife,
    macro_f1,
    matthews,
    pearson,
    ratio_standard_error,
    spearman,
    split_metrics,
)


def test_accuracy_f1_and_matthews_by_hand():
    """Confusion: 3 of class 1 right, 1 missed, 2 false alarms, 4 of class 0 right."""
    label = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    guess = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    assert accuracy(label, guess) == pytest.approx(7 / 10)
    # Class 1: 2*3 / (2*3 + 2 + 1); class 0: 2*4 / (2*4 + 1 + 2).
    assert macro_f1(label, guess) == pytest.approx((6 / 9 + 8 / 11) / 2)
    expected = (3 * 4 - 2 * 1) / math.sqrt((3 + 2) * (3 + 1) * (4 + 2) * (4 + 1))
    assert matthews(label, guess) == pytest.approx(expected)


def test_the_error_of_a_ratio_to_items_of_one_size_is_that_of_a_mean():
    value = np.array([0.2, 0.5, 0.9, 0.4])
    found, clusters = ratio_standard_error(value, np.ones(4), np.arange(4))
    assert (found, clusters) == (pytest.approx(stats.sem(value)), 4)


def test_matthews_ends_and_constant_guesses():
    label = np.array([0, 1, 2, 1, 0, 2])
    assert matthews(label, label) == pytest.approx(1)
    assert matthews(np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])) == pytest.approx(-1)
    assert matthews(label, np.zeros(6, dtype=np.int64)) == 0


def test_classes_that_do_not_occur_do_not_count():
    assert macro_f1(np.array([0, 5, 5]), np.array([0, 5, 5])) == 1
    assert macro_f1(np.array([0, 0, 1]), np.array([0, 0, 2])) == pytest.approx(1 / 3)


def test_correlations():
    true, guess = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])
    assert spearman(true, guess) == pytest.approx(1)
    deviations = guess - guess.mean()
    by_hand = ((true - 2.5) * deviations).sum() / math.sqrt(5 * (deviations**2).sum())
    assert pearson(true, guess) == pytest.approx(by_hand)
    assert by_hand < 0.99
    assert pearson(true, np.ones(4)) == spearman(np.ones(4), guess) == 0
    rng = np.random.default_rng(1)
    tied = rng.integers(4, size=50).astype(float)
    noisy = tied + rng.normal(size=50)
    assert spearman(tied, noisy) == pytest.approx(stats.spearmanr(tied, noisy).statistic)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    for n in (2, 37, 100):
        x = np.random.default_rng(n).normal(size=n)
        expected = x.std(ddof=1) / math.sqrt(n)
        assert jackknife(lambda kept, x=x: x[kept].mean(), n) == pytest.approx(expected)
    with pytest.raises(ValueError, match="got 1"):
        jackknife(lambda kept: 0.0, 1)


def test_the_jackknife_by_groups_is_near_what_repeated_experiments_vary_by():
    rng = np.random.default_rng(0)
    found, values = [], []
    for _ in range(150):
        x = rng.normal(size=(450, 2))
        y = x[:, 0] + x[:, 1]
        found.append(jackknife(lambda kept, x=x, y=y: pearson(x[kept, 0], y[kept]), 450))
        values.append(pearson(x[:, 0], y))
    assert np.mean(found) == pytest.approx(np.std(values), rel=0.15)


def test_the_metric_of_the_table_comes_first():
    x = np.arange(10.0)
    metrics = split_metrics(
        {"small": lambda kept: x[kept].min(), "mean": lambda kept: x[kept].mean()},
        10,
        "test",
        first="mean",
        unit="share",
        estimator="none",
    )
    assert [(m.name, m.value, m.items, m.direction) for m in metrics] == [
        ("mean", 4.5, 10, "higher"),
        ("small", 0.0, 10, "higher"),
    ]
    assert metrics[0].standard_error == pytest.approx(x.std(ddof=1) / math.sqrt(10))


SAID = {
    "name": "bits_per_byte", "split": "test", "value": 2.0, "unit": "bits/byte", "direction": "lower",
    "averaging": "micro: all bits over all bytes", "likelihood": "bound", "estimator": "chain rule",
    "samples": 1, "standard_error": 0.1, "items": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("direction", "up"),
        ("averaging", "over everything"),
        ("averaging", "micro"),
        ("likelihood", "upper bound"),
        ("items", 0),
        ("samples", 0),
    ],
)
def test_a_metric_says_what_it_is(key, value):
    assert Metric(**SAID).items == 8
    with pytest.raises(ValueError, match=f"{key}=" if value else "direction=|items=|samples="):
        Metric(**{**SAID, key: value})


def test_means_over_classes_are_called_macro():
    statistics = {"accuracy": lambda kept: 0.5, "macro_f1": lambda kept: 0.4}
    found = split_metrics(
        statistics, 4, "test", first="accuracy", unit="", estimator="none", macro=["macro_f1"]
    )
    assert [m.averaging.split(":")[0] for m in found] == ["micro", "macro"]
