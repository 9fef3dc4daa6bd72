"""The accuracy of a threshold on one number per example, for the shallow baselines of two classes.

Shapes: N examples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Measured(NamedTuple):
    """A number for each example, and the labels (0 or 1)."""

    value_N: NDArray[np.float64]
    label_N: NDArray[np.int64]


def threshold_accuracy(train: Measured, test: Measured) -> float:
    """Return the test accuracy of the best threshold in training, among 41 quantiles and both directions."""
    candidates = [
        (((train.value_N < limit) == (train.label_N == low_label)).mean(), limit, low_label)
        for limit in np.quantile(train.value_N, np.linspace(0, 1, 41))
        for low_label in (0, 1)
    ]
    _, limit, low_label = max(candidates)
    return float(((test.value_N < limit) == (test.label_N == low_label)).mean())
