"""The report of a study as one HTML file that opens from disk, offline.

Plotly's script is inside the file, once. A content security policy forbids
every request, so nothing the page shows can come from elsewhere.
"""

from __future__ import annotations

import base64
import json
from html import escape

import pandas as pd
import plotly.graph_objects as go

from analysis.against import draw
from analysis.figures import AXES, final_scores, further_curves, learning_curves, styles
from analysis.further import published
from analysis.summary import LIKELIHOODS, PLACE, arm_table, comparisons, matched_line, study_warnings
from analysis.table import (
    HEADERS,
    cells,
    counts_line,
    flops,
    more_tables,
    row_class,
    seconds,
    si,
    size,
    title,
    verdict,
    verdicts,
)

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

STYLE = """
:root { --ink: #1b1f24; --soft: #5b6570; --line: #d5dae0; --page: #ffffff; --warn: #fff3d6;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --soft: #9aa4af; --line: #3a424c; --page: #15181c; --warn: #3d3216; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1180px; margin: 0 auto; padding: 1.5rem; }
h1 { margin: 0 0 .3rem; } h2 { margin: 2.2rem 0 .4rem; } h3 { margin: 1.2rem 0 .3rem; }
p, ul { max-width: 80ch; } .soft { color: var(--soft); }
.warnings { background: var(--warn); border-radius: 6px; padding: .6rem 1rem .6rem 2rem; max-width: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: .25rem .5rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child, .text { text-align: left; }
td.wide { white-space: normal; text-align: left; min-width: 13em; }
.noted th:last-child, .noted td:last-child { text-align: left; }
tr.reference td { color: var(--soft); } tr.class td { border-top: 2px solid var(--soft); }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; }
.controls { display: flex; flex-wrap: wrap; gap: 1.2rem; }
summary { cursor: pointer; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --page: #fff; --warn: #fff3d6; color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 11px; }
  table { font-size: 9px; } th, td { padding: .15rem .35rem; }
  .controls, .modebar { display: none !important; } .scroll { overflow: visible; }
  .figure, tr, h2, h3 { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""

SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const figures = () => document.querySelectorAll(".js-plotly-plot");
function axes(div) { return Object.keys(div._fullLayout).filter(k => /^[xy]axis[0-9]*$/.test(k)); }
function paint(isDark, size) {
  const grid = isDark ? "#333a42" : "#e3e6ea", ink = isDark ? "#e6e9ed" : "#1b1f24";
  for (const div of figures()) {
    const update = {"font.color": ink, "legend.font.color": ink, ...size};
    for (const a of axes(div)) Object.assign(update,
      {[a + ".gridcolor"]: grid, [a + ".zerolinecolor"]: grid, [a + ".linecolor"]: grid});
    Plotly.relayout(div, update);
  }
}
paint(dark.matches, {});
dark.addEventListener("change", () => paint(dark.matches, {}));
addEventListener("beforeprint", () => paint(false, {autosize: false, width: 680}));
addEventListener("afterprint", () => paint(dark.matches, {autosize: true, width: null}));

const curves = document.querySelector("#curves .js-plotly-plot");
function redraw() {
  const index = document.querySelector("input[name=axis]:checked").value;
  const scale = document.getElementById("log").checked ? "log" : "linear";
  const layout = {};
  for (const a of axes(curves).filter(k => k[0] === "x")) Object.assign(layout,
    {[a + ".type"]: scale, [a + ".title.text"]: AXES[index], [a + ".autorange"]: true});
  Plotly.update(curves, {x: curves.data.map(t => t.customdata.map(p => p[index]))}, layout);
}
for (const input of document.querySelectorAll(".controls input")) input.addEventListener("change", redraw);
"""


