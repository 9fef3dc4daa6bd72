from __future__ import annotations

import json
import math
import os
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from rich.table import Table

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.grid import Grid
from archbench.analysis.tables.body import table_body
from archbench.analysis.tables.columns import MOST_COLUMNS, interval
from archbench.analysis.tables.format import flops, seconds, si, size
from archbench.analysis.tables.headings import held_equal
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables
from archbench.analysis.tables.terminal import grid_parts, render_tables, study_text
from archbench.experiments.runtime.console import WIDTH
from tests.results import write_result


def table(text: str, task: str = "text") -> list[str]:
    """The lines of one table, from its header to its last row."""
    here = text[text.rindex(f"\n{task}, nano: ") :]
    here = here[here.index("\nmodel") + 1 :]
    return here[: here.index("\n\n")].splitlines()


def line(text: str, arm: str, task: str = "text") -> str:
    """The line of one arm in the table of one task."""
    return next(x.strip() for x in table(text, task) if x.strip().startswith(f"{arm} "))


def test_the_table_has_eight_columns_at_most_that_fit_80_characters(study: Path) -> None:
    text = render_tables(study_tables(Comparison(load_study(study, "compare"))))
    assert max(len(x) for x in text.splitlines()) <= WIDTH == 80
    assert "\x1b" not in text
    head, *_ = table(text)
    assert re.split(r"\s{2,}", head.strip()) == [
        "model", "score (seeds)", "verdict, + better", "FLOPs", "tok/s", "state",
    ]  # fmt: skip
    assert len(re.split(r"\s{2,}", head.strip())) <= MOST_COLUMNS
    assert line(text, "decoder").startswith("decoder    2.401 ± 0.022 (3)  ")
    assert line(text, "decoder").split()[-5:] == ["baseline", "5.00e11", "41.0k", "64", "KiB"]
    assert line(text, "encoder").endswith("none")


def test_sentences_come_first_then_warnings_then_the_tables(study: Path) -> None:
    frame = load_study(study, "compare")
    text = render_tables(study_tables(Comparison(frame)))
    assert text.startswith("recall, nano: decoder wins with 0.991")
    places = [
        text.index(words) for words in ("text, nano, exact", "Study compare:", "Warning:", "Held equal")
    ]
    assert places == sorted(places)
    markdown = render_markdown(study_tables(Comparison(frame)))
    assert markdown.startswith("- recall, nano: decoder wins with 0.991")


def test_the_first_line_of_a_table_says_what_is_held_equal(study: Path) -> None:
    frame = load_study(study, "compare").assign(matched_axis="non_embedding")
    words = (
        "Held equal: 200,000 non-embedding parameters (largest mismatch 0.30%); 205k training tokens; 5.00e11"
    )
    lines = render_tables(study_tables(Comparison(frame))).splitlines()
    first = lines.index("text, nano: bits per byte on test, lower is better") + 1
    assert " ".join(" ".join(lines[first : first + 2]).split()).startswith(words)
    assert "Held equal: 800 FLOPs per token;" in held_equal(
        frame.assign(matched_axis="flops", matched_target=800.0, matched_residual=math.nan)
    )
    other = frame.assign(matched_axis=None)
    other["training_tokens"] = range(1, 1 + len(other))
    other["training_flops"] = range(1, 1 + len(other))
    assert held_equal(other) == "Held equal: nothing."


def test_cells_without_a_score_are_rows_with_their_reasons(study: Path, write_run: Any) -> None:
    broken = write_run("gla", 0)
    (broken / "result.json").write_text('{"format": 1, "sta')
    write_run("rwkv", 0, None, status="refused", message="12 heads do not divide d_model=100")
    text = " ".join(render_tables(study_tables(Comparison(load_study(study, "compare")))).split())
    for words in (
        "s4 diverged (0 of 3) seeds 0, 1, 2 diverged: loss is nan at step 40",
        "moe 2.390 (1 of 3) not compared: seed 1 oom: asked for 9 GiB, 8 GiB were free; seed 2 incomplete",
        "rwkv refused (0 of 1) seed 0 refused: 12 heads do not divide d_model=100",
        "gla unreadable (0 of 1) seed 0 unreadable: ",
    ):
        assert words in text
    assert "25 of 32 runs complete, 3 diverged, 1 incomplete, 1 oom, 1 refused, 1 unreadable" in text


def test_below_a_baseline_that_learned_nothing_is_flagged_and_not_ranked(study: Path, write_run: Any) -> None:
    for seed in range(3):
        write_run("gla", seed, 0.03, task="recall")
    text = render_tables(study_tables(Comparison(load_study(study, "compare"))), wide=True)
    assert "gla has not learned the task and is not ranked: no better than any value (" in " ".join(
        text.split()
    )
    cells = re.split(r"\s{2,}", line(text, "gla", "recall"))
    assert cells[2] == "not learned"
    rows = [x.split()[0] for x in table(text, "recall")[2:]]
    assert rows == ["decoder", "mamba", "encoder", "gla", "no", "s4"]


