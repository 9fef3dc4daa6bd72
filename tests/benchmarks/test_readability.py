"""The published counts of the code are those of the code."""

from __future__ import annotations

import re

import pytest

from tests import ROOT

PAGE = ROOT / "benchmarks" / "results" / "readability.md"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import readability

    return readability.static_counts()


def test_the_page_has_the_counts_of_the_code(counts: dict[str, float]) -> None:
    """Within 3%, so that not every commit renews the page."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    now = {
        row[0]: float(row[2].replace(",", ""))
        for row in rows
        if len(row) == 4 and re.match(r"[\d,.]+$", row[2])
    }
    assert counts.keys() <= now.keys()
    for name, count in counts.items():
        assert now[name] == pytest.approx(count, rel=0.03, abs=0.1), f"run benchmarks/readability.py: {name}"
