"""The record of a metric with its type of likelihood, and the formulas of those computed over a full split.

Shapes: N examples of a split, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.runtime.console import plural, standard_error_over
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.json_state import Number

LIKELIHOOD_TYPES = {
    "exact": "the model's own probability of the text, by the chain rule",
    "conditional": "the model's own probability of a part of the text given the text before it, by the "
    "chain rule: exact, but not of the whole text",
    "bound": "an upper bound on the bits: the true value is this or lower",
    "pseudo": "each token given all others: not a probability of the text, neither above nor below it",
}
"""The types and their meaning, in the order that tables show them. Scores of different types are never ranked
against each other without saying so. A metric that is no likelihood has none."""


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """The type of an objective's likelihood, and how it is estimated."""

    kind: str
    """Likelihood type, from ``LIKELIHOOD_TYPES``."""
    estimator: str
    """Description of the estimator of the nats."""
    samples: int
    """Random draws for each sequence; 1 if the estimator is deterministic."""


DIRECTIONS = ("lower", "higher")
AVERAGINGS = ("micro", "macro")
WHOLE, SAMPLE, GENERATED = "whole split", "random sample", "generated examples"
SCORED = (WHOLE, SAMPLE, GENERATED)
"""Parts of a split that are scored: all of it, items drawn at random by a fixed seed, or the first of a split
that never runs out."""
DOCUMENTS = 1000
"""Maximum number of documents of a text with scores of their own; more are put into this many groups."""
JACKKNIFE_GROUPS = 100
"""Maximum number of groups left out in turn; a group is one example if there are no more examples."""


