"""What the pages say of speed is what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

FOLDER = ROOT / "benchmarks"
RESULTS = FOLDER / "results"


@pytest.mark.parametrize(
    ("page", "mark", "source"), [("benchmarks", "goals", "goals.md"), ("profiles", "profile", "profile.md")]
)
def test_a_page_quotes_what_was_printed(page: str, mark: str, source: str) -> None:
    """The page of profiles quotes the first table."""
    text = (ROOT / "docs" / "performance" / f"{page}.md").read_text()
    quoted = text.split(f"<!-- {mark}:begin -->\n")[1].split(f"<!-- {mark}:end -->")[0]
    printed = (RESULTS / source).read_text()
    assert quoted == (printed if mark == "goals" else printed.partition("\n\n| family ")[0] + "\n")


def test_the_table_of_goals_is_that_of_the_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from goals import read_machines, say_table
    from machine import Page

    machines = read_machines(RESULTS)
    assert len({machine.name for machine in machines}) >= 2
    say_table(Page(tmp_path / "goals.md"), machines)
    assert (RESULTS / "goals.md").read_text() == (tmp_path / "goals.md").read_text()


def test_an_entry_says_when_and_on_which_machine_it_was_measured(tmp_path: Path) -> None:
    """A part keeps its line when another is measured later, and each processor has a column."""
    lines = {
        "one": {"generation": "A B, 2 threads, commit 1234567.", "diffusion": "A B, 1 threads, commit 89."},
        "two": {"diffusion": "C, 1 threads, commit 1234567, load average 0.3."},
    }
    found = {"generation": {"without_cache": {"ratio": 12.0}}, "diffusion": {"speedup": 7.0}}
    for folder, parts in lines.items():
        (tmp_path / folder).mkdir()
        for part, line in parts.items():
            (tmp_path / folder / f"{part}.json").write_text(json.dumps(found[part]))
            (tmp_path / folder / f"{part}.md").write_text(f"{line}\n\nMore.\n")
    command = [sys.executable, str(FOLDER / "goals.py"), "--parts", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "goals.md").read_text().splitlines()
    assert page[:6:2] == [
        "a: A B, 2 threads, commit 1234567. Parts: generation.",
        "b: A B, 1 threads, commit 89. Parts: diffusion.",
        "c: C, 1 threads, commit 1234567. Parts: diffusion.",
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page if "|" in line]
    assert rows[0] == ["what", "goal", "A B", "C"]
    assert [row[2:] for row in rows[2:]] == [["12.00: met, a", ""], ["7.00: missed, b", "7.00: missed, c"]]
    assert (tmp_path / "goals.svg").stat().st_size > 1000
    noted = json.loads((tmp_path / "goals.json").read_text())
    assert {name: [goal["met"] for goal in goals] for name, goals in noted.items()} == {
        "A B": [1, 0],
        "C": [0],
    }
