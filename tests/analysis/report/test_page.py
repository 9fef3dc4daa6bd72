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

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.compute import score_over_compute
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.cards import cards
from archbench.analysis.report.differences import panels
from archbench.analysis.report.page import POLICY
from archbench.analysis.report.tables import score_and_cost_columns, warning_groups
from archbench.analysis.tables.body import table_body
from archbench.analysis.tables.columns import verdict_text
from archbench.analysis.tables.sentences import answers
from archbench.analysis.tables.study_tables import study_tables
from tests.analysis.pages import page_of
from tests.results import write_result


def page(runs: Path) -> str:
    return page_of(Comparison(load_study(runs, "compare"), load_history(runs, "compare")))


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
    assert len(plots) == 4
    assert {trace["name"] for trace in plots[0]["data"]} >= {"decoder", "mamba", "s4"}
    [packed] = re.findall(r'<script type="text/plain" id="plotly">([^<]*)</script>', html)
    assert re.search(rb"plotly\.js v\d", gzip.decompress(base64.b64decode(packed)))
    assert f'content="{escape(POLICY)}"' in html
    assert "default-src 'none'" in POLICY
    assert "http" not in POLICY
    assert not re.search(r"<script[^>]*\ssrc=|<link|<img|<iframe|@import|url\((?!#)", without_scripts(html))
    assert not re.search(r"<script[^>]*\ssrc=", html)


def test_a_part_without_data_is_not_there_and_the_last_list_says_what_adds_it(pair: Path) -> None:
    text = without_scripts(page(pair))
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles == ["Learning curves", "Models", "Details", "Warnings"]
    between = re.split(r"<h2[^>]*>.*?</h2>", text)[1:]
    assert all(re.search(r"<table|<svg|<li|data-plot", part) for part in between)
    needs = text[text.index('<ul class="needs">') :]
    for command in ("compare_rates", "ladder", "state_tracking"):
        assert f"<code>archbench train study={command}</code>" in needs
    assert text.count("<code>archbench benchmark -m backbone=decoder,mamba output=") == 1
    assert str(escape("""'trainer.extra_evaluations=["sequence_length=256"]'""")) in needs
    assert "sequence_length=256 depth=0" in needs
    run = pair / "compare" / "decoder-causal_lm-text-nano-ab12cd34" / "s0"
    assert f"run={run} stretches=8 output={run}/evaluate.json" in needs


def test_a_fact_of_the_first_screen_is_there_twice_at_most(study: Path) -> None:
    text = without_scripts(page(study))
    frame = load_study(study, "compare")
    for _, row in Comparison(frame).arms.query("verdict.notna()").iterrows():
        assert 1 <= text.count(f"<td>{escape(verdict_text(row))}</td>") <= 2


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


def test_the_first_screen_answers_in_a_sentence_and_a_table_with_a_figure(study: Path) -> None:
    frame = load_study(study, "compare")
    html = page(study)
    first = without_scripts(html[: html.index("<h2>")])
    for sentence in answers(Comparison(frame).arms):
        where, _, what = sentence.partition(": ")
        lead, _, rest = what.partition(". ")
        assert f"<strong>{escape(where)}:</strong> {escape(lead.rstrip('.'))}." in first
        assert str(escape(rest)) in first
    found = {panel.title: panel for panel in panels(study_tables(Comparison(frame)), frame)}
    assert list(found) == [
        "recall, nano", "text, nano, exact likelihood", "text, nano, bound on the likelihood",
        "text, nano, pseudo-likelihood",
    ]  # fmt: skip
    assert first.count('<table class="panel">') == len(found)
    assert all(f'<span class="soft">{escape(panel.held_equal)}</span>' in first for panel in found.values())
    assert first.index('<p class="soft key">') < first.index("<table")  # the signs are explained above them
    panel = found["text, nano, exact likelihood"]
    assert (panel.metric, panel.baseline) == ("bits per byte, lower is better", "decoder")
    bars = {bar.arm: bar for bar in panel.bars}
    s4, decoder = bars["s4"], bars["decoder"]
    places = [0.0, decoder.middle, s4.low, *sorted(s4.seeds), s4.high, 100.0]
    assert places == sorted(map(float, places))  # type: ignore[arg-type]  # worse is higher: to the right
    assert s4.decided
    assert not bars["moe"].decided
    assert f'cx="{s4.middle}%"' in first
    assert bars["moe"].low is None  # of one seed


