"""Numbers as text: every magnitude, sign and NaN reads back as the number; plurals agree with counts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from archbench.analysis.figures.style import log_axis
from archbench.analysis.tables.columns import interval, p_text
from archbench.analysis.tables.format import flops, multiplier, seconds, si, size
from archbench.experiments.runtime.console import clock, count, plural

MAGNITUDES = [0.0, *(m * 10.0**e for e in range(-9, 16) for m in (1, 1.234, 5, 9.994, 9.996, 9.99999))]
UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BYTES = {" B": 1.0, " KiB": 2.0**10, " MiB": 2.0**20, " GiB": 2.0**30, " TiB": 2.0**40}


def read(text: str, units: dict[str, float]) -> float:
    found = re.fullmatch(r"(-?[\d.]+(?:e-?\d+)?)(.*)", text)
    assert found is not None, text
    return float(found[1]) * units[found[2]]


def test_three_digits_are_shown_of_what_is_rounded_up_too() -> None:
    shown = {9.994: "9.99", 9.996: "10.0", 99.94: "99.9", 99.96: "100", 999.6: "1.00k"}
    assert {value: si(value) for value in shown} == shown


@pytest.mark.parametrize(("show", "units"), [(count, UNITS), (si, UNITS), (size, BYTES)])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_read_back(show: Callable[[float], str], units: dict[str, float], sign: int) -> None:
    for value in MAGNITUDES:
        text = show(sign * value)
        assert "e+" not in text
        assert not re.search(r"e\d+[a-zA-Z]", text), text
        assert read(text, units) == pytest.approx(sign * value, rel=0.006, abs=min(0.005, value / 2)), text
        if "P" not in text and value < 9e14:  # the last unit holds what is larger
            number = re.match(r"-?([\d.]+)", text)
            assert number is not None
            assert float(number[1]) < 1024


@pytest.mark.parametrize("sign", [1, -1])
def test_operations_and_seconds_read_back(sign: int) -> None:
    for value in MAGNITUDES:
        assert float(flops(sign * value)) == pytest.approx(sign * value, rel=0.006)
        assert not re.search(r"e[+-]?0\d", flops(value))
        assert float(seconds(sign * value)) == pytest.approx(sign * value, rel=0.006, abs=min(0.05, value))
        assert float(seconds(value)) > 0 or value == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash(value: float) -> None:
    assert {show(value) for show in (count, si, size, flops, seconds, clock)} == {"-"}


def test_a_zero_has_no_sign() -> None:
    assert [show(-0.0) for show in (count, si, size, seconds)] == ["0", "0", "0 B", "0.0"]
    assert interval(-0.0, -0.1, 0.1, 3, "+") == "0.000 ± 0.100"
    assert clock(-0.2) == "0:00"


def test_rounding_up_reaches_the_next_unit() -> None:
    assert [count(value) for value in (999_999, 999_499, -999_999, 999.9e12, 4.2e22)] == [
        "1M", "999k", "-1M", "1P", "4.2e22",
    ]  # fmt: skip


def test_ticks_of_large_axes_have_no_exponent_before_a_unit() -> None:
    ticks = log_axis([1e13, 1e15, 3e17])["ticktext"]
    assert isinstance(ticks, list)
    assert not [text for text in ticks if re.search(r"e[+-]?\d+[kMGTP]", text)]


def test_a_p_value_is_never_zero() -> None:
    assert [p_text(value) for value in (1.0, 0.05, 1e-4, 9e-5, 1e-300, 0.0)] == [
        "= 1", "= 0.05", "= 0.0001", "< 0.0001", "< 0.0001", "< 0.0001",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "run", "0 runs"),
        (1, "run", "1 run"),
        (2, "run", "2 runs"),
        (1024, "token", "1,024 tokens"),
        (1, "passage of 1,024 tokens", "1 passage of 1,024 tokens"),
        (3, "passage of 1,024 tokens", "3 passages of 1,024 tokens"),
        (1, "more seed", "1 more seed"),
        (2, "process", "2 processes"),
        (2.0, "document", "2 documents"),
    ],
)
def test_plurals(number: float, noun: str, text: str) -> None:
    assert plural(number, noun) == text


def test_a_multiplier_shows_what_is_known() -> None:
    assert multiplier(6.51, "", 5.36, 7.7) == "6.51 [5.36, 7.7]"
    assert multiplier(2.56, "", 1.77, math.inf) == "2.56 [1.77, ∞]"
    assert multiplier(3.11, "at least", 2.75, math.inf) == "≥ 3.11 [2.75, ∞]"
    assert multiplier(1.0, "at least", 1.0, math.inf) == "≥ 1"  # the interval would repeat the bound
    assert multiplier(0.5, "at most", 0.0, math.inf) == "≤ 0.5"
