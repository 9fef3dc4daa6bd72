"""Numbers as short text: counts, bytes, floating-point operations, seconds."""

from __future__ import annotations

import math


def si(value: float) -> str:
    """Return a count with three digits and k, M, G or T; ``-`` where there is none."""
    return _scaled(value, 1000.0, ("", "k", "M", "G", "T"))


def size(value: float) -> str:
    """Return bytes with three digits, in KiB, MiB or GiB; ``-`` where there is none."""
    return _scaled(value, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB"))


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return "-"
    if 0 < abs(value) < 0.1:  # with a fixed number of digits, what is small would be 0
        return f"{value:.3g}{units[0]}"
    place = 0
    while abs(value) >= 999.5 and place < len(units) - 1:
        value, place = value / base, place + 1
    digits = 0 if abs(value) >= 99.95 or value == round(value) else 1 if abs(value) >= 9.995 else 2
    return f"{value + 0.0:.{digits}f}{units[place]}"


def flops(value: float) -> str:
    """Return floating-point operations as 1.23e15; ``-`` where there is none."""
    if not math.isfinite(value):
        return "-"
    number, _, exponent = f"{value + 0.0:.2e}".partition("e")
    return f"{number}e{int(exponent)}"


def seconds(value: float) -> str:
    """Return seconds with one digit after the point below 100; ``-`` where there is none."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.3g}" if 0 < abs(value) < 0.1 else f"{value + 0.0:.{0 if abs(value) >= 99.95 else 1}f}"
