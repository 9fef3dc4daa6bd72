import numpy as np
import pytest

from archbench.experiments.evaluation.text_kinds import (
    CODE,
    END,
    KINDS,
    NUMBER,
    PUNCTUATION,
    REST,
    SPACE,
    START,
    token_kinds,
)


def kinds_of(text: str) -> list[int]:
    data = text.encode()
    return token_kinds(data, np.ones(len(data), dtype=np.int64)).tolist()


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("ab Cd", [START, REST, SPACE, START, REST]),
        ("a, 42.", [START, PUNCTUATION, SPACE, NUMBER, NUMBER, PUNCTUATION]),
        ("v2x", [START, NUMBER, REST]),  # a letter after a digit opens no word
        ("é_", [START, REST, REST]),  # two bytes of one letter
        ("\n\t", [SPACE, SPACE]),
    ],
)
def test_kinds_of_bytes_by_hand(text: str, kinds: list[int]) -> None:
    assert kinds_of(text) == kinds


def test_a_line_that_looks_like_code_is_code_but_for_its_white_space() -> None:
    found = kinds_of("See it.\nx = 3\nEnd")
    assert found[8:14] == [CODE, SPACE, CODE, SPACE, CODE, SPACE]
    assert CODE not in found[:8] + found[14:]


def test_tokens_of_several_bytes_have_the_kind_of_their_first_that_is_no_space() -> None:
    pieces = [b" the", b"m", b"", b"  ", b" 12", b"x", b", ", b"\n y ", b"= 1"]
    found = token_kinds(b"".join(pieces), np.array([len(piece) for piece in pieces])).tolist()
    assert found == [START, REST, END, SPACE, NUMBER, REST, PUNCTUATION, CODE, CODE]
    assert len(KINDS) == 7
