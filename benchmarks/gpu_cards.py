"""Peak rates of GPUs as specified by their vendors, and measurements as fractions of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Card(NamedTuple):
    """A card's published peaks."""

    flops: float
    """FLOP/s in bfloat16 with float32 sums, of dense matrices."""
    bandwidth: float
    """Bytes/s."""


CARDS = (
    (r"NVIDIA A100.*80GB.*", Card(312e12, 2.0e12)),
    (r"NVIDIA H100 80GB HBM3", Card(989e12, 3.35e12)),
    (r"NVIDIA H200", Card(989e12, 4.8e12)),
    (r"NVIDIA L4", Card(121e12, 0.30e12)),
    (r"NVIDIA GeForce RTX 4090", Card(165e12, 1.01e12)),
)
"""By the full name in CUDA; other versions of a card have other peaks. A MIG slice has no entry."""


def card_named(name: str) -> Card | None:
    """The card of that name; None where it is not known."""
    if " MIG " in name:
        return None
    return next((card for pattern, card in CARDS if re.fullmatch(pattern, name)), None)


def flops_shares(rate: float, measured: Mapping[str, Any], card: Card | None) -> dict[str, float | None]:
    """Model FLOPs utilisation of a rate in FLOP/s."""
    return {
        "mfu_of_matmul": share(rate, measured.get("matmul_flops_per_second")),
        "mfu_of_peak": share(rate, card and card.flops),
    }


def bandwidth_shares(rate: float, measured: Mapping[str, Any], card: Card | None) -> dict[str, float | None]:
    """The share of bandwidth of a rate in bytes/s."""
    return {
        "share_of_memory_rate": share(rate, measured.get("memory_bytes_per_second")),
        "share_of_peak": share(rate, card and card.bandwidth),
    }


def share(rate: float, of: float | None) -> float | None:
    """``rate`` over what is possible; None where that is not known, or is no limit, being exceeded."""
    return rate / of if of and rate <= of else None
