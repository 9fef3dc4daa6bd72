"""What a person reads while a run goes on."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rich.console

from archbench.architectures import fast_paths
from archbench.experiments.runtime.console import (
    BRIEF,
    NO_LINES,
    SILENT,
    Console,
    clock,
    count,
    plain_table,
    print_tables,
)
from tests import ROOT
from tests.experiments import commands

ROW = {
    "loss": 2.34567,
    "learning_rate": 0.00123,
    "grad_norm": 1.5,
    "tokens_per_second": 12_345.0,
    "data_share": 0.0123,
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (200, "3:20"), (3599.6, "1:00:00"), (7500, "2:05:00")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (12_345, "12.3k"),
        (4.56e6, "4.56M"),
        (1.2e9, "1.2G"),
        (3e12, "3T"),
        (2e15, "2P"),
    ],
)
def test_count(number: float, text: str) -> None:
    assert count(number) == text


def test_a_wide_table_is_continued_below_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    heads = [f"column {index}" for index in range(12)]
    table = plain_table("model", "seed", *heads)
    table.title = "Scores"
    table.add_row("mamba", "0", *(f"{index} ± 0.1234567" for index in range(12)))
    print_tables(table, "words " * 30, keys=2)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if "±" in line]
    assert len(rows) > 1
    assert all(row[:2] == ["mamba", "0"] for row in rows)
    cells = [cell for row in rows for cell in row[2::3]]
    assert cells == [str(index) for index in range(12)]  # in their order, none cut
    assert sum("Scores" in line for line in lines) == 1


def test_the_title_of_a_narrow_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("model", "3e-3")
    table.title = "text, 4e12 training FLOPs: validation by learning rate, best in [ ]"
    table.add_row("decoder", "2.125")
    print_tables(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "text, 4e12 training FLOPs: validation by learning rate, best in [ ]"
    assert lines[-1] == "decoder 2.125"


def test_a_long_text_is_wrapped_instead_of_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("claim", "difference", "verdict", left=("verdict",))
    table.add_row("a claim in many words " * 6, "+1.587 [1.346, 1.828]", "confirmed")
    print_tables(table)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "+1.587 [1.346, 1.828]" in out


def test_a_step_is_one_line_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    Console("mamba-recall-nano s0").step(50, 200, ROW, 61.0)
    assert capsys.readouterr().out == ("[mamba-recall-nano s0] 50/200 loss 2.346 12.3k tok/s ETA 1:01\n")
    Console("encoder_decoder-recall_8_pairs-nano s0").step(488, 488, ROW, 12.0)
    assert len(capsys.readouterr().out) <= 81  # a line of a terminal


def test_a_process_of_a_live_view_prints_nothing_and_keeps_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SILENT, NO_LINES)
    console = Console("x")
    console.keep(tmp_path / "train.log")
    console.log("one")
    console.warn("two")
    assert capsys.readouterr() == ("", "")
    assert [line[20:] for line in (tmp_path / "train.log").read_text().splitlines()] == ["one", "two"]


def test_a_run_of_a_sweep_in_a_log_file_prints_only_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SILENT, BRIEF)
    console = Console("x")
    console.keep(tmp_path / "train.log")
    for text in ("10/20 loss 2.5", "warning: one row was left out", "already complete"):
        console.log(text)
    assert capsys.readouterr().out == "[x] warning: one row was left out\n[x] already complete\n"
    assert len((tmp_path / "train.log").read_text().splitlines()) == 3


def test_names_in_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """They are no markup, and a long line is not broken."""
    text = " ".join(["[bold]", *["long"] * 100])
    Console("[red]x").log(text)
    assert capsys.readouterr().out == f"[[red]x] {text}\n"


def test_progress_is_a_bar_on_a_terminal_and_nothing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console("x")
    with console.progress(10) as progress:
        progress(5)
    assert capsys.readouterr().out == ""
    screen = io.StringIO()
    console._rich = rich.console.Console(file=screen, force_terminal=True, width=80)
    with console.progress(10) as progress:
        progress(5)
    assert "50%" in screen.getvalue()


def test_a_run_prints_its_steps(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = commands.train(*commands.TINY, *commands.RECALL, "trainer.log_every=10", f"runs={tmp_path}")
    rounded, *lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[decoder-recall-nano s0] ") for line in (rounded, *lines))
    assert "budget.tokens=4,000 is rounded to 3,968" in rounded
    assert "19,936 parameters without embedding and head" in lines[0]
    assert "non_embedding -0.32% of 20,000" in lines[0]
    way = "torch" if fast_paths.problem() else "cpp"
    attention = "sdpa" if fast_paths.problem() else "cpp"
    assert lines[1].endswith(f"kernels: decoding: {way}, attention: {attention}, pointwise: {way}")
    pattern = r"(\d+)/31 loss [\d.]+ [\d.]+[kMG]? tok/s ETA \d+:\d\d$"
    steps = [found[1] for line in lines if (found := re.search(pattern, line))]
    assert steps == ["10", "20", "30", "31"]
    assert any("| validation answer_accuracy 0." in line for line in lines)
    assert f"test answer_accuracy {commands.result(folder)['metrics'][0]['value']:.4f} ± " in lines[-4]
    assert lines[-2].split("] ", 1)[1].startswith("cost: ")
    assert lines[-1].endswith(f"next: archbench compare study=single runs={tmp_path}")
    kept = (folder / "train.log").read_text().splitlines()
    assert [line[20:] for line in kept] == [line.split("] ", 1)[1] for line in lines]


def test_a_reader_that_goes_away_ends_no_run() -> None:
    """The reader of the output goes away, as ``head -1`` does."""
    body = (
        "import time\nfrom archbench.experiments.runtime.console import Console\nconsole = Console('run')\n"
        "for n in range(100):\n    console.log(f'line {n}')\n    time.sleep(0.005)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", body],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"[run] line 0\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0
