from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.tables.headings import held_equal
from archbench.analysis.tables.latex import escape, render_latex
from archbench.analysis.tables.sentences import answers
from archbench.analysis.tables.study_tables import study_tables


def rows_of(table: str) -> list[list[str]]:
    """The cells of each line of a tabular; one that spans several stands once for each."""
    found = []
    for line in (line.removesuffix(r" \\") for line in table.splitlines() if line.endswith(r" \\")):
        row: list[str] = []
        for cell in re.split(r" (?<!\\)& ", line):
            spans = re.fullmatch(r"\\multicolumn\{(\d+)\}\{l\}\{(.*)\}", cell)
            row += [spans[2]] * int(spans[1]) if spans else [cell]
        found.append(row)
    return found


def test_every_environment_is_closed_and_every_row_has_its_columns(study: Path) -> None:
    text = render_latex(study_tables(Comparison(load_study(study, "compare"))))
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    columns = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert len(columns) == 2
    assert {len(row) for row in rows_of(text)} == {len(columns[0])}
    assert len(columns[0]) <= 8
    assert [text.count(rf"\{rule}rule") for rule in ("top", "bottom")] == [2, 2]


def test_verdicts_caption_sentences_and_warnings(study: Path) -> None:
    frame = load_study(study, "compare")
    text = render_latex(study_tables(Comparison(frame)))
    _, table = text.split(r"\caption{text, nano: bits per byte on test, lower is better.")
    assert table.startswith(f" {escape(held_equal(frame))}")
    cells = {row[0]: row for row in rows_of(table)}
    # moe lacks runs, so it has no rank.
    assert {"moe", r"\textbf{decoder}", "s4"} <= set(cells)
    assert cells["s4"][2].startswith("worse $-$0.302 $\\pm$ ")
    assert cells[r"\textbf{decoder}"][1] == r"2.401 $\pm$ 0.022 (3)"
    for words in (*answers(Comparison(frame[frame["task"] == "text"]).arms), *Comparison(frame).warnings):
        assert escape(words).rstrip(".") in table


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (r"a_b & 5% of {x} #1 $2 \n ~ ^", r"a\_b \& 5\% of \{x\} \#1 \$2 \textbackslash{}n \textasciitilde{} "
         r"\textasciicircum{}"),
        ("-0.5 ± 1e-05, mamba-2", r"$-$0.5 $\pm$ 1e-05, mamba-2"),
        ("line\nend", "line end"),
    ],
)  # fmt: skip
def test_what_latex_takes_for_commands_is_escaped(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_a_message_cannot_become_a_command(write_run: Any, tmp_path: Path) -> None:
    write_run("mamba", 0, None, status="failed", message=r"\input{/etc/passwd} & more")
    text = render_latex(study_tables(Comparison(load_study(tmp_path / "runs", "compare"))))
    assert r"\input" not in text
    assert r"\textbackslash{}input\{/etc/passwd\} \& more" in text
