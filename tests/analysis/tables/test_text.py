from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from analysis.load.study import load_study
from analysis.stats.versus_baseline import DIFFERENCES, difference_cells, with_differences
from analysis.tables.format import flops, seconds, si, size
from analysis.tables.text import HEADERS, WIDTH, cells, render_markdown, render_tables


def line(text: str, arm: str, task: str = "text") -> str:
    """The line of one arm in the table of one task."""
    table = text[text.index(f"\n{task}, nano: ") :]
    return next(x.strip() for x in table.splitlines() if x.strip().startswith(f"{arm} "))


def gains(text: str, task: str = "text") -> dict[str, list[str]]:
    """What stands after each arm in the table of gains of one task."""
    table = text[text.index(f"\n{task}, nano: ") :]
    lines = table[table.index("gain over baseline") :].splitlines()[2:]
    rows = [x.split() for x in lines[: lines.index("")]]
    return {row[0]: row[1:] for row in rows}


def test_the_table_is_plain_text_of_fixed_width(study: Path) -> None:
    text = render_tables(load_study(study, "compare"))
    assert max(len(x) for x in text.splitlines()) <= WIDTH
    assert "\x1b" not in text
    assert line(text, "decoder").split() == [
        "decoder", "2.401", "±", "0.022", "(3)", "exact", "201k", "209k", "209k", "5.00e11", "205k",
        "6.0", "41.0k", "500", "MiB", "64", "KiB",
    ]  # fmt: skip
    assert line(text, "encoder").endswith("none")
    assert line(text, "xz").split() == ["xz", "2.200", "reference"]
    assert "bits per byte on test, lower is better" in text


def test_warnings_come_first_and_failures_are_rows(study: Path) -> None:
    text = render_tables(load_study(study, "compare"))
    assert text.startswith("Warning: recall, nano: s4 is not compared")
    assert line(text, "s4", "recall").split()[:5] == ["s4", "diverged", "(0", "of", "3)"]
    assert "2.390 (1 of 3)" in line(text, "moe")


def test_only_the_separated_are_called_better(study: Path, write_run: Any) -> None:
    for seed, noise in enumerate((0.03, -0.02, 0.0)):
        write_run("mamba", seed, 2.40 + noise, study="noise")
        write_run("s4", seed, 2.41 - noise, study="noise")
        write_run("decoder", seed, 2.10 + noise / 10, study="noise")
    text = render_tables(load_study(study, "compare"))
    of_text = gains(text)
    assert of_text["s4"][1] == "-0.3020"  # against moe, the best, nothing is known: it lacks runs
    assert {arm: words[-1] for arm, words in of_text.items() if "undecided:" not in words} == {
        "moe": "compared", "decoder": "baseline", "s4": "worse", "diffusion": "baseline",
        "encoder": "baseline",
    }  # fmt: skip
    noisy = gains(render_tables(load_study(study, "noise")))
    assert {arm: (words[0], words[-1]) for arm, words in noisy.items() if "undecided:" not in words} == {
        "decoder": ("1", "baseline"), "mamba": ("2-3", "worse"), "s4": ("2-3", "worse"),
    }  # fmt: skip


def test_not_separated_says_what_would_have_been_seen(write_run: Any, tmp_path: Path) -> None:
    for seed, noise in enumerate((0.03, -0.02, 0.0)):
        write_run("mamba", seed, 2.40 + noise)
        write_run("s4", seed, 2.41 - noise)
    s4 = " ".join(gains(render_tables(load_study(tmp_path / "runs", "compare")))["s4"])
    found = re.fullmatch(r"1-2 -0.00\d+ \[-0.\d+, \+0.\d+\] \(3\) 0.\d+ undecided: MDD (0.\d+)", s4)
    assert found
    # The deviation of the noise is 0.0252; Welch's test of three seeds each finds 3.07 of it.
    assert float(found[1]) == pytest.approx(3.07 * 0.0252, rel=0.01)


