"""What the pages say of speed is what was measured."""

import json
import re

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
    from goals import PARTS, decoding_goals, other_goals, training_goals

    found = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in PARTS}
    goals = [*training_goals(found), *decoding_goals(found), *other_goals(found)]
    page = (RESULTS / "goals.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "|" in line]
    assert rows[2:] == [goal.row() for goal in goals]


@pytest.mark.parametrize("name", ["dense", "others", "mamba", "generation", "growth", "harness", "diffusion"])
def test_every_part_was_measured_on_one_state_of_the_code(name: str) -> None:
    first = (RESULTS / f"{name}.md").read_text().splitlines()[0]
    goals = (RESULTS / "goals.md").read_text().splitlines()[0]
    assert re.findall(r"commit (\w+)", first) == re.findall(r"commit (\w+)", goals)