@dataclass(frozen=True, kw_only=True)
class SliceTotals:
    """Sums over the tokens of a slice of the text, as parts of a score in bits per byte."""

    by: str
    """The grouping that it is a slice of, such as ``recall``; its slices add up to the score."""
    name: str
    bits: Number
    tokens: Number
    """Tokens that the bits were measured on."""
    bytes: Number
    cluster_totals: list[list[Number]]
    """Bits and tokens of each cluster of the metric, or of groups of them."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The value of a metric, with everything that is needed to interpret it.

    Raises ValueError where a field has no valid value, because only metrics with equal fields are compared.
    """

    name: str
    split: str
    value: Number
    unit: str
    """Empty for a number without one."""
    direction: str
    """The better direction, ``lower`` or ``higher``."""
    averaging: str
    """``micro`` (equal weight for each item) or ``macro`` (a mean of means), a colon, and over what."""
    likelihood: str | None
    """Likelihood type, from ``LIKELIHOOD_TYPES``; None where the metric is no likelihood."""
    estimator: str
    samples: int
    """Random draws for each item; 1 if the estimator is deterministic."""
    standard_error: Number
    """Over the ``clusters`` of this evaluation: variation between test items, not between seeds."""
    items: int
    """Sequences, texts or examples that were scored."""
    clusters: int | None = None
    """Independent groups of items that the standard error is over; None where every item is one."""
    clustered_by: str = "example"
    """Unit that makes a cluster, such as ``document``."""
    scored: str | None = None
    """Which part of the split: one of ``SCORED``."""
    available: int | None = None
    """Items of the complete split; None where it is unlimited."""
    window: int | None = None
    """Tokens of a window of text, the context included."""
    stride: int | None = None
    """Tokens that a window of text scores at most; each has ``window - stride`` tokens or more before it, but
    in the first window of the split."""
    sampling_error: Number | None = None
    """The part of the standard error that scoring the complete split would remove; 0 for a complete split."""
    lossy_documents: int | None = None
    """Texts of the split that the tokenizer does not restore, such as those with unknown
    words; None without any. A model need not predict what the tokenizer loses, so its bits per byte are not
    comparable with those of other tokenizers."""
    cluster_totals: list[list[Number]] | None = None
    """The two sums of each cluster; their ratio over all clusters is the value (bits and bytes, or right
    answers and examples); of more than ``JACKKNIFE_GROUPS`` clusters (``DOCUMENTS`` of a text), of this many
    groups of them. The
    standard error of a difference of two models on the same items follows from them."""
    slices: list[SliceTotals] | None = None
    """The part of the score that each slice of the text adds, on the test split of a text task."""

    def __post_init__(self) -> None:
        if not self.name or self.direction not in DIRECTIONS:
            raise ValueError(f"metric {self.name!r}: direction={self.direction!r} is not one of {DIRECTIONS}")
        kind, colon, over = self.averaging.partition(": ")
        if kind not in AVERAGINGS or not colon or not over:
            raise ValueError(
                f"metric {self.name}: averaging={self.averaging!r} must be 'micro: ...' or 'macro: ...'"
            )
        if self.likelihood is not None and self.likelihood not in LIKELIHOOD_TYPES:
            raise ValueError(
                f"metric {self.name}: likelihood={self.likelihood!r} is not one of {tuple(LIKELIHOOD_TYPES)}"
            )
        if self.scored is not None and self.scored not in SCORED:
            raise ValueError(f"metric {self.name}: scored={self.scored!r} is not one of {SCORED}")
        if self.items < 1 or self.samples < 1:
            raise ValueError(
                f"metric {self.name}: items={self.items} and samples={self.samples} must be positive"
            )

    def extent(self) -> str:
        """Return a description of what was scored, and what the standard error is over."""
        part = plural(self.items, "example")
        if self.available:
            part = f"{self.items:,} of {plural(self.available, 'item')}"
        if self.scored == WHOLE:
            part = f"{self.scored}, {plural(self.items, 'item')}"
        if self.stride is not None:
            part += f", windows of {self.window} tokens of which each scores {self.stride}"
        if self.lossy_documents:
            part += f", the tokenizer loses text of {self.lossy_documents:,} documents"
        clusters = self.items if self.clusters is None else self.clusters
        return f"{part}; {standard_error_over(clusters, self.clustered_by)}"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A line to read a result against: chance, an entropy, a compressor."""

    name: str
    """Names that begin with chance, random, majority, uniform, unigram or bigram, and lines with the note
    ``chance``, are trivial baselines: a model that is no better is not ranked (``analysis.stats.arms``)."""
    metric: str
    value: Number
    note: str = ""
    split: str = "test"
    """The split that it is of: it is no line for another."""
    items: int | None = None
    """Examples it was measured on; None where it is a formula, or of the whole split."""


def ratio_standard_error(
    numerator_N: NDArray[np.float64], denominator_N: NDArray[np.float64], cluster_N: NDArray[Any]
) -> tuple[float, int]:
    """Return the standard error of a ratio of sums over items, and the number of clusters.

    The items of a cluster, such as the windows of a document, are not independent: the error is over the
    clusters' totals (ratio estimator, linearised: Cochran 1977, section 9A.5). NaN for a single cluster.
    """
    _, number_N = np.unique(cluster_N, return_inverse=True)
    with np.errstate(invalid="ignore"):  # a loss that is infinite has no standard error
        residual_N = numerator_N - numerator_N.sum() / denominator_N.sum() * denominator_N
    residual_C = np.bincount(number_N, residual_N)
    clusters = len(residual_C)
    if clusters < 2:
        return math.nan, clusters
    spread = (residual_C**2).sum() * clusters / (clusters - 1)
    return math.sqrt(spread) / float(denominator_N.sum()), clusters


def cluster_totals(
    numerator_N: NDArray[np.float64],
    denominator_N: NDArray[np.float64],
    cluster_N: NDArray[Any],
    groups: int = JACKKNIFE_GROUPS,
) -> list[list[float]]:
    """Return the sums of both over each cluster, or over at most ``groups`` groups of clusters."""
    number_N = np.unique(cluster_N, return_inverse=True)[1] % groups
    return [
        list(pair)
        for pair in zip(
            *(np.bincount(number_N, x_N).tolist() for x_N in (numerator_N, denominator_N)), strict=True
        )
    ]


def jackknife(
    statistic: Callable[[NDArray[np.int64]], float],
    num_items: int,
    cluster_N: NDArray[Any] | None = None,
) -> float:
    """Standard error of ``statistic``, a function of the indices of the examples it is computed from.

    Delete-a-group jackknife (Efron and Stein 1981; Shao and Tu 1995, section 2.3): it needs no
    formula for the statistic, and is deterministic. The examples of a cluster stay together; NaN for a
    single one.
    """
    number_N = np.arange(num_items) if cluster_N is None else np.unique(cluster_N, return_inverse=True)[1]
    clusters = int(number_N.max(initial=-1)) + 1
    groups = np.array_split(np.arange(clusters), min(clusters, JACKKNIFE_GROUPS))
    if len(groups) < 2 and cluster_N is not None:
        return math.nan
    if len(groups) < 2:
        raise ValueError(f"a standard error needs 2 examples or more, got {num_items}")
    values_G = np.array([statistic(np.flatnonzero(~np.isin(number_N, group))) for group in groups])
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
    cluster_N: NDArray[Any] | None = None,
) -> list[Metric]:
    """Statistics of a split, each with its standard error; the higher, the better.

    Args:
        statistics: by name, functions of the indices of the examples they are computed from.
        first: the one that is printed in tables.
        macro: those that are means over classes; all other statistics weight examples equally.
        cluster_N: of the examples, for the standard error; NaN if it is the same for all. None requires two
            examples or more.
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
            standard_error=jackknife(statistics[name], num_items, cluster_N),
            items=num_items,
        )
        for name in names
    ]