def test_rendering_is_pure(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = load_study(study, "compare")
    copy = frame.copy()
    text = render_tables(frame)
    monkeypatch.setitem(os.environ, "COLUMNS", "40")
    monkeypatch.setitem(os.environ, "TERM", "dumb")
    monkeypatch.setitem(os.environ, "FORCE_COLOR", "1")
    assert render_tables(frame.sample(frac=1, random_state=0)) == text
    assert frame.equals(copy)


def test_markdown_holds_the_same_cells(study: Path) -> None:
    frame = load_study(study, "compare")
    lines = render_markdown(frame).splitlines()
    tables = [x for x in lines if x.startswith("|")]
    assert {len(x.split(" | ")) for x in tables if "---" not in x} == {len(HEADERS) + len(DIFFERENCES)}
    for _, row in with_differences(frame).iterrows():
        assert "| " + " | ".join(cells(row) + difference_cells(row)) + " |" in tables


def test_a_table_says_that_it_ranks_mixed_classes_as_one(study: Path) -> None:
    frame = load_study(study, "compare")
    asked = frame.assign(allow_mixed=True)
    note = "; exact, bound, pseudo ranked as one (--allow-mixed)"
    for text in (render_tables(asked), render_markdown(asked)):
        assert f"text, nano: bits per byte on test, lower is better{note}\n" in text
        assert "recall, nano: answer accuracy on test, higher is better\n" in text
    assert gains(render_tables(asked))["decoder"][1].startswith("-1.3")  # from the encoder, the best of all
    alone = render_tables(frame)
    assert note not in alone
    assert gains(alone)["decoder"][-1] == "baseline"


def test_a_study_of_nothing_but_failures_is_a_table(write_run: Any, tmp_path: Path) -> None:
    write_run("mamba", 0, None, status="failed", message="a [bold]bug[/bold] | with marks")
    text = render_tables(load_study(tmp_path / "runs", "compare"))
    assert "no scores yet" in text
    assert "seed 0 failed: a [bold]bug[/bold] | with marks" in text
    assert "Held equal: body parameters" in text


def test_long_names_wrap_and_nothing_is_cut(write_run: Any, tmp_path: Path) -> None:
    folder = write_run("hybrid_of_attention_and_mamba", 0, task="recall", objective="masked_diffusion")
    write_run("hybrid_of_attention_and_mamba", 0, task="recall")
    record = json.loads((folder / "result.json").read_text())
    name = "a value of the context, at random"
    record["references"].append({"name": name, "metric": "answer_accuracy", "value": 0.25, "note": ""})
    (folder / "result.json").write_text(json.dumps(record))
    lines = render_tables(load_study(tmp_path / "runs", "compare")).splitlines()
    assert max(len(x) for x in lines) <= WIDTH
    first = next(i for i, x in enumerate(lines) if x.startswith(" a value"))
    folded = " ".join(re.split(r"\s{2,}", x.strip())[0] for x in lines[first : first + 3])
    assert folded.startswith(name)
    assert "…" not in "".join(lines)
    assert [x for x in lines if x.endswith("64 KiB")]


def test_numbers_for_people() -> None:
    assert [si(x) for x in (0, 12, 999, 999.6, 1234, 208600, 3e6, 7e15, math.nan)] == [
        "0", "12", "999", "1.00k", "1.23k", "209k", "3M", "7000T", "-",
    ]  # fmt: skip
    assert [size(x) for x in (512, 65536, 500 * 2**20, 1.5 * 2**30, math.nan)] == [
        "512 B", "64 KiB", "500 MiB", "1.50 GiB", "-",
    ]  # fmt: skip
    assert [flops(x) for x in (1.234e15, math.nan)] == ["1.23e15", "-"]
    assert [seconds(x) for x in (5.04, 99.97, 1234.5, math.nan)] == ["5.0", "100", "1234", "-"]