def test_a_study_with_several_budgets_begins_with_score_over_compute(write_run: Any, tmp_path: Path) -> None:
    for number, digest in enumerate(("11111111", "22222222", "33333333")):
        for name, score in (("decoder", 2.4), ("mamba", 2.3)):
            for seed in range(2):
                folder = write_run(name, seed, score - number / 10 + seed / 100, digest=digest)
                result = json.loads((folder / "result.json").read_text())
                result["training"]["flops"] = 5e11 * 4**number
                write_result(folder, result)
                (folder / "config.yaml").write_text(yaml.safe_dump({"budget": {"tokens": 4**number}}))
    frame, history = load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare")
    figure = score_over_compute(Comparison(frame))
    assert figure is not None
    assert [(trace.name, list(trace.x)) for trace in figure.data] == [
        ("mamba", [5e11, 2e12, 8e12]), ("decoder", [5e11, 2e12, 8e12]),
        ("xz", [5e11, 8e12]),
    ]  # fmt: skip
    xz = figure.data[2]
    assert list(xz.text) == ["xz 2.2", ""]  # at the first budget the models are further from it
    assert xz.textposition.endswith("right")
    assert list(figure.data[0].y) == pytest.approx([2.305, 2.205, 2.105])
    html = page_of(Comparison(frame, history))
    assert html.index("data-plot") < html.index("<table class=")
    assert score_over_compute(Comparison(frame.assign(training_flops=5e11))) is None  # one budget
    mixed = frame.assign(training_flops=frame["training_flops"].where(frame["backbone"] != "mamba", 5e11))
    assert score_over_compute(Comparison(mixed)) is None  # models of mamba differ in something else


def test_a_card_has_what_a_model_is_and_how_its_loss_fell(study: Path) -> None:
    frame, history = load_study(study, "compare"), load_history(study, "compare")
    card = next(card for card in cards(Comparison(frame, history)) if card.name == "mamba")
    assert card.description == "Mamba: selective state-space model."
    assert ("decoding state", "64 KiB") in card.facts
    assert [curve.label for curve in card.curves] == ["recall, nano", "text, nano"]
    assert card.curves[1].ends == "0.30 to 0.06"  # the mean of 3 / step + seed / 1000
    points = [tuple(map(float, point.split(","))) for point in card.curves[1].points.split()]
    assert (points[0], points[-1]) == ((0.0, 0.0), (100.0, 40.0))
    [diffusion] = [card for card in cards(Comparison(frame, history)) if card.name == "diffusion"]
    assert diffusion.description == ""  # it has no YAML
    assert ("decoding state", "none") in diffusion.facts


def test_warnings_are_grouped_at_the_end(study: Path) -> None:
    frame = load_study(study, "compare")
    groups = dict(warning_groups(Comparison(frame)))
    assert set(groups) <= {"the study", "recall, nano", "text, nano"}
    assert sum(map(len, groups.values())) == len(Comparison(frame).warnings)
    html = page(study)
    end = html[html.index('id="warnings"') :]
    assert "<h2" not in end
    for warning in Comparison(frame).warnings:
        label, _, text = warning.partition(": ")
        assert escape(text if label in groups else warning) in end


def test_tables_equal_the_frame(study: Path) -> None:
    frame = load_study(study, "compare")
    text = re.sub(r'<span class="dot"[^>]*></span>', "", without_scripts(page(study)))
    for _, rows in Comparison(frame).arms.groupby(["task", "scale"]):
        body = table_body(rows)
        scores, costs = score_and_cost_columns(body.columns)
        heads = {column.head for column in (*scores, *costs)}
        assert heads == {column.head for column in body.columns}
        for row in body.only(scores).rows:
            assert "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) in text, row.cells
        for _, row in rows[rows["seeds"] > 0].iterrows():
            assert "".join(f"<td>{escape(column.text(row))}</td>" for column in costs) in text
    for _, run in frame[frame["status"] == "complete"].iterrows():
        assert f"<td>{run['score']:.6f}</td>" in text


def test_no_picture_is_an_image(write_run: Any, tmp_path: Path) -> None:
    for seed in range(2):
        for number, digest in enumerate(("11111111", "22222222")):
            folder = write_run("decoder", seed, 2.4 + number / 10, digest=digest)
            config = {"study": {"against": "training_tokens"}, "budget": {"tokens": 1 + number}}
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
    text = without_scripts(page(tmp_path / "runs"))
    assert text.count('<div class="figure"') > 1
    assert not re.search(r"<img|<image|data:image", text)


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
    html = page_of(Comparison(frame.assign(study=study), history))
    text = without_scripts(html)
    assert not re.search(r"<(img|b|script)\b", text)
    assert f"<h1>{escape(study)}</h1>" in html
    assert f"<title>{escape(study)}: report</title>" in html
    assert f'<input type="checkbox" value="{escape(backbone)}" data-names=' in html
    assert escape(message) in html


def test_a_study_without_any_result_is_a_page(write_run: Any, tmp_path: Path) -> None:
    folder = write_run("mamba", 0, killed=True)
    (folder / "metrics.jsonl").unlink()
    html = page(tmp_path / "runs")
    assert "No run was validated twice" in html
    assert "incomplete (0 of 1)" in html
    assert not re.search(r"\b(nan|None)\b", without_scripts(html))
