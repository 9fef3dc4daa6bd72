"""Bits per byte: the bits that a model needs for a byte of text, comparable between tokenizers.

    bits per byte = sum of -log p of the scored tokens (nats) / bytes of their text / log 2

The bytes are those of the text that the tokenizer received, in UTF-8. Special tokens
have none; their nats count where the objective scores them.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from numpy.typing import NDArray

from experiments.runtime.errors import DataError
from experiments.tasks.likelihood import Likelihood
from experiments.tasks.metrics import Metric


def bits_per_byte(nats: float, num_bytes: float) -> float:
    """Return ``nats / num_bytes / log 2``: the bits per byte of a text of ``num_bytes`` bytes in UTF-8.

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
