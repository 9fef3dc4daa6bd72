import pytest

from architectures.layers.layer_pattern import check_pattern, spread


@pytest.mark.parametrize(
    ("pattern", "count", "expected"),
    [
        ("MAMM", 6, "M A M M M A"),
        ("7M1A", 9, "M M M M M M M A M"),
        ("2MA+S", 5, "M M A+S M M"),
        ("12M", 3, "M M M"),
        ("2A+S3M", 6, "A+S A+S M M M A+S"),
    ],
)
def test_patterns_are_spread_over_the_layers(pattern: str, count: int, expected: str) -> None:
    assert spread(pattern, count) == expected.split()


@pytest.mark.parametrize("pattern", ["", "M2", "0M", "A+", "+A", "ma", "M A", "A++S", "2", "M-"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"layers='.*' is no pattern of layers: write letters such as 7M1A"):
        check_pattern("layers", pattern, ["M", "A", "S"], joined=True)


def test_unknown_letters_are_named_with_the_known_ones() -> None:
    check_pattern("layers", "3MA+S", ["M", "A", "S"], joined=True)
    with pytest.raises(ValueError, match=r"layers='MXA\+Q' has Q, X: the letters are M, A"):
        check_pattern("layers", "MXA+Q", ["M", "A"], joined=True)


def test_only_mixers_are_joined() -> None:
    with pytest.raises(ValueError, match=r"kinds='F\+E' is no pattern of layers: write letters such as FE"):
        check_pattern("kinds", "F+E", ["F", "E"], joined=False)
