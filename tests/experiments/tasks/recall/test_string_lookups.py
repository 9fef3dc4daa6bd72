"""n-gram lookup and the phone book."""

import numpy as np
import pytest

from archbench.experiments.tasks.recall.ngram_lookup import NgramLookup, NgramLookupConfig
from archbench.experiments.tasks.recall.phone_book import PhoneBook, PhoneBookConfig


def letters(text: str) -> list[int]:
    """a to z as tokens, the separator and the filler."""
    return [{"|": 27, "_": 0}.get(c, ord(c) - ord("a") + 1) for c in text]


@pytest.mark.parametrize(
    ("first", "shown", "answer"),
    [
        (False, "repeatafterme|eat__", "af"),
        (False, "abcabd|ab__", "ca"),  # the first occurrence counts
        (True, "eat|repeatafterme|__", "af"),
    ],
)
def test_what_follows_the_letters_by_hand(first: bool, shown: str, answer: str) -> None:
    task = NgramLookup(NgramLookupConfig(answer_length=2, question_first=first))
    assert task.solve(letters(shown), [len(shown) - 2, len(shown) - 1]) == letters(answer)


def test_every_place_of_the_string_is_asked_for_equally_often() -> None:
    task = NgramLookup(NgramLookupConfig(sequence_length=26, answer_length=2))
    places = []
    for tokens in task.batch("train", 0, 0, 3200).tokens_BT.tolist():
        string, question = tokens[:20], tokens[21:24]
        places.append(next(i for i in range(20) if string[i : i + 3] == question))
        assert tokens[20] == 27
        assert tokens[24:] == string[places[-1] + 3 : places[-1] + 5]
    counts = np.bincount(places)
    assert len(counts) == 16
    assert ((counts - 200) ** 2 / 200).sum() < 37.7  # 15 degrees, p = 0.001


def test_the_phone_book_by_hand() -> None:
    task = PhoneBook(PhoneBookConfig(num_digits=2))
    ann, bob, lee, kim = 11, 12, 27, 28
    shown = [0, 0, ann, lee, 3, 4, ann, kim, 5, 6, bob, lee, 7, 8, ann, kim, 0, 0]
    assert task.solve(shown, [16, 17]) == [5, 6]


def test_the_book_has_as_many_entries_as_fit_and_no_name_twice() -> None:
    task = PhoneBook(PhoneBookConfig(sequence_length=64, num_digits=4))
    asked = []
    for tokens in task.batch("train", 0, 0, 900).tokens_BT.tolist():
        assert tokens[:4] == [0, 0, 0, 0]
        entries = [tokens[start : start + 6] for start in range(4, 64, 6)]
        book = {tuple(entry[:2]): entry[2:] for entry in entries[:-1]}
        assert len(book) == 9
        assert all(11 <= first < 27 <= last < 43 for first, last in book)
        assert all(1 <= digit <= 10 for number in book.values() for digit in number)
        assert entries[-1][2:] == book[tuple(entries[-1][:2])]
        asked.append(list(book).index(tuple(entries[-1][:2])))
    assert ((np.bincount(asked, minlength=9) - 100) ** 2 / 100).sum() < 26.1  # 8 degrees, p = 0.001


def test_the_number_of_a_random_entry_reaches_what_its_line_says() -> None:
    task = PhoneBook(PhoneBookConfig())
    rng, found = np.random.default_rng(0), []
    for tokens in task.batch("test", 0, 0, 2000).tokens_BT.tolist():
        start = 4 + 6 * int(rng.integers(9))
        found.append(np.mean(np.equal(tokens[start + 2 : start + 6], tokens[-4:])))
    assert abs(np.mean(found) - task.guesses()[0].value) < 4 * np.std(found) / 2000**0.5


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (NgramLookupConfig, {"sequence_length": 9}, "sequence_length=9 must be at least 10"),
        (NgramLookupConfig, {"ngram": 0}, "ngram=0, .* must be at least 1"),
        (PhoneBookConfig, {"num_names": 1}, "num_names=1 must be at least 1 and 2"),
        (PhoneBookConfig, {"sequence_length": 17}, "two entries and a question need 18"),
        (PhoneBookConfig, {"num_names": 2}, "gives 4 full names, .* room for 9 entries: take more names"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(config, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    tasks = (
        NgramLookup(NgramLookupConfig(sequence_length=16)),
        PhoneBook(PhoneBookConfig(sequence_length=18)),
    )
    assert [task.batch("train", 0, 0, 1).tokens_BT[0].tolist() for task in tasks] == EXAMPLES


EXAMPLES = [
    [9, 22, 6, 24, 2, 20, 23, 18, 2, 24, 22, 27, 18, 2, 24, 22],
    [13, 35, 8, 10, 1, 8, 23, 34, 2, 4, 3, 6, 23, 34, 2, 4, 3, 6],
]
