"""The two tiers run every test once, and the fast one something of each function that is not too slow."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiers import (
    CASE_SECONDS,
    FUNCTION_SECONDS,
    RECORDED_FROM,
    UNRECORDED,
    choose_cases,
    duration,
    parse_shard,
    shard_files,
)


def test_short_functions_are_taken_whole() -> None:
    cases = [(f"test_a[{number}]", FUNCTION_SECONDS / 10) for number in range(8)]
    assert sorted(choose_cases(cases)) == [name for name, _ in cases]


def test_of_long_functions_some_cases_are_taken() -> None:
    cases = [(f"test_a[{number}]", FUNCTION_SECONDS / 2.5) for number in range(20)]
    assert len(choose_cases(cases)) == 2
    assert choose_cases(cases[::-1]) == choose_cases(cases)


def test_one_case_is_taken_where_all_are_long() -> None:
    assert len(choose_cases([(f"test_a[{number}]", 2 * FUNCTION_SECONDS) for number in range(3)])) == 1


def test_no_case_is_taken_that_is_too_long() -> None:
    assert choose_cases([("test_a", CASE_SECONDS + 1)]) == []


def test_what_is_not_listed_is_short_in_a_recorded_file_and_unknown_in_another() -> None:
    recorded = {"a.py": {"test_a[1]": 2.0}}
    assert duration(recorded, "a.py::test_a[1]") == 2.0
    assert duration(recorded, "a.py::test_b") < RECORDED_FROM
    assert duration(recorded, "b.py::test_b") == UNRECORDED


def test_shards_hold_every_file_once_and_about_the_same_seconds() -> None:
    recorded = {
        f"{name}.py": {"test_a": seconds} for name, seconds in zip("abcdefg", range(1, 8), strict=True)
    }
    items: list[Any] = [SimpleNamespace(nodeid=f"{file}::test_a") for file in recorded]
    shards = [shard_files(items, recorded, number, 3) for number in (1, 2, 3)]
    assert sorted(file for shard in shards for file in shard) == sorted(recorded)
    seconds = [sum(recorded[file]["test_a"] for file in shard) for shard in shards]
    assert max(seconds) - min(seconds) <= 2


@pytest.mark.parametrize("words", ["0/4", "5/4", "2", "a/b", "1/0"])
def test_a_shard_that_there_is_not_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="such as 2/4"):
        parse_shard(words)
