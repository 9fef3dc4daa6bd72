"""The record of a metric, and the formulas of those computed over a whole split.

Shapes: N examples of a split, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.tasks.likelihood import LIKELIHOOD_TYPES

DIRECTIONS = ("lower", "higher")
AVERAGINGS = ("micro", "macro")
JACKKNIFE_GROUPS = 100
"""Groups of examples left out in turn; every example alone, where there are no more than these."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that a table may show, with all that is needed to read it.

    Raises ValueError where a field has no valid value: numbers are compared by these words.
    """

    name: str
    split: str
    value: float
    unit: str
    """Empty for a number without one."""
    direction: str
    """The better direction, ``lower`` or ``higher``."""
    averaging: str
    """``micro`` (all items count alike) or ``macro`` (a mean of means), a colon, and over what."""
    likelihood: str | None
    """Likelihood type, from ``LIKELIHOOD_TYPES``; None where the metric is no likelihood."""
    estimator: str
    samples: int
    """Random draws for each item; 1 where nothing is drawn."""
    standard_error: float
    """Of the mean over the items of this evaluation; says nothing of other seeds."""
    items: int
    """Sequences, texts or examples that were scored."""

    def __post_init__(self) -> None:
        if not self.name or self.direction not in DIRECTIONS:
            raise ValueError(f"metric {self.name!r}: direction={self.direction!r} is none of {DIRECTIONS}")
        kind, colon, over = self.averaging.partition(": ")
        if kind not in AVERAGINGS or not colon or not over:
            raise ValueError(
                f"metric {self.name}: averaging={self.averaging!r} must be 'micro: ...' or 'macro: ...'"
            )
        if self.likelihood is not None and self.likelihood not in LIKELIHOOD_TYPES:
            raise ValueError(
                f"metric {self.name}: likelihood={self.likelihood!r} is none of {tuple(LIKELIHOOD_TYPES)}"
            )
        if self.items < 1 or self.samples < 1:
            raise ValueError(
                f"metric {self.name}: items={self.items} and samples={self.samples} must be positive"
            )


def jackknife(statistic: Callable[[NDArray[np.int64]], float], num_items: int) -> float:
    """Standard error of ``statistic``, a function of the numbers of the examples it is computed from.

    Delete-a-group jackknife (Efron and Stein 1981; Shao and Tu 1995, section 2.3): it needs no
    formula of the statistic's own, and nothing is drawn.
    """
    groups = np.array_split(np.arange(num_items), min(num_items, JACKKNIFE_GROUPS))
    if len(groups) < 2:
        raise ValueError(f"a standard error needs 2 examples or more, got {num_items}")
    values_G = np.array([statistic(np.delete(np.arange(num_items), group)) for group in groups])
    spread = ((values_G - values_G.mean()) ** 2).sum()
    return math.sqrt((len(groups) - 1) / len(groups) * spread)


def split_metrics(
    statistics: dict[str, Callable[[NDArray[np.int64]], float]],
    num_items: int,
    split: str,
    *,
    first: str,
    unit: str,
    estimator: str,
    macro: Sequence[str] = (),
) -> list[Metric]:
    """Statistics of a whole split, each with its standard error; the higher, the better.

    Args:
        statistics: by name, functions of the numbers of the examples they are computed from.
        first: the one that the table shows.
        macro: those that are means over classes; the others count all examples alike.
    """
    names = sorted(statistics, key=lambda name: name != first)
    return [
        Metric(
            name=name,
            split=split,
            value=statistics[name](np.arange(num_items)),
            unit=unit,
            direction="higher",
            averaging="macro: mean over the classes" if name in macro else "micro: over the whole split",
            likelihood=None,
            estimator=estimator,
            samples=1,
            standard_error=jackknife(statistics[name], num_items),
            items=num_items,
        )
        for name in names
    ]


def accuracy(label_N: NDArray[np.int64], guess_N: NDArray[np.int64]) -> float:
    """Return the fraction of the guesses that are right."""
    return float((label_N == guess_N).mean())


def macro_f1(label_N: NDArray[np.int64], guess_N: NDArray[np.int64]) -> float:
    """Mean F1, 2 TP / (2 TP + FP + FN), over the classes that occur among labels or guesses."""
    from sklearn.metrics import f1_score  # takes a second, which every command would wait

    return float(f1_score(label_N, guess_N, average="macro", zero_division=0.0))


def matthews(label_N: NDArray[np.int64], guess_N: NDArray[np.int64]) -> float:
    """Matthews correlation of labels and guesses; 0 where either is constant.

    Matthews 1975 for two classes, Gorodkin 2004 (equation 8) for more.
    """
    if np.ptp(label_N) == 0 or np.ptp(guess_N) == 0:
        return 0.0  # scikit-learn would say the same, with a warning
    from sklearn.metrics import matthews_corrcoef  # takes a second, which every command would wait

    return float(matthews_corrcoef(label_N, guess_N))


def pearson(true_N: NDArray[np.float64], guess_N: NDArray[np.float64]) -> float:
    """Linear correlation; 0 where either is constant."""
    if np.ptp(true_N) == 0 or np.ptp(guess_N) == 0:
        return 0.0
    return float(np.corrcoef(true_N, guess_N)[0, 1])


def spearman(true_N: NDArray[np.float64], guess_N: NDArray[np.float64]) -> float:
    """Correlation of the ranks, ties sharing their mean rank; 0 where either is constant."""
    from scipy import stats  # takes most of a second, which every command would wait

    return pearson(stats.rankdata(true_N), stats.rankdata(guess_N))
