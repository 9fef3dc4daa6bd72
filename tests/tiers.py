"""Which tests `make test` runs; `make test-all` runs all, and the tier ``slow`` all others.

A test marked ``full`` is not in the fast tier, one marked ``fast`` is whatever it takes. Where a test has
both marks, ``full`` decides. Of every other test function, the fast tier takes as many cases as fit into
``FUNCTION_SECONDS`` by the recorded durations, at least one, and none that takes longer than
``CASE_SECONDS``. The choice among the cases of a function is fixed by a hash of their names, so that new
cases leave it as it is.

``tests/durations.json`` holds the recorded seconds, of the processor, so that other work on the machine does
not count. `make durations` refreshes them, ``--record-durations`` those of the tests that are run.
"""

from __future__ import annotations

import functools
import json
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

FUNCTION_SECONDS = 0.05
CASE_SECONDS = 0.5
RECORDED_FROM = 0.05
"""Shorter tests are not listed in the file."""
LATE_SECONDS = 2.0
"""A test of the fast tier that takes longer, though it was recorded as short, is named at the end."""
UNRECORDED = 0.1
"""Seconds that a test counts whose file has never been recorded."""
FILE = Path(__file__).with_name("durations.json")
TIERS = ("fast", "slow", "all")


Recorded = dict[str, dict[str, float]]
"""Seconds by file and test. A file whose tests are all short is there without tests."""


def read_durations() -> Recorded:
    """Return the recorded seconds; nothing where there is no file yet."""
    recorded: Recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    return recorded


def write_durations(seconds: dict[str, float], all_tests: bool = False) -> None:
    """Add the seconds of the tests of a session, by node id, to those recorded.

    Args:
        all_tests: the session ran all tests: forget those that there are no more.
    """
    recorded = {} if all_tests else read_durations()
    for node, each in seconds.items():
        file, _, test = node.partition("::")
        tests = recorded.setdefault(file, {})
        tests.pop(test, None)
        if each >= RECORDED_FROM:
            tests[test] = round(each, 2)
    FILE.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")


def duration(recorded: Recorded, node: str) -> float:
    """Return the seconds of a test: a short one where its file is recorded without it."""
    file, _, test = node.partition("::")
    tests = recorded.get(file)
    return UNRECORDED if tests is None else tests.get(test, RECORDED_FROM / 2)


def fast_tests(items: list[pytest.Item], recorded: Recorded) -> set[str]:
    """Return the node ids of the tests in the fast tier."""
    chosen = set()
    functions: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full"):
            continue
        if item.get_closest_marker("fast"):
            chosen.add(item.nodeid)
        else:
            functions[item.nodeid.partition("[")[0]].append((item.nodeid, duration(recorded, item.nodeid)))
    for cases in functions.values():
        chosen |= set(choose_cases(cases))
    return chosen


def slower_than_recorded(seconds: Mapping[str, float], recorded: Recorded) -> list[tuple[str, float]]:
    """Return the tests that were chosen as short and take long, the longest first."""
    late = [(each, node) for node, each in seconds.items() if each > LATE_SECONDS]
    return [
        (node, each) for each, node in sorted(late, reverse=True) if duration(recorded, node) <= CASE_SECONDS
    ]


def choose_cases(cases: list[tuple[str, float]]) -> list[str]:
    """Return the cases of one function that fit into its seconds, but at least one."""
    chosen: list[str] = []
    total = 0.0
    for name, seconds in sorted(cases, key=lambda case: zlib.crc32(case[0].encode())):
        if seconds > CASE_SECONDS or (chosen and total + seconds > FUNCTION_SECONDS):
            continue
        chosen.append(name)
        total += seconds
    return chosen


def file_seconds(items: list[pytest.Item], recorded: Recorded) -> dict[str, float]:
    """Return the seconds of the tests of each file."""
    totals: defaultdict[str, float] = defaultdict(float)
    for item in items:
        totals[item.nodeid.partition("::")[0]] += duration(recorded, item.nodeid)
    return totals


def of_tier(items: list[pytest.Item], recorded: Recorded, tier: str) -> list[pytest.Item]:
    """Return the tests of a tier."""
    if tier == "all":
        return items
    fast = fast_tests(items, recorded)
    return [item for item in items if (item.nodeid in fast) == (tier == "fast")]


def sort_files(items: list[pytest.Item], recorded: Recorded, turn: int | None = None) -> None:
    """Sort files by their total time, longest first, so that parallel processes end together.

    Args:
        turn: draw the order for this number. Where a session ends before all tests have run, each turn
            leaves out other files.
    """
    totals = file_seconds(items, recorded)

    def place(item: pytest.Item) -> tuple[float, str]:
        file = item.nodeid.partition("::")[0]
        return (-totals[file] if turn is None else zlib.crc32(f"{turn} {file}".encode()), file)

    items.sort(key=place)


@functools.cache
def turn() -> int:
    """Return a number that grows with each commit, so that commits choose different cases; 0 without git."""
    counted = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return int(counted.stdout) if counted.returncode == 0 else 0


def fast_only(values: Iterable[Any], fast: Iterable[Any], unpack: bool = False) -> list[Any]:
    """Return the values as parameters; those not in ``fast`` are not in the fast tier.

    ``unpack`` is for ``parametrize`` with several names: each value is then a tuple with one item for each.
    """
    chosen = list(fast)
    full = pytest.mark.full
    return [
        value if value in chosen else pytest.param(*(value if unpack else (value,)), marks=full)
        for value in values
    ]
