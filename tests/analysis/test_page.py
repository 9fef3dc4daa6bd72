from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from analysis.load import load_history, load_study
from analysis.page import POLICY, render_page
from analysis.summary import arm_table, study_warnings
from analysis.table import cells


def page(runs: Path) -> str:
    return render_page(load_study(runs, "compare"), load_history(runs, "compare"))


def without_scripts(html: str) -> str:
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def test_the_page_stands_alone(study: Path) -> None:
    html = page(study)
    assert len(re.findall(r"plotly\.js v\d", html)) == 1
    assert len(re.findall(r'Plotly\.newPlot\(\s*"', html)) == 2
    assert POLICY in html
    assert "default-src 'none'" in POLICY
    assert "http" not in POLICY
    assert not re.search(r"<script[^>]*\ssrc=|<link|<img|<iframe|@import|url\(", without_scripts(html))
    assert not re.search(r"<script[^>]*\ssrc=", html)
    assert len(html) < 5_500_000


def test_tables_equal_the_frame(study: Path) -> None:
    frame = load_study(study, "compare")
    text = re.sub(r'<span class="dot"[^>]*></span>', "", without_scripts(page(study)))
    for _, row in arm_table(frame).iterrows():
        assert "".join(f"<td>{escape(c)}</td>" for c in cells(row)) in text
    for _, run in frame[frame["status"] == "complete"].iterrows():
        assert f"<td>{run['score']:.6f}</td>" in text
    for warning in study_warnings(frame):
        assert escape(warning) in text


def test_provenance_and_meanings_are_there(study: Path) -> None:
    text = without_scripts(page(study))
    command = "python -m experiments.train study=compare"
    for words in ("c0ffee", "data-1", command, "upper bound", "sdpa", "fp32"):
        assert words in text


def test_messages_cannot_become_markup(write_run: Any, tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=alert(1)>"
    write_run("mamba", 0, None, status="failed", message=nasty)
    write_run("<b>bold", 0)
    html = page(tmp_path / "runs")
    assert "<img" not in without_scripts(html)
    assert "<b>bold" not in without_scripts(html)
    assert escape(nasty) in html


def test_a_study_without_any_result_is_a_page(write_run: Any, tmp_path: Path) -> None:
    folder = write_run("mamba", 0, killed=True)
    (folder / "metrics.jsonl").unlink()
    html = page(tmp_path / "runs")
    assert "No run has been validated yet" in html
    assert "incomplete (0 of 1)" in html
    assert not re.search(r"\b(nan|None)\b", without_scripts(html))
