"""Short text for counts, bytes, floating-point operations and seconds."""

from __future__ import annotations

import math


def si(value: float) -> str:
    """Return a count with three digits and k, M, G or T; ``-`` for NaN and infinity."""
    return _scaled(value, 1000.0, ("", "k", "M", "G", "T"))


def size(value: float) -> str:
    """Return bytes with three digits, in KiB, MiB or GiB; ``-`` for NaN and infinity."""
    return _scaled(value, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB"))


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return "-"
    if 0 < abs(value) < 0.1:  # a fixed number of digits would round small values to 0
        return f"{value:.3g}{units[0]}"
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / base, power + 1
    digits = 0 if abs(value) >= 99.95 or value == round(value) else 1 if abs(value) >= 9.995 else 2
    return f"{value + 0.0:.{digits}f}{units[power]}"


def flops(value: float) -> str:
    """Return floating-point operations as 1.23e15; ``-`` for NaN and infinity."""
    if not math.isfinite(value):
        return "-"
    mantissa, _, exponent = f"{value + 0.0:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def budget(value: float) -> str:
    """Return the FLOPs of a budget with at most two digits, as 1.3e11 or 4e11."""
    return f"{value:.1e}".replace("e+", "e").replace(".0e", "e")


BOUNDS = {"": "", "at least": "≥ ", "at most": "≤ "}


def multiplier(value: float, bound: str, low: float, high: float) -> str:
    """Return a compute multiplier, or its bound, with its interval: 6.51 [5.36, 7.7], or ≥ 1."""
    number = f"{BOUNDS[bound]}{value:.3g}"
    is_only_bound = bool(bound) and f"{low:.3g}" == f"{value:.3g}" and not math.isfinite(high)
    return number if is_only_bound else number + interval_in_brackets(low, high)


def interval_in_brackets(low: float, high: float) -> str:
    """Return a positive interval, with ∞ for an unknown upper end; empty if nothing is known."""
    if not (low > 0 or math.isfinite(high)):
        return ""
    return f" [{low:.3g}, {high:.3g}]" if math.isfinite(high) else f" [{low:.3g}, ∞]"


def seconds(value: float) -> str:
    """Return seconds, below 100 with one decimal digit; ``-`` for NaN and infinity."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.3g}" if 0 < abs(value) < 0.1 else f"{value + 0.0:.{0 if abs(value) >= 99.95 else 1}f}"