def accuracy(label_N: NDArray[np.int64], guess_N: NDArray[np.int64]) -> float:
    """Return the fraction of the guesses that are right."""
    return float((label_N == guess_N).mean())


def macro_f1(label_N: NDArray[np.int64], guess_N: NDArray[np.int64]) -> float:
    """Mean F1, 2 TP / (2 TP + FP + FN), over the classes that occur among labels or guesses."""
    from sklearn.metrics import f1_score  # imports in a second, which would delay every command

    return float(f1_score(label_N, guess_N, average="macro", zero_division=0.0))


def matthews(label_N: NDArray[np.int64], guess_N: NDArray[np.int64]) -> float:
    """Matthews correlation of labels and guesses; 0 where either is constant.

    Matthews 1975 for two classes, Gorodkin 2004 (equation 8) for more.
    """
    if np.ptp(label_N) == 0 or np.ptp(guess_N) == 0:
        return 0.0  # scikit-learn would say the same, with a warning
    from sklearn.metrics import matthews_corrcoef  # imports in a second, which would delay every command

    return float(matthews_corrcoef(label_N, guess_N))


def pearson(true_N: NDArray[np.float64], guess_N: NDArray[np.float64]) -> float:
    """Linear correlation; 0 where either is constant, NaN where a guess is not finite."""
    if not np.isfinite(guess_N).all():
        return math.nan
    if np.ptp(true_N) == 0 or np.ptp(guess_N) == 0:
        return 0.0
    return float(np.corrcoef(true_N, guess_N)[0, 1])


def spearman(true_N: NDArray[np.float64], guess_N: NDArray[np.float64]) -> float:
    """Correlation of the ranks, ties sharing their mean rank; 0 where either is constant."""
    from scipy import stats  # imports in almost a second, which would delay every command

    return pearson(stats.rankdata(true_N), stats.rankdata(guess_N))


def bits_per_byte(nats: float, num_bytes: float) -> float:
    """Return ``nats / num_bytes / log 2``: the bits that a model needs for a byte of text.

    The bytes are those of the text that the tokenizer received, in UTF-8, so that tokenizers can be compared.
    Special tokens have none; their nats count where the objective scores them.

    Raises:
        DataError: the text is empty.
    """
    if num_bytes <= 0:
        raise DataError("the scored tokens have no text: there are no bits per byte of it")
    return nats_to_bits(nats / num_bytes)


@overload
def nats_to_bits(nats: float) -> float: ...
@overload
def nats_to_bits(nats: NDArray[np.float64]) -> NDArray[np.float64]: ...
def nats_to_bits(nats: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
    """Return ``nats / log 2``."""
    return nats / math.log(2)


def bits_to_nats(bits: float) -> float:
    """Return ``bits * log 2``."""
    return bits * math.log(2)


def bits_per_byte_metric(
    value: float,
    *,
    split: str,
    likelihood: Likelihood,
    standard_error: float,
    items: int,
) -> Metric:
    """Return the metric of a split with ``value`` bits per byte, pooled over ``items`` texts."""
    return Metric(
        name="bits_per_byte",
        split=split,
        value=value,
        unit="bits/byte",
        direction="lower",
        averaging="micro: all bits over all bytes",
        likelihood=likelihood.kind,
        estimator=likelihood.estimator,
        samples=likelihood.samples,
        standard_error=standard_error,
        items=items,
    )
