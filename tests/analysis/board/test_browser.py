"""The results board in a real browser: filters, order, links, dark mode, and nothing wider than the page."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.board.__main__ import publish
from archbench.analysis.board.claims import entry
from archbench.analysis.board.pages import Board
from archbench.analysis.board.rankings import rankings
from archbench.analysis.board.sources import Source, with_all_columns
from archbench.analysis.findings.verdicts import Finding
from archbench.analysis.load.study import load_study
from tests.analysis.findings.test_findings import claim
from tests.analysis.report.browser import CHROMIUM, NARROWEST, REMEDY, document, framed

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason=REMEDY)]

SEEN = """
<script>
const problems = [];
addEventListener("error", e => problems.push(e.message));
addEventListener("load", async () => {
  const shown = () => [...document.querySelectorAll("tr.line")].filter(row => row.checkVisibility())
    .map(row => `${row.parentElement.dataset.likelihood} ${row.dataset.model}`);
  const wide = [...document.querySelectorAll(".board *")]
    .filter(part => part.checkVisibility() && !part.closest("svg, option"))
    .filter(part => part.getBoundingClientRect().right > innerWidth + 1
      || part.matches("td, th") && part.scrollWidth > part.clientWidth + 1)
    .map(part => `${part.tagName} ${part.className} ${part.textContent.slice(0, 40)}`);
  const seen = {problems, wide, first: shown(), width: innerWidth, hash: location.hash,
    sideways: document.documentElement.scrollWidth - innerWidth,
    ink: getComputedStyle(document.querySelector(".board")).color};
  const at = async hash => {
    location.hash = hash;
    await new Promise(done => setTimeout(done, 100));
    return shown();
  };
  if (document.querySelector("[data-board]")) {
    seen.count = document.querySelector("#count").textContent;
    const select = document.querySelector("select[name=likelihood]");
    select.value = "exact";
    select.dispatchEvent(new Event("input"));
    seen.exact = shown();
    seen.exactHash = location.hash;
    document.querySelector("th[data-sort=model]").click();
    seen.sorted = shown();
    document.querySelector("th[data-sort=model]").click();
    seen.sortedHash = location.hash;
    seen.descending = shown();
    document.querySelector("#reset").click();
    seen.reset = shown();
    seen.linked = await at("#family=state+space&model=mam");
    seen.family = document.querySelector("select[name=family]").value;
    seen.none = await at("#workload=recall&likelihood=exact");
    seen.downloads = [...document.querySelectorAll("a[download]")].map(link => link.getAttribute("href"));
  }
  parent.postMessage(JSON.stringify(seen), "*");
});
</script>
"""
WIDTHS = [("light", 1440), ("dark", 900), ("light", 390)]


@pytest.fixture
def board(study: Path, tmp_path: Path) -> Path:
    """The pages of a study with every kind of run, and of one claim."""
    frame = with_all_columns(load_study(study, "compare"))
    ranked = rankings([Source(name="compare", is_track=False, frame=frame)])
    scores = ([0.90, 0.91, 0.92], [0.6, 0.61, 0.62])
    decided = Finding(
        name="one", claim=claim(claim="A decoder recalls more than " + "long_name_" * 9), verdict="confirmed",
        scores=scores, unit="answer accuracy", difference=0.3, low=0.28, high=0.32, p=1e-5, test="Welch",
    )  # fmt: skip
    publish(tmp_path / "board", Board(rankings=ranked, claims=[entry(decided)]))
    return tmp_path / "board"


def seen(page: Path, scheme: str, width: int) -> dict[str, Any]:
    """What ``SEEN`` posts from a page."""
    copy = page.with_name("seen.html")
    copy.write_text(page.read_text().replace("<body", SEEN + "<body", 1))
    html = document(framed(copy, width), scheme, max(width, NARROWEST))
    [text] = re.findall(r'<pre id="found">({.*?})</pre>', html, re.DOTALL)
    return dict(json.loads(unescape(text)))


def check_layout(found: dict[str, Any], scheme: str, width: int) -> None:
    assert found["problems"] == []
    assert found["width"] == width
    assert found["wide"] == []
    assert found["sideways"] <= 0
    assert found["ink"] == {"light": "rgb(27, 31, 36)", "dark": "rgb(230, 233, 237)"}[scheme]


@pytest.mark.parametrize(("scheme", "width"), WIDTHS)
def test_filters_order_and_links_of_the_board(board: Path, scheme: str, width: int) -> None:
    found = seen(board / "index.html", scheme, width)
    check_layout(found, scheme, width)
    exact = ["exact xz", "exact decoder", "exact mamba", "exact moe", "exact s4", "exact unigram entropy"]
    assert sorted(found["exact"]) == sorted(exact)
    assert found["exactHash"] == "#likelihood=exact"
    names = [line.removeprefix("exact ") for line in found["sorted"]]
    assert names == sorted(names)
    assert found["descending"] == found["sorted"][::-1]
    assert found["sortedHash"] == "#likelihood=exact&sort=model&order=descending"
    assert found["reset"] == found["first"]
    assert set(found["exact"]) < set(found["first"])
    assert found["linked"] == ["exact mamba", "accuracy mamba"]
    assert found["family"] == "state space"
    assert found["none"] == []
    tables = [pd.read_csv(board / name) if name.endswith("csv") else pd.read_parquet(board / name)
              for name in found["downloads"]]  # fmt: skip
    assert len(tables) == 2
    assert [len(table) for table in tables] == [len(found["first"])] * 2


@pytest.mark.parametrize(("scheme", "width"), WIDTHS)
@pytest.mark.parametrize("page", ["models/mamba", "workloads/text", "claims/one"])
def test_other_pages_fit(board: Path, page: str, scheme: str, width: int) -> None:
    check_layout(seen(board / f"{page}.html", scheme, width), scheme, width)


def test_the_board_is_a_plain_table_without_its_script(board: Path) -> None:
    (board / "board.js").write_text("")
    page = document(board / "index.html")
    assert page.count('class="line') == page.count("data-order=")
    assert re.search(r'class="filters script" hidden', page)