def test_settings_are_columns(write_run: Any, tmp_path: Path) -> None:
    for number, (kind, heads) in enumerate((("rope", 4), ("alibi", 1))):
        for seed in range(2):
            folder = write_run("decoder", seed, 2.4 + number + seed / 100, digest=f"{number:08}")
            backbone = {"kind": kind, "heads": heads}
            (folder / "config.yaml").write_text(yaml.safe_dump({"backbone": backbone}))
    frame = load_study(tmp_path / "runs", "compare")
    assert set(frame["arm"]) == {"decoder heads=4 kind=rope", "decoder heads=1 kind=alibi"}
    text = render_tables(study_tables(Comparison(frame)))
    head, _, _, *lines = table(text)
    assert head.split()[:4] == ["model", "heads", "kind", "score,"]
    assert len(re.split(r"\s{2,}", head.strip())) <= MOST_COLUMNS
    assert [x.split()[:3] for x in lines] == [["decoder", "4", "rope"], ["decoder", "1", "alibi"]]
    assert "No room for parameters: add --wide." in text


def test_wide_has_all_columns_and_no_line_is_broken(study: Path) -> None:
    frame = load_study(study, "compare")
    head, *_ = table(render_tables(study_tables(Comparison(frame)), wide=True))
    for name in ("likelihood", "rank", "p", "detectable", "seeds to decide", "error over items", "mismatch"):
        assert name in re.split(r"\s{2,}", head.strip())
    decoder = line(render_tables(study_tables(Comparison(frame)), wide=True), "decoder")
    assert decoder.endswith("+0.30%")
    assert len(decoder) > WIDTH


def test_rendering_is_pure(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = load_study(study, "compare")
    copy = frame.copy()
    text = render_tables(study_tables(Comparison(frame)))
    monkeypatch.setitem(os.environ, "COLUMNS", "40")
    monkeypatch.setitem(os.environ, "TERM", "dumb")
    monkeypatch.setitem(os.environ, "FORCE_COLOR", "1")
    assert render_tables(study_tables(Comparison(frame.sample(frac=1, random_state=0)))) == text
    assert frame.equals(copy)


@pytest.mark.parametrize("wide", [False, True])
def test_markdown_holds_the_same_cells(study: Path, wide: bool) -> None:
    frame = load_study(study, "compare")
    lines = [
        x
        for x in render_markdown(study_tables(Comparison(frame)), wide=wide).splitlines()
        if x.startswith("|")
    ]
    for _, rows in Comparison(frame).arms.groupby(["task", "scale"]):
        body = table_body(rows) if wide else table_body(rows).narrow()[0]
        assert {len(x.split(" | ")) for x in lines if "---" not in x} == {len(body.columns)}
        for row in body.rows:
            cells = row.filled + [""] * (len(body.columns) - len(row.filled))
            assert "| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |" in lines
    assert "| *pseudo-likelihood* |" in "\n".join(lines)


def test_a_table_says_that_it_ranks_mixed_classes_as_one(study: Path) -> None:
    frame = load_study(study, "compare")
    asked = frame.assign(allow_mixed=True)
    note = "; exact, bound, pseudo ranked as one (--allow-mixed)"
    for text in (
        render_tables(study_tables(Comparison(asked))),
        render_markdown(study_tables(Comparison(asked))),
    ):
        title = f"text, nano: bits per byte on test, lower is better{note} "
        assert title in " ".join(text.split())
        assert "recall, nano: answer accuracy on test, higher is better\n" in text
    assert "worse -1.3" in line(
        render_tables(study_tables(Comparison(asked))), "decoder"
    )  # than the encoder, the best of all
    alone = render_tables(study_tables(Comparison(frame)))
    assert note not in alone
    assert "worse" not in line(alone, "decoder")


def test_a_study_of_nothing_but_failures_is_a_table(write_run: Any, tmp_path: Path) -> None:
    write_run("mamba", 0, None, status="failed", message="a [bold]bug[/bold] | with marks")
    text = render_tables(study_tables(Comparison(load_study(tmp_path / "runs", "compare"))))
    assert "text, nano: no model has a score yet" in text
    assert "seed 0 failed: a [bold]bug[/bold] | with marks" in " ".join(text.split())
    assert "Held equal: 200,000 body parameters" in text


def test_long_names_wrap_and_nothing_is_cut(write_run: Any, tmp_path: Path) -> None:
    name = "hybrid_of_attention_and_mamba"
    for objective in ("causal_lm", "masked_diffusion"):
        folder = write_run(name, 0, task="recall", objective=objective)
    record = json.loads((folder / "result.json").read_text())
    reference = "a value of the context, at random, after all that was said before of keys and values"
    record["references"].append({"name": reference, "metric": "answer_accuracy", "value": 0.25, "note": ""})
    write_result(folder, record)
    text = render_tables(study_tables(Comparison(load_study(tmp_path / "runs", "compare"))))
    assert max(len(x) for x in text.splitlines()) <= WIDTH
    assert f"{reference} 0.250" in " ".join(text.split())
    assert "…" not in text
    assert line(text, f"{name} masked_diffusion", "recall")


def test_equal_numbers_of_seeds_are_in_the_head_and_a_difference_of_zero_is_a_tie(
    write_run: Any, tmp_path: Path
) -> None:
    for seed, score in enumerate((0.4, 0.5, 0.6)):
        write_run("decoder", seed, score, task="recall", likelihood=None)
        write_run("mamba", seed, score, task="recall", likelihood=None)
    text = render_tables(study_tables(Comparison(load_study(tmp_path / "runs", "compare"))))
    head, *_ = table(text, "recall")
    assert "score, 3 seeds" in head
    assert re.search(r"mamba +0\.500 ± 0\.\d{3}  undecided, tie ± 0\.\d{3} ", line(text, "mamba", "recall"))


def test_verdicts_have_colours_on_a_terminal(study: Path) -> None:
    screen = StringIO()
    console = Console(file=screen, width=WIDTH, force_terminal=True, color_system="standard")
    console.print(study_text(study_tables(Comparison(load_study(study, "compare")))), crop=False)
    assert re.search(r"mamba .*\x1b\[31mworse\x1b\[0m", screen.getvalue())
    plain = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())
    assert max(map(len, plain.splitlines())) <= WIDTH


