"""The report command: its files, its mistakes, and the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import matplotlib.image
import pytest

from analysis.load import load_study
from analysis.report import main
from analysis.summary import arm_table
from analysis.table import cells

CHROMIUM = shutil.which("chromium")


def test_the_command_writes_the_page_and_its_figures(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.report.KINDS", ("svg",))  # all kinds of one figure: the next test
    assert main([f"runs={study}"]) == 0
    folder = study / "compare" / "report"
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    figures = sorted(path.name for path in (folder / "figures").iterdir())
    assert "learning_curves.svg" in figures
    assert "pareto_fronts.svg" in figures
    assert "scaling_laws.svg" not in figures  # the study has nothing for it
    svg = (folder / "figures" / "learning_curves.svg").read_text()
    for words in ("training tokens", "bits per byte", ">decoder<", ">mamba<"):
        assert words in svg
    assert "report.html" in capsys.readouterr().out


def test_a_figure_is_printed_in_three_kinds_alike(tmp_path: Path) -> None:
    import plotly.graph_objects as go

    from analysis.figures import make_panels
    from analysis.print_figures import printed

    figure, [cell] = make_panels(["a panel"])
    figure.add_trace(
        go.Scatter(x=[1, 10], y=[1, 2], mode="lines+markers", name="arm", line={"color": "#0072B2"}), **cell
    )
    figure.add_trace(
        go.Scatter(x=[1, 10], y=[1, 1], mode="lines", line={"width": 0}, showlegend=False), **cell
    )
    figure.add_trace(
        go.Scatter(x=[1, 10], y=[2, 3], mode="lines", line={"width": 0}, fill="tonexty",
                   fillcolor="rgba(0,114,178,0.15)", showlegend=False), **cell,
    )  # fmt: skip
    figure.update_xaxes(title_text="FLOPs", type="log", **cell)
    svg = printed(figure, "svg")
    assert svg == printed(figure, "svg")
    assert b"#0072b2" in svg
    assert b"FLOPs" in svg
    assert printed(figure, "pdf").startswith(b"%PDF")
    (tmp_path / "f.png").write_bytes(printed(figure, "png"))
    pixels = matplotlib.image.imread(tmp_path / "f.png")
    assert pixels.shape[1] > 600
    assert pixels.min() < 0.5 < pixels.max()  # something is drawn


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("stduy=x", "did you mean 'study='?"),
        ("study=", "study= is empty"),
        ("study=comparr", "did you mean 'compare'?"),
        ("speed=none.parquet", "none.parquet"),
    ],
)
def test_mistakes_are_one_line(
    study: Path, argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"runs={study}", argument]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


CLICKS = """
<script>
const problems = [];
addEventListener("error", e => problems.push(e.message));
addEventListener("unhandledrejection", e => problems.push(String(e.reason)));
const wait = setInterval(async () => {
  if (document.body.dataset.ready !== "yes") return;
  clearInterval(wait);
  const curves = document.querySelector("#curves .js-plotly-plot");
  const tokens = [...curves.data[0].x];
  document.querySelectorAll("input[name=axis]")[1].click();
  document.getElementById("log").click();
  document.querySelector(".arms input[value=mamba]").click();
  const table = document.querySelector("table.sortable");
  table.tHead.rows[0].cells[0].click();
  await new Promise(done => setTimeout(done, 500));
  const found = {
    problems, tokens, flops: curves.data[0].x, kind: curves.layout.xaxis.type,
    title: curves.layout.xaxis.title.text,
    mamba: curves.data.filter(t => t.name === "mamba").map(t => t.visible),
    drawn: document.querySelectorAll(".js-plotly-plot .main-svg").length,
    first: [...table.tBodies[0].rows].map(r => r.cells[0].textContent),
  };
  document.body.insertAdjacentHTML("beforeend", `<pre id="found">${JSON.stringify(found)}</pre>`);
}, 50);
</script>
"""


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_the_page_works_in_a_browser(study: Path, tmp_path: Path) -> None:
    assert main([f"runs={study}", f"out={tmp_path}"]) == 0
    html = (tmp_path / "report.html").read_text()
    (tmp_path / "clicked.html").write_text(html.replace("<h1>", CLICKS + "<h1>", 1))
    words = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    words += [
        "--window-size=1280,900",
        "--virtual-time-budget=60000",
        "--enable-logging=stderr",
        "--dump-dom",
    ]
    ended = subprocess.run(
        [*words, f"file://{tmp_path / 'clicked.html'}"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert "CONSOLE" not in ended.stderr
    [text] = re.findall(r'<pre id="found">({.*?})</pre>', ended.stdout)
    found = json.loads(unescape(text))
    assert found["problems"] == []
    assert found["drawn"] > 0
    assert found["title"] == "training FLOPs"
    assert found["kind"] == "log"
    assert found["flops"] == pytest.approx([1e11, 2e11, 3e11, 4e11, 5e11])
    assert found["tokens"] == pytest.approx([40960 * i for i in range(1, 6)])
    assert set(found["mamba"]) == {False}
    named = [name for name in found["first"] if name]
    assert named == sorted(named)
    frame = load_study(study, "compare")
    shown = re.sub(r'<span class="dot"[^>]*></span>', "", ended.stdout)
    for _, row in arm_table(frame).iterrows():
        assert "".join(f"<td>{c}</td>" for c in cells(row)) in shown
