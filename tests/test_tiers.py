"""The two tiers run every test once, and the fast one something of each function that is not too slow."""

from tests.tiers import CASE_SECONDS, FUNCTION_SECONDS, RECORDED_FROM, UNRECORDED, choose_cases, duration


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
