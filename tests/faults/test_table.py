"""The page of faults names tests and rows that there are."""

from __future__ import annotations

from tests import ROOT
from tests.faults.table import KINDS

PAGE = (ROOT / "docs" / "reference" / "faults.md").read_text(encoding="utf-8")


def test_each_kind_of_silence_is_on_the_page_with_tests_and_rows_that_there_are() -> None:
    assert len(KINDS) == 17
    for each in KINDS:
        assert f"| {each['kind']} | {each['promised']} |" in PAGE
        for fault in each["faults"]:
            assert f"\n| {fault} | " in PAGE, f"{each['kind']}: no row {fault}"
        for name in each["tests"]:
            text = (ROOT / "tests" / name).read_text(encoding="utf-8")
            injects = any(f'"{fault}"' in text for fault in each["faults"])
            assert injects or not name.startswith("faults/"), f"{name} injects none of these"
