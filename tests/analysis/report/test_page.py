from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from markupsafe import escape

from analysis.load.study import load_history, load_study
from analysis.report.differences import panels
from analysis.report.page import POLICY, render_page
from analysis.stats.versus_baseline import with_differences
from analysis.stats.warnings import study_warnings
from analysis.tables.body import table_rows
from analysis.tables.columns import table_columns
from analysis.tables.sentences import answers


def page(runs: Path) -> str:
    return render_page(load_study(runs, "compare"), load_history(runs, "compare"))


@pytest.fixture
def pair(write_run: Any, tmp_path: Path) -> Path:
    """Two runs, for what does not depend on how many there are."""
    write_run("decoder", 0)
    write_run("mamba", 0, objective="masked_diffusion", likelihood="bound")
    return tmp_path / "runs"


def without_scripts(html: str) -> str:
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def test_the_page_stands_alone(study: Path) -> None:
    html = page(study)
    plots = [json.loads(text) for text in re.findall(r"data-plot><script[^>]*>(.*?)</script>", html)]
    assert len(plots) >= 5
    assert {trace["name"] for trace in plots[0]["data"]} >= {"decoder", "mamba", "s4"}
    [packed] = re.findall(r'<script type="text/plain" id="plotly">([^<]*)</script>', html)
    assert re.search(rb"plotly\.js v\d", gzip.decompress(base64.b64decode(packed)))
    assert f'content="{escape(POLICY)}"' in html
    assert "default-src 'none'" in POLICY
    assert "http" not in POLICY
    assert not re.search(r"<script[^>]*\ssrc=|<link|<img|<iframe|@import|url\((?!#)", without_scripts(html))
    assert not re.search(r"<script[^>]*\ssrc=", html)


def test_every_part_is_there_and_says_what_to_run_where_it_has_no_data(pair: Path) -> None:
    text = without_scripts(page(pair))
    titles = re.findall(r"<h2>(\d+)\. ", text)
    assert titles == [str(i) for i in range(1, 13)]
    for command in ("compare_rates", "ladder", "state_tracking"):
        assert f"<code>archbench train study={command}</code>" in text
    assert text.count("<code>archbench benchmark -m backbone=decoder,mamba output=") == 1
    assert str(escape("""'trainer.extra_evaluations=["sequence_length=256"]'""")) in text
    assert "sequence_length=256 depth=0" in text
    run = pair / "compare" / "decoder-causal_lm-text-nano-ab12cd34" / "s0"
    assert f"run={run} stretches=8 output={run}/evaluate.json" in text


@pytest.mark.full
def test_a_hundred_runs_stay_under_five_megabytes(write_run: Any, tmp_path: Path) -> None:
    for number in range(25):
        for seed in range(4):
            folder = write_run("decoder", seed, 2.4 + number / 100, digest=f"{number:08x}")
            with (folder / "metrics.jsonl").open("a") as file:
                for step in range(60, 460):
                    row = {"step": step, "tokens": step, "flops": step, "seconds": step}
                    file.write(json.dumps({"kind": "train", **row, "grad_norm": 1 / step}) + "\n")
                    if step % 10 == 0:
                        file.write(
                            json.dumps({"kind": "validation", **row, "bits_per_byte": 1 / step}) + "\n"
                        )
    assert len(page(tmp_path / "runs").encode()) < 5_000_000


def test_the_first_screen_answers_in_sentences_and_one_figure(study: Path) -> None:
    frame = load_study(study, "compare")
    html = page(study)
    first = without_scripts(html[: html.index("<h2>")])
    for sentence in answers(with_differences(frame)):
        where, _, what = sentence.partition(": ")
        assert f"<strong>{escape(where)}:</strong> {escape(what)}" in first
    found = panels(with_differences(frame), frame)
    assert [(panel.title, panel.subtitle) for panel in found] == [
        ("recall, nano", "answer accuracy against decoder"),
        ("text, nano", "exact likelihood, bits per byte against decoder"),
    ]  # bounds and pseudo-likelihoods have one model each, and an axis of their own where they have two
    assert first.count('<section class="panel">') == 2
    bars = {bar.arm: bar for bar in found[1].bars}
    assert bars["decoder"].baseline
    assert bars["decoder"].middle is None
    s4, zero = bars["s4"], found[1].zero
    places = [0.0, s4.low, s4.middle, s4.high, zero, 100.0]
    assert None not in places
    assert places == sorted(map(float, places))  # type: ignore[arg-type]  # worse is left of the baseline
    assert s4.decided
    assert not bars["moe"].decided
    assert f'cx="{s4.middle}%"' in first


def test_tables_equal_the_frame(study: Path) -> None:
    frame = load_study(study, "compare")
    text = re.sub(r'<span class="dot"[^>]*></span>', "", without_scripts(page(study)))
    for _, rows in with_differences(frame).groupby(["task", "scale"]):
        for row in table_rows(rows, table_columns(rows, wide=True)):
            assert "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) in text, row.cells
    for _, run in frame[frame["status"] == "complete"].iterrows():
        assert f"<td>{run['score']:.6f}</td>" in text
    for warning in study_warnings(frame):
        assert escape(warning) in text


def test_no_picture_is_an_image(write_run: Any, tmp_path: Path) -> None:
    """A figure of Matplotlib is an element of the page, and its style is its own."""
    for seed in range(2):
        for number, digest in enumerate(("11111111", "22222222")):
            folder = write_run("decoder", seed, 2.4 + number / 10, digest=digest)
            config = {"study": {"against": "training_tokens"}, "budget": {"tokens": 1 + number}}
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
    text = without_scripts(page(tmp_path / "runs"))
    assert '<div class="drawn"' in text
    assert text.count("<svg") > text.count('<div class="bar"')
    assert not re.search(r"<img|<image|data:image", text)
    assert not re.search(r"(?<!svg )\*\{", text)


def test_provenance_and_meanings_are_there(pair: Path) -> None:
    text = without_scripts(page(pair))
    command = "archbench train study=compare"
    for words in ("c0ffee", "data-1", command, "upper bound", "sdpa", "fp32"):
        assert words in text


def test_names_and_messages_cannot_become_markup(write_run: Any, tmp_path: Path) -> None:
    message = "</script><img src=x onerror=alert(1)>"
    backbone, study = """<b>"bold" 'it'""", "one</h1><script>alert(1)<&script>"
    write_run("mamba", 0, None, status="failed", message=message)
    write_run(backbone, 0)
    write_run("s4", 0)
    frame, history = load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare")
    html = render_page(frame.assign(study=study), history)
    text = without_scripts(html)
    assert not re.search(r"<(img|b|script)\b", text)
    assert f"<h1>{escape(study)}</h1>" in html
    assert f"<title>{escape(study)}: report</title>" in html
    assert f'<input type="checkbox" value="{escape(backbone)}" checked>' in html
    assert escape(message) in html


def test_a_study_without_any_result_is_a_page(write_run: Any, tmp_path: Path) -> None:
    folder = write_run("mamba", 0, killed=True)
    (folder / "metrics.jsonl").unlink()
    html = page(tmp_path / "runs")
    assert "No run has been validated yet" in html
    assert "incomplete (0 of 1)" in html
    assert not re.search(r"\b(nan|None)\b", without_scripts(html))
