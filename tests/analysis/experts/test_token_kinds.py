from __future__ import annotations

import re

import pytest

from archbench.analysis.experts.token_kinds import KINDS, SPECIAL, character_kinds, token_kinds


def kind_of(text: str, word: str) -> str:
    """The one kind that all characters of a word have."""
    place = re.search(rf"(?<!\w){re.escape(word)}(?!\w)" if word[0].isalnum() else re.escape(word), text)
    assert place is not None
    found = {KINDS[kind] for kind in character_kinds(text)[place.start() : place.end()]}
    assert len(found) == 1, found
    return found.pop()


TEXT = "The method calls Python for each of 32 items, and it stopped using os.path.\nReturns a_b or Unix é.\n"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("The", "connective"), ("and", "connective"), ("or", "connective"),
        ("method", "other"), ("items", "other"), ("é", "other"),
        ("calls", "verb"), ("stopped", "verb"), ("using", "verb"), ("Returns", "verb"),
        ("Python", "name"), ("Unix", "name"),
        ("for", "function"), ("it", "function"),
        ("32", "number"), (",", "punctuation"), (" ", "whitespace"), ("\n", "whitespace"),
        ("os.path", "code"), ("a_b", "code"),
    ],
)  # fmt: skip
def test_words_have_the_kind_of_their_lists_and_spelling(word: str, kind: str) -> None:
    assert kind_of(TEXT, word) == kind


def test_a_capital_that_opens_a_sentence_makes_no_name() -> None:
    assert kind_of("It ends. Window here", "Window") == "other"
    assert kind_of("See Window here", "Window") == "name"


@pytest.mark.parametrize(
    "line", [">>> f(1)", "x = 3", "    return x(y)", "def f(a):", "stmt ::= target", "   f(3)", "@property"]
)
def test_all_of_a_line_of_code_is_code(line: str) -> None:
    kinds = {KINDS[kind] for kind in character_kinds(line)}
    assert kinds <= {"code", "whitespace"}


def test_a_token_has_the_kind_of_its_word_and_bytes_that_are_no_text_stay_bytes() -> None:
    kinds, code = token_kinds([b"the", b" meth", b"od", b" ", b"", b"\xc3", b"\xa9t\xff\n", b"x ", b"= 1"])
    names = [KINDS[kind] for kind in kinds]
    assert names[:4] == ["connective", "other", "other", "whitespace"]
    assert kinds[4] == SPECIAL
    assert names[5:7] == ["other", "other"]  # both bytes of one letter
    assert names[7:] == ["code", "code"]
    assert code.tolist() == [False] * 7 + [True] * 2
