"""The table of tested faults holds every recorded fault, and names tests that inject it."""

from __future__ import annotations

import json
from collections import Counter

from tests import ROOT
from tests.faults import table


def test_each_recorded_fault_is_of_one_kind_and_injected_by_its_tests() -> None:
    listed = Counter(fault for kind in table.KINDS for fault in kind["faults"])
    assert listed == Counter({row["fault"] for row in table.read_recorded()})
    for kind in table.KINDS:
        for name in kind["tests"]:
            text = (ROOT / "tests" / name).read_text(encoding="utf-8")
            injects = any(f'"{fault}"' in text for fault in kind["faults"])
            assert injects or not name.startswith("faults/"), f"{name} injects none of these"


def test_the_page_has_the_table() -> None:
    assert table.TABLE.read_text() == table.render(table.read_recorded()), "run python -m tests.faults.table"


def test_a_new_record_replaces_a_smaller_one_and_sums_random_faults() -> None:
    def line(fault: str, count: int) -> str:
        return json.dumps({"fault": fault, "injected": "a fault", "count": count, "happened": "found"})

    new = table.read_new([line("F01", 2), line("F01", 200), line("F46", 30), line("F46", 50)], "2026-11-26")
    assert [row["count"] for row in new] == ["200", "80"]
    older = [
        {**new[0], "count": "500", "date": "2026-11-22"},
        {**new[1], "count": "80", "date": "2026-11-22"},
    ]
    merged = table.merge(older, new)
    assert [(row["count"], row["date"]) for row in merged] == [("500", "2026-11-22"), ("80", "2026-11-26")]