def test_a_table_that_is_too_wide_is_continued_below() -> None:
    grid = Grid(
        title="wide", keys=2, head=["model", "task", *(f"measure {i}" for i in range(12))],
        rows=[[name, "recall", *("0.123 ± 0.456" for _ in range(12))] for name in ("decoder", "mamba")],
    )  # fmt: skip
    tables = [part for part in grid_parts(grid) if isinstance(part, Table)]
    heads = [[str(column.header) for column in part.columns] for part in tables]
    assert len(tables) == 3
    assert [name for head in heads for name in head[2:]] == grid.head[2:]
    assert all(head[:2] == grid.head[:2] for head in heads)
    shown = StringIO()
    console = Console(file=shown, width=WIDTH)
    for part in grid_parts(grid):
        console.print(part)
    assert max(len(x.rstrip()) for x in shown.getvalue().splitlines()) <= WIDTH
    assert shown.getvalue().count("0.123 ± 0.456") == 24


def test_numbers_are_not_cut_where_the_columns_just_fit() -> None:
    head = ["model", "FLOPs", "seeds", "bits per byte", "of decoder", "multiplier", "multiplier in time"]
    head.append("share of decoder_canon")
    row = ["decoder_canon", "1.3e12", "5", "2.216", "2.391", "2.14 [1.7, 2.42]", "1.1", "83% [70%, 91%]"]
    shown = StringIO()
    for part in grid_parts(Grid(title="", keys=2, head=head, rows=[row])):
        Console(file=shown, width=WIDTH).print(part)
    assert max(len(x.rstrip()) for x in shown.getvalue().splitlines()) <= WIDTH
    assert all(cell in shown.getvalue() for cell in row)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((2.115, 2.101, 2.129), "2.115 ± 0.014"),
        ((0.848, 0.052, 0.998), "0.848 [0.05, 1.00]"),
        ((0.5, math.nan, math.nan), "0.500"),
        ((-0.0001, -0.0101, 0.0099), "0.000 ± 0.010"),
    ],
)
def test_an_interval_is_symmetric_or_has_both_ends(numbers: tuple[float, float, float], text: str) -> None:
    assert interval(*numbers, 3) == text


def test_numbers_for_people() -> None:
    assert [si(x) for x in (0, 12, 999, 999.6, 1234, 208600, 3e6, 7e15, math.nan)] == [
        "0", "12", "999", "1.00k", "1.23k", "209k", "3M", "7000T", "-",
    ]  # fmt: skip
    assert [size(x) for x in (512, 65536, 500 * 2**20, 1.5 * 2**30, math.nan)] == [
        "512 B", "64 KiB", "500 MiB", "1.50 GiB", "-",
    ]  # fmt: skip
    assert [flops(x) for x in (1.234e15, math.nan)] == ["1.23e15", "-"]
    assert [seconds(x) for x in (5.04, 99.97, 1234.5, math.nan)] == ["5.0", "100", "1234", "-"]