def render_page(frame: pd.DataFrame, history: pd.DataFrame) -> str:
    """The report of a study as HTML text.

    Args:
        frame: from ``load_study``.
        history: from ``load_history``, of the same study.
    """
    name = escape(str(frame["study"].iloc[0]))
    script = f"const AXES = {json.dumps(list(AXES.values()))};{SCRIPT}"
    body = "".join(
        [
            f"<h1>{name}</h1><p>Which architecture scores best at equal budget, and how sure is that? ",
            f'<span class="soft">{escape(counts_line(frame))}</span></p>',
            f"<p><strong>{escape(matched_line(frame))}</strong></p>",
            _list(study_warnings(frame), "warnings"),
            _tables(frame),
            _figures(frame, history),
            _further(frame),
            _speed(frame),
            _meanings(),
            _pairs(frame),
            _runs(frame),
            _provenance(frame),
        ]
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: comparison</title><style>{STYLE}</style></head>"
        f"<body>{body}<script>{script}</script></body></html>\n"
    )


def _tables(frame: pd.DataFrame) -> str:
    arms, pairs, style = arm_table(frame), comparisons(frame), styles(frame)
    parts = ["<h2>Scores</h2>"]
    for (task, scale), rows in arms.groupby(PLACE, sort=True):
        lines, before = [], None
        for _, row in rows.iterrows():
            here = row_class(row)
            css = "reference " * (here == "reference") + "class" * (before not in (None, here))
            before = here
            text = [escape(c) for c in cells(row)]
            text[0] = _dot(style.get(row["arm"], {}).get("color", "transparent")) + text[0]
            note = escape(row["message"]) if isinstance(row["message"], str) else ""
            line = "".join(f"<td>{c}</td>" for c in text) + f'<td class="wide">{note}</td>'
            lines.append(f'<tr class="{css}">{line}</tr>')
        here_pairs = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        parts.append(f"<h3>{escape(title(rows))}</h3>{_grid([*HEADERS, 'note'], lines)}")
        parts.append(_list(verdicts(rows, here_pairs), "verdicts"))
    return "".join(parts)


def _figures(frame: pd.DataFrame, history: pd.DataFrame) -> str:
    curves, scores = learning_curves(frame, history), final_scores(frame)
    shown = [f for f in (curves, scores) if f is not None]
    drawn = {id(f): _figure(f, script=i == 0) for i, f in enumerate(shown)}
    parts = ["<h2>Learning curves</h2>"]
    if curves is None:
        parts.append('<p class="soft">No run has been validated yet.</p>')
    else:
        options = "".join(
            f'<label><input type="radio" name="axis" value="{i}"{" checked" * (i == 0)}> {label}</label>'
            for i, label in enumerate(AXES.values())
        )
        parts += [
            "<p>Validation during training. Thick: mean over seeds; thin: each seed. Grey: references.</p>",
            f'<div class="controls">{options}',
            '<label><input type="checkbox" id="log"> logarithmic</label></div>',
            f'<div id="curves" class="figure">{drawn[id(curves)]}</div>',
        ]
    if scores is not None:
        parts += [
            "<h2>Final scores</h2><p>On the test split. Bars: 95% t-interval over seeds; small circles: ",
            "each seed. Compare arms of one likelihood class only.</p>",
            f'<div class="figure">{drawn[id(scores)]}</div>',
        ]
    return "".join(parts)


def _figure(figure: go.Figure, *, script: bool) -> str:
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=script, config=config))


def _speed(frame: pd.DataFrame) -> str:
    lines = []
    arms = arm_table(frame)
    for _, row in arms[arms["kind"] == "arm"].iterrows():
        share = row["training_data_share"]
        values = [
            row["arm"], f"{row['task']}, {row['scale']}", si(row["training_tokens_per_second"]),
            seconds(row["training_seconds"]), flops(row["training_flops"] / row["training_seconds"]),
            flops(row["flops_per_token"]), "-" if pd.isna(share) else f"{share:.1%}",
            size(row["training_peak_memory_bytes"]),
            "none" if row["state_bytes_2k"] == 0 else size(row["state_bytes_2k"]),
        ]  # fmt: skip
        lines.append(_line(values))
    head = [
        "arm", "task", "tokens/s", "seconds", "FLOP/s", "FLOPs per token", "waiting for data", "peak memory",
        "decoding state at 2048 tokens",
    ]  # fmt: skip
    return f"<h2>Speed and memory</h2><p>Training, means over seeds.</p>{_grid(head, lines)}"


