"""The report in a real browser: no errors, switches that work, numbers that are the frame's."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.compare import main
from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.curves import AXES, learning_curves
from archbench.analysis.load.scale_order import TASK_SCALE
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.tables import score_and_cost_columns
from archbench.analysis.tables.body import table_body
from tests import ROOT
from tests.analysis.report.browser import CHROMIUM, NARROWEST, REMEDY, document, framed, on_paper

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason=REMEDY)]
TRAINED = ROOT / "runs"
"""Where ``make compare`` leaves the study of the README."""

CLICKS = """
<script>
const problems = [];
addEventListener("error", e => problems.push(e.message));
addEventListener("unhandledrejection", e => problems.push(String(e.reason)));
const pause = () => new Promise(done => setTimeout(done, 300));
const wait = setInterval(async () => {
  if (document.body.dataset.ready !== "yes") return;
  clearInterval(wait);
  document.querySelectorAll("details").forEach(part => part.open = true);
  document.querySelectorAll("[data-curve]").forEach(part => part.hidden = false);
  await drawAll();
  refit();
  const rows = table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent));
  const tables = [...document.querySelectorAll("table.scores")].map(rows);
  const curves = document.querySelector("[data-curve=learning_curves] .js-plotly-plot");
  const seen = {};
  const note = what => seen[what] = {
    title: curves.layout.xaxis.title.text, kind: curves.layout.xaxis.type, score: curves.layout.yaxis.type,
    traces: curves.data.map(t =>
      ({name: t.name, seed: t.meta === "seed", shown: t.visible !== false, x: t.x, y: t.y})),
  };
  const arm = document.querySelector(".arms input").value;
  note("first");
  document.querySelectorAll("input[name=axis]")[1].click();
  document.getElementById("log").click();
  document.getElementById("log-score").click();
  await pause();
  note("flops");
  document.getElementById("seeds").click();
  await pause();
  note("seeds");
  document.querySelector(".bar td").click();  // a click on a name is one on its switch
  document.querySelector(".bar td").click();
  document.querySelector(".arms input").click();
  await pause();
  note("without");
  const bars = [...document.querySelectorAll(".bar")].map(bar => [bar.dataset.arm, !bar.matches(".off")]);
  const others = [...document.querySelectorAll(".js-plotly-plot")].flatMap(div => div.data)
    .filter(t => t.name === arm).map(t => t.visible);
  document.getElementById("seeds").click();
  document.querySelector(".arms input").click();
  const shown = ["training_loss", "learning_curves"].map(name => {
    document.querySelector(`input[name=curve][value=${name}]`).click();
    return [...document.querySelectorAll("[data-curve]")].filter(isShown).map(part => part.dataset.curve);
  });
  document.querySelectorAll("[data-curve]").forEach(part => part.hidden = false);
  const table = document.querySelector("table.sortable");
  table.tHead.rows[0].cells[0].click();
  await pause();
  note("last");
  const parts = document.querySelectorAll("body :is(.figure, table *, .card *, p, ul, h2, h3, summary)");
  const wide = [...parts].filter(part => isShown(part) && !part.closest("svg, .modebar"))
    .filter(part => part.getBoundingClientRect().right > innerWidth + 1
      || part.matches("td, th") && part.scrollWidth > part.clientWidth + 1)
    .map(part => `${part.tagName} ${part.className} ${part.textContent.slice(0, 40)}`);
  const at = curves.data.findIndex(t => t.name === arm && t.visible !== false && t.meta !== "seed");
  const clicked = [];
  for (let i = 0; i < 2; i++) {
    curves.emit("plotly_legendclick", {curveNumber: at, data: curves.data});
    await pause();
    clicked.push(document.querySelector(".arms input").checked);
  }
  const hover = [...document.querySelectorAll(".bar svg title")].map(title => title.textContent);
  const found = {problems, tables, seen, arm, others, wide, bars, shown, hover, clicked,
    width: innerWidth, sideways: document.documentElement.scrollWidth - innerWidth,
    across: [...document.querySelectorAll(".js-plotly-plot")].flatMap(div => Object.entries(div._fullLayout)
      .filter(([key]) => /^xaxis[0-9]*$/.test(key)).map(([, axis]) => axis.domain[1] - axis.domain[0])),
    empty: [...document.querySelectorAll(".figure")].filter(f => !f.querySelector(".main-svg")).length,
    ink: getComputedStyle(document.body).color, first: rows(table).slice(1).map(row => row[0])};
  parent.postMessage(JSON.stringify(found), "*");
}, 50);
</script>
"""


def written(runs: Path, out: Path) -> Path:
    """The page of study=compare."""
    assert main([f"runs={runs}", f"out={out}"]) == 0
    return out / "compare.html"


def clicked(page: Path, scheme: str, width: int) -> dict[str, Any]:
    """What ``CLICKS`` found on a page."""
    copy = page.with_name("clicked.html")
    copy.write_text(page.read_text().replace("<h1>", CLICKS + "<h1>", 1))
    html = document(framed(copy, width), scheme, max(width, NARROWEST))
    [text] = re.findall(r'<pre id="found">({.*?})</pre>', html, re.DOTALL)
    return dict(json.loads(unescape(text)))


def verdicts(frame: pd.DataFrame) -> list[list[list[str]]]:
    """The tables of scores as the page must show them: ``analysis.tables`` writes them from the frame."""
    tables = []
    for _, rows in Comparison(frame).arms.groupby(TASK_SCALE, sort=True):
        body = table_body(rows)
        body = body.only(score_and_cost_columns(body.columns)[0])
        lines = [[column.head for column in body.columns]]
        for row in body.rows:
            message = row.source["message"]
            note = row.note
            if row.source["kind"] == "reference" and isinstance(message, str):
                note = message
            lines.append([*row.cells, *[note] * bool(note)])
        tables.append(lines)
    return tables


@pytest.mark.parametrize(
    ("which", "scheme", "width"),
    [
        ("synthetic", "dark", 900),
        ("trained", "light", 1440),
        ("synthetic", "light", 390),
        ("synthetic", "light", 1440),
    ],
)
def test_switches_work_and_numbers_are_the_frames(
    which: str, scheme: str, width: int, study: Path, tmp_path: Path
) -> None:
    runs = study if which == "synthetic" else TRAINED
    if not (runs / "compare").is_dir():
        pytest.skip("there is no runs/compare: make compare trains it")
    found = clicked(written(runs, tmp_path), scheme, width)
    frame, history = load_study(runs, "compare"), load_history(runs, "compare")
    assert found["problems"] == []
    assert found["empty"] == 0
    assert found["wide"] == []  # nothing is cut off at the right
    assert found["sideways"] <= 0  # and nobody must scroll to the side
    assert found["width"] == width
    assert min(found["across"]) > (0.9 if width < NARROWEST else 0.3)  # no panel is a sliver
    shown = dict(found["bars"])
    assert {arm for arm, there in shown.items() if not there} == {found["arm"]} & set(shown)
    assert found["tables"] == verdicts(frame)
    assert found["shown"] == [["training_loss"], ["learning_curves"]]
    assert all(re.fullmatch(r"\S.*: \d.*", text) for text in found["hover"])
    assert found["clicked"] == [False, True]  # a click on the legend hides a model, another one shows it
    assert found["ink"] == {"light": "rgb(27, 31, 36)", "dark": "rgb(230, 233, 237)"}[scheme]
    figure, arm = learning_curves(Comparison(frame, history)), found["arm"]
    assert figure is not None
    for state, axis in (("first", 0), ("flops", 1), ("seeds", 1), ("without", 1), ("last", 1)):
        seen = found["seen"][state]
        assert seen["title"] == list(AXES.values())[axis], state
        assert (seen["kind"], seen["score"]) == (("linear", "linear") if axis == 0 else ("log", "log")), state
        for drawn, trace in zip(seen["traces"], figure.data, strict=True):
            assert drawn["x"] == pytest.approx([point[axis] for point in trace.customdata])
            assert drawn["y"] == pytest.approx(list(trace.y))
            seeds, hidden = state in ("seeds", "without"), state == "without" and drawn.get("name") == arm
            assert drawn["shown"] == (not hidden and (seeds or not drawn["seed"])), (state, drawn)
    of_seeds = any(trace["seed"] for trace in found["seen"]["first"]["traces"])
    assert of_seeds == (frame["seed"].nunique() > 1), "a line for each seed, where there are several"
    assert found["others"]
    assert not any(found["others"])  # the arm is gone from every figure
    names = [name for name in found["first"] if name]
    assert names == sorted(names, key=str.casefold)


def test_a_page_prints_on_paper(study: Path, tmp_path: Path) -> None:
    on_paper(written(study, tmp_path), tmp_path / "report.pdf")
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 20
