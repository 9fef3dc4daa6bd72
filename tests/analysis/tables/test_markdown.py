"""Names and messages of runs are text on every page, whatever characters they have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.tables.latex import render_latex
from archbench.analysis.tables.markdown import escaped, table
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables
from tests.analysis.pages import page_of

HOSTILE = (
    "<img src=x onerror=alert(1)> <script>alert(1)</script> [x](javascript:alert(1)) ![y](http://e.org/p) "
    "`code` **bold** _slanted_ ~~struck~~ a|b &lt; \\input{x} {{ 7 * 7 }} {% raw %} \x1b[2J\x1b]0;title\x07 "
    "\u202eltr"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bits_per_byte [0.1, 0.2], p < 0.05, a > b", "bits_per_byte [0.1, 0.2], p < 0.05, a > b"),
        ("encoder-decoder (3) + 0.1 & more", "encoder-decoder (3) + 0.1 & more"),
        ("<b>x</b> <!-- y -->", "&lt;b>x&lt;/b> &lt;!-- y -->"),
        ("&lt;b> &#60;", "&amp;lt;b> &amp;#60;"),
        ("[a](b) ![a](b)", r"[a]\(b) ![a]\(b)"),
        ("a `b` \\c", r"a \`b\` \\c"),
        ("_a_ __b__ c_d *e* ~~f~~", r"\_a\_ \_\_b\_\_ c_d \*e\* \~~f\~~"),
        ("# no heading", r"\# no heading"),
        ("- no list\n> no quote", r"\- no list > no quote"),
        ("\x1b[31mred\x07\u202e", "\u241b[31mred\u2407\ufffd"),
    ],
)  # fmt: skip
def test_what_markdown_or_html_would_interpret_is_escaped(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_a_cell_stays_in_its_column() -> None:
    assert table(["a|b", "c"], [["1\n2", "3 | 4"]]) == ["| a\\|b | c |", "| --- | --- |", "| 1 2 | 3 \\| 4 |"]


@pytest.fixture
def hostile(study: Path, write_run: Any) -> Path:
    write_run("gla", 0, None, status="refused", message=HOSTILE)
    return study


def test_a_hostile_message_is_text_in_markdown(hostile: Path) -> None:
    text = render_markdown(study_tables(Comparison(load_study(hostile, "compare"))), wide=True)
    assert "onerror" in text
    assert not re.search(r"<(?=[A-Za-z/!?])|(?<!\\)`|\]\(|(?<!\\)\*\*|[\x00-\x09\x0b-\x1f\u202e]", text)
    assert len({line.count(" | ") for line in text.splitlines() if line.startswith("|")}) == 1


def test_a_hostile_message_is_text_in_html(hostile: Path) -> None:
    html = page_of(Comparison(load_study(hostile, "compare"), load_history(hostile, "compare")))
    assert "onerror=alert(1)" in html
    assert "<img src=x" not in html
    assert "<script>alert" not in html
    assert "{{ 7 * 7 }}" in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", html)


def test_a_hostile_name_is_text_in_figures(study: Path, write_run: Any) -> None:
    write_run("<a href='http:x'>m", 0)
    html = page_of(Comparison(load_study(study, "compare"), load_history(study, "compare")))
    assert "&lt;a href=" in html
    assert "<a href=" not in html
    assert "\\u003ca href" not in html


def test_a_hostile_message_is_text_in_latex(hostile: Path) -> None:
    text = render_latex(study_tables(Comparison(load_study(hostile, "compare"))))
    assert r"\textbackslash{}input\{x\}" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", text)