def _meanings() -> str:
    items = "".join(f"<li><strong>{k}</strong>: {escape(v)}.</li>" for k, v in LIKELIHOODS.items())
    return (
        f"<h2>What the likelihood classes mean</h2><ul>{items}</ul>"
        "<p>Numbers of different classes measure different things and are not ranked against each other, "
        "unless a table says so. "
        "Accuracy on answers is no likelihood, so all arms stand in one ranking.</p>"
    )


def _further(frame: pd.DataFrame) -> str:
    """What else a study asks for, and what others published; empty where there is nothing."""
    parts = []
    if (figure := further_curves(frame)) is not None:
        parts.append("<h2>The same models on further tests</h2>")
        parts.append(f'<div class="figure">{_figure(figure, script=False)}</div>')
    if (drawn := draw(frame)) is not None:
        source = base64.b64encode(drawn).decode()
        parts.append(f'<p><img alt="scores against a number" src="data:image/svg+xml;base64,{source}"></p>')
    for (task, scale), _ in frame.groupby(PLACE, sort=True):
        for name, head, rows, note in more_tables(frame, str(task), str(scale)):
            table = _grid(head, [_line(row) for row in rows])
            parts.append(f"<h3>{escape(name)}</h3>{table}" + f"<p>{escape(note)}</p>" * bool(note))
    quoted = published(frame)
    return "".join(parts) + "<h2>Published</h2>" * bool(quoted) + _list(quoted, "published")


def _pairs(frame: pd.DataFrame) -> str:
    pairs = comparisons(frame)
    items = [f"{p['task']}, {p['scale']}: {verdict(p)}" for _, p in pairs.iterrows()]
    summary = f"<summary>{len(items)} comparisons</summary>"
    return f"<h2>Every pair</h2><details open>{summary}{_list(items, 'pairs')}</details>"


def _runs(frame: pd.DataFrame) -> str:
    lines = []
    for _, run in frame.iterrows():
        score = "-" if pd.isna(run["score"]) else f"{run['score']:.6f}"
        message = run["message"] if isinstance(run["message"], str) else ""
        place = f"{run['task']}, {run['scale']}"
        values = [run["arm"], place, str(run["seed"]), run["status"], score, run["digest"], message]
        lines.append(_line(values))
    head = ["arm", "task", "seed", "status", "score", "digest", "message"]
    summary = f"<summary>{len(frame)} runs</summary>"
    return f"<h2>Every run</h2><details open>{summary}{_grid(head, lines)}</details>"


def _provenance(frame: pd.DataFrame) -> str:
    labels = {
        "git_commit": "commit", "git_dirty": "uncommitted changes", "fingerprint": "data",
        "device_name": "device", "device_processor": "processor", "device_threads": "threads",
        "device_precision": "precision", "versions": "versions", "kernels": "kernels", "command": "command",
    }  # fmt: skip
    lines = []
    for column, label in labels.items():
        counts = frame[column].dropna().astype(str).value_counts(sort=True)
        found = "<br>".join(
            f'{escape(str(value))} <span class="soft">({n} runs)</span>' for value, n in counts.items()
        )
        lines.append(f'<tr><td>{label}</td><td class="wide">{found or "not recorded"}</td></tr>')
    return f"<h2>Provenance</h2>{_grid(['', ''], lines)}"


def _grid(head: list[str], lines: list[str]) -> str:
    columns = "".join(f"<th>{escape(h)}</th>" for h in head)
    css = "noted" if head[-1] in ("note", "message") else ""
    table = f'<table class="{css}"><thead><tr>{columns}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _line(values: list[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(v)}</td>" for v in values) + "</tr>"


def _list(items: list[str], css: str) -> str:
    return f'<ul class="{css}">' + "".join(f"<li>{escape(i)}</li>" for i in items) + "</ul>" if items else ""


def _dot(colour: str) -> str:
    return f'<span class="dot" style="background:{colour}"></span>'
