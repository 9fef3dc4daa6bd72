"""The pages on speed quote what was measured."""

import csv
import json
import subprocess
import sys
from pathlib import Path

from tests import ROOT

FOLDER = ROOT / "benchmarks"
RESULTS = FOLDER / "results"


def test_the_page_quotes_what_was_printed() -> None:
    text = (ROOT / "docs" / "performance" / "benchmarks.md").read_text()
    quoted = text.split("<!-- goals:begin -->\n")[1].split("<!-- goals:end -->")[0]
    assert quoted == (RESULTS / "goals.md").read_text()


def test_the_goals_are_those_of_the_parts(tmp_path: Path) -> None:
    from goals import read_machines, say_table, write_csv
    from machine import Page

    machines = read_machines(RESULTS)
    assert len({machine.name for machine in machines}) >= 2
    say_table(Page(tmp_path / "goals.md"), machines)
    write_csv(tmp_path / "goals.csv", machines)
    for name in ("goals.md", "goals.csv"):
        assert (RESULTS / name).read_text() == (tmp_path / name).read_text()


def test_each_part_has_its_date_and_processor(tmp_path: Path) -> None:
    """A part keeps its date when another is measured later, and each processor has a column."""
    lines = {
        "one": {"generation": "A B, 2 threads, commit 1234567.", "diffusion": "A B, 1 threads, commit 89."},
        "two": {"diffusion": "C, 1 threads, commit 1234567, load average 0.3."},
    }
    values = {"generation": {"without_cache": {"ratio": 12.0}}, "diffusion": {"speedup": 7.0}}
    for folder, parts in lines.items():
        (tmp_path / folder).mkdir()
        for part, line in parts.items():
            (tmp_path / folder / f"{part}.json").write_text(json.dumps(values[part]))
            (tmp_path / folder / f"{part}.md").write_text(f"{line}\n\nMore.\n")
    command = [sys.executable, str(FOLDER / "goals.py"), "--parts", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "goals.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page if "|" in line]
    assert cells[0] == ["what", "goal", "A B", "C"]
    assert [row[2:] for row in cells[2:]] == [["12.00; 1 of 1", ""], ["7.00; 0 of 1", "7.00; 0 of 1"]]
    with (tmp_path / "goals.csv").open() as file:
        rows = [
            (row["processor"], row["median"], row["reached"], row["measured"]) for row in csv.DictReader(file)
        ]
    assert rows == [
        ("A B", "12.00", "1", "A B, 2 threads, commit 1234567."),
        ("A B", "7.00", "0", "A B, 1 threads, commit 89."),
        ("C", "7.00", "0", "C, 1 threads, commit 1234567."),
    ]
    assert (tmp_path / "goals.svg").stat().st_size > 1000
    stored = json.loads((tmp_path / "goals.json").read_text())
    reached = {name: [goal["reached"] for goal in goals] for name, goals in stored.items()}
    assert reached == {"A B": [1, 0], "C": [0]}
