"""The fast tier runs something of each test function that is not too slow."""

from types import SimpleNamespace

import pytest

from tests import ROOT
from tests.tiers import (
    CASE_SECONDS,
    FUNCTION_SECONDS,
    RECORDED_FROM,
    TIERS,
    UNRECORDED,
    choose_cases,
    duration,
    of_tier,
    slower_than_recorded,
    sort_files,
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


def test_a_test_that_has_become_slow_is_named_unless_it_is_known_to_be() -> None:
    recorded = {"a.py": {"test_a": 30.0, "test_b": 0.1}}
    seconds = {"a.py::test_a": 40.0, "a.py::test_b": 1.0, "a.py::test_c": 3.0, "b.py::test_d": 9.0}
    assert slower_than_recorded(seconds, recorded) == [("b.py::test_d", 9.0), ("a.py::test_c", 3.0)]


def test_processor_seconds_of_a_test_and_its_processes_are_recorded(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyfile("""
        import subprocess, sys, time

        BUSY = "import time; end = time.process_time() + 0.4\\nwhile time.process_time() < end: pass"

        def test_here(): exec(BUSY)
        def test_there(): subprocess.run([sys.executable, "-c", BUSY])
        def test_asleep(): time.sleep(0.4)
    """)
    recorded: dict[str, float] = {}

    class Reader:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            recorded[report.nodeid.partition("::")[2]] = (
                recorded.get(report.nodeid.partition("::")[2], 0.0) + report.processor_seconds
            )

    assert pytester.inline_run("--tier=all", "-p", "no:cacheprovider", plugins=[Reader()]).ret == 0
    assert min(recorded["test_here"], recorded["test_there"]) > 0.35 > recorded["test_asleep"]


def test_a_session_of_limited_time_orders_files_by_commit_and_skips_the_rest(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    names = [f"test_{number}" for number in range(8)]
    for name in names:
        pytester.makepyfile(**{name: "def test_it(): pass"})
    words = ("--tier=all", "-p", "no:cacheprovider")
    assert pytester.inline_run(*words, "--seconds=600").countoutcomes() == [8, 0, 0]
    assert pytester.inline_run(*words, "--seconds=-1").countoutcomes() == [0, 8, 0]


@pytest.mark.parametrize("turn", [0, 1])
def test_the_order_of_files_changes_with_each_turn_and_keeps_files_together(turn: int) -> None:
    items = [SimpleNamespace(nodeid=f"{file}.py::test_{each}") for each in range(3) for file in "abcdefgh"]
    ordered = list(items)
    sort_files(ordered, {}, turn)
    files = [item.nodeid.partition(":")[0] for item in ordered]
    assert files == [file for file in dict.fromkeys(files) for _ in range(3)]
    other = list(items)
    sort_files(other, {}, turn + 1)
    assert other != ordered
    assert sorted(item.nodeid for item in ordered) == sorted(item.nodeid for item in items)


def test_every_test_is_fast_or_slow() -> None:
    recorded = {"a.py": {"test_a": 2.0, "test_b": 0.3}}
    items = [SimpleNamespace(nodeid=f"a.py::test_{x}", get_closest_marker=lambda name: None) for x in "abc"]
    parts = {tier: [item.nodeid for item in of_tier(items, recorded, tier)] for tier in TIERS}
    assert parts["slow"] == ["a.py::test_a"]
    assert sorted(parts["fast"] + parts["slow"]) == parts["all"]
