"""What the pages say of speed is what was measured."""

import json
import re
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
    text = (ROOT / "docs" / "performance" / f"{page}.md").read_text()
    quoted = text.split(f"<!-- {mark}:begin -->\n")[1].split(f"<!-- {mark}:end -->")[0]
    assert quoted == (RESULTS / source).read_text()


def test_the_table_of_goals_is_that_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from goals import all_goals, read_parts

    found, machines = read_parts(RESULTS)
    page = (RESULTS / "goals.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "|" in line]
    letters = dict(re.findall(r"^(\w): (.*) Parts: ", page, re.MULTILINE))
    assert set(letters.values()) == set(machines.values())
    by_line = {line: letter for letter, line in letters.items()}
    assert rows[2:] == [goal.row(by_line[machines[goal.part]]) for goal in all_goals(found)]


def test_a_row_says_which_machine_it_is_of(tmp_path: Path) -> None:
    """A part that was measured elsewhere keeps its machine when another is measured here."""
    generation = {"without_cache": {"ratio": 12.0}}
    (tmp_path / "generation.json").write_text(json.dumps(generation))
    (tmp_path / "generation.md").write_text("Processor A, 2 threads, commit 1234567.\n\nMore.\n")
    (tmp_path / "diffusion.json").write_text(json.dumps({"speedup": 9.0}))
    (tmp_path / "diffusion.md").write_text("Processor B, 1 threads, commit 1234567, load average 0.3.\n")
    command = [sys.executable, str(FOLDER / "goals.py"), "--parts", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "goals.md").read_text().splitlines()
    assert lines[0] == "a: Processor A, 2 threads, commit 1234567. Parts: generation."
    assert lines[2] == "b: Processor B, 1 threads, commit 1234567. Parts: diffusion."
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line][2:]
    assert [(row[0][:8], row[-1]) for row in rows] == [("decoding", "a"), ("masked d", "b")]
    noted = json.loads((tmp_path / "goals.json").read_text())["goals"]
    assert [goal["on"][:11] for goal in noted] == ["Processor A", "Processor B"]
