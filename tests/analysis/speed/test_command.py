from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.style import PALETTE
from archbench.analysis.speed.__main__ import draw, main, render
from archbench.analysis.speed.rows import load_all_modes, load_speed
from tests import ROOT

RESULTS = ROOT / "docs" / "results"


def row(backbone: str, context: int, batch: int, seconds: float, **changes: Any) -> dict[str, Any]:
    return {
        "backbone": backbone, "mode": "decode", "context": context, "batch_size": batch,
        "batch_choice": "given", "tokens_per_step": None, "memory_limit_bytes": None, "steps": None,
        "status": "complete", "device": "cpu", "processor": "a processor", "threads": 2,
        "precision": "fp32", "vocab_size": 256, "torch": "2.13", "commit": "0123456789", "stable": True,
        "kernels": "{}",
        "measured_at": "2026-11-20T10:00:00+00:00", "parameters_body": 3_000_000,
        "seconds_median": seconds, "seconds_first_quartile": 0.9 * seconds,
        "seconds_third_quartile": 1.2 * seconds, "tokens_per_second": batch / seconds,
        "peak_memory_bytes": 300 * 2**20 + batch * context, "base_memory_bytes": 300 * 2**20,
    } | changes  # fmt: skip


ROWS = [
    row("s4", 512, 1, 0.002),
    row("s4", 2048, 1, 0.002),
    row("decoder", 512, 1, 0.001),
    row("decoder", 2048, 1, 0.005),
    row("decoder", 2048, 8, 0.080),
    row("s4", 2048, 8, 0.004),
    row("s4", 512, 1, 0.9, mode="prefill"),
    row("decoder", 512, 8, 9.0, status="oom"),
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    pd.DataFrame(ROWS).to_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows))
    return path


def test_only_complete_cells_of_the_mode_are_read(rows: Path) -> None:
    frame = load_speed(rows, "decode")
    assert len(frame) == 6
    assert load_speed(rows, "prefill")["seconds_median"].tolist() == [0.9]


def test_the_last_measurement_of_a_cell_counts(tmp_path: Path) -> None:
    again = write(tmp_path / "rows.json", [*ROWS, row("s4", 512, 1, 0.007)])
    frame = load_speed(again, "decode")
    cell = frame[(frame["backbone"] == "s4") & (frame["context"] == 512)]
    assert cell["seconds_median"].tolist() == [0.007]


def test_ratios_are_of_the_same_context_and_batch(rows: Path) -> None:
    lines = render(load_speed(rows, "decode"), "decoder").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table == [
        "| backbone | sequences | 512 | 2,048 |",
        "| --- | --: | --: | --: |",
        "| decoder | 1 | 1 | 5 |",
        "| s4 | 1 | 2 (0.50) | 2 (2.50) |",
        "| decoder | 8 | - | 80 |",
        "| s4 | 8 | - | 4 (20.00) |",
    ]
    assert "Non-embedding parameters: decoder 3,000,000, s4 3,000,000." in lines[0]
    assert "had not settled" not in "\n".join(lines)


def test_cells_that_did_not_settle_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.json", [*ROWS, row("s4", 512, 1, 0.002, stable=False)])
    assert "In 1 of 6 configurations the warm-up times had not settled." in render(
        load_speed(path, "decode"), "decoder"
    )


def test_the_figure_shows_what_was_measured(rows: Path) -> None:
    figure = draw(load_speed(rows, "decode"))
    assert {axis.type for axis in (*figure.select_xaxes(), *figure.select_yaxes())} == {"log"}
    drawn = {line.name: line for line in figure.select_traces(row=1, col=1)}
    assert set(drawn) == {"decoder", "s4"}
    assert drawn["decoder"].y == (1000.0, 200.0)
    assert [drawn[name].line.color for name in ("decoder", "s4")] == [PALETTE[0], PALETTE[2]]  # as everywhere
    assert next(figure.select_traces(row=1, col=2)).y == (100.0,)  # 8 tokens in 80 ms
    assert next(figure.select_traces(row=3, col=1)).y == (512 / 2**20, 2048 / 2**20)
    text = printed(figure, "svg").decode()
    assert text.startswith("<?xml")
    assert {"decoder", "s4", "tokens per second", "8 sequences"} <= set(re.findall(r">([^<>\n]+)<", text))


def test_the_command_writes_the_figure_and_the_table(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"rows={rows}", "baseline=s4"]) == 0
    table = (rows.parent / "speed_decode.md").read_text()
    assert "| decoder | 1 | 1 (2.00) | 5 (0.40) |" in table
    assert table in capsys.readouterr().out
    first = (rows.parent / "speed_decode.svg").read_bytes()
    assert main([f"rows={rows}", f"out={rows.parent / 'there'}"]) == 0
    assert (rows.parent / "there" / "speed_decode.svg").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "rows has no value: set rows="),
        (["rows=absent.parquet"], "rows=absent.parquet: there is no such file"),
        (["mod=train"], "did you mean 'mode='?"),
        (["rows=x", "mode=write"], "mode=write must be one of train, prefill, decode, sample"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_mixed_commits_and_kernels_are_said(rows: Path) -> None:
    frame = load_speed(rows, "decode")
    assert "Warning" not in render(frame, "decoder")
    frame.loc[frame["backbone"] == "s4", ["commit", "kernels"]] = ["fedcba9876", '{"scan": "portable"}']
    frame.loc[0, "kernels"] = '{"attention": "eager"}'
    text = render(frame, "decoder")
    assert "Warning: mixed commits of the code (0123456, fedcba9)." in text
    assert 'Warning: mixed kernels of decoder: {"attention": "eager"}; {}.' in text
    assert "kernels of s4" not in text


def test_who_decodes_by_a_slower_path_is_said(rows: Path) -> None:
    frame = load_speed(rows, "decode")
    frame["kernels"] = '{"decoding": "native"}'
    assert "kernels" not in render(frame, "decoder").partition("Warning")[2]
    frame.loc[frame["backbone"] == "s4", "kernels"] = '{"decoding": "portable"}'
    assert "Warning: mixed kernels of decoding (native: decoder" in render(frame, "decoder")
    assert "; portable: s4): a slower path is no property of a backbone." in render(frame, "decoder")


SOUGHT = {"batch_choice": "largest", "memory_limit_bytes": 2**31}


def test_equal_tokens_and_largest_batches_are_groups_of_their_own(tmp_path: Path) -> None:
    """The largest batch differs from backbone to backbone, and is compared by tokens per second."""
    train = {"mode": "train", "tokens_per_step": 2048}
    path = write(
        tmp_path / "rows.json",
        [
            row("decoder", 512, 4, 0.1, **train),
            row("decoder", 2048, 1, 0.3, **train),
            row("s4", 512, 4, 0.2, **train),
            row("s4", 512, 8, 0.5, mode="train"),
            row("decoder", 512, 10, 0.01, mode="train", **SOUGHT),
            row("s4", 512, 200, 0.1, mode="train", **SOUGHT),
            row("s4", 512, 300, 0.1, mode="train", **SOUGHT),
        ],
    )
    frame = load_speed(path, "train")
    table = [line for line in render(frame, "decoder").splitlines() if line.startswith("|")]
    assert table == [
        "| backbone | sequences | 512 | 2,048 |",
        "| --- | --: | --: | --: |",
        "| s4 | 8 | 500 | - |",
        "| decoder | 2,048 tokens a step | 100 | 300 |",
        "| s4 | 2,048 tokens a step | 200 (0.50) | - |",
        "| backbone | sequences | 512 |",
        "| --- | --: | --: |",
        "| decoder | the largest batch in 2 GiB | 10: 1k |",
        "| s4 | the largest batch in 2 GiB | 300: 3k (3.00) |",
    ]
    titles = [title.text for title in draw(frame).layout.annotations]
    assert titles == ["8 sequences", "2,048 tokens a step", "the largest batch in 2 GiB"]


def test_texts_are_drawn_against_steps(tmp_path: Path) -> None:
    def text(backbone: str, context: int, steps: int, seconds: float) -> dict[str, Any]:
        more = {"steps": steps, "passes": steps + 4, "filling": "{}", "tokens_per_second": context / seconds}
        return row(backbone, context, 1, seconds, mode="sample", **more)

    cells = [
        text("diffusion", 128, 8, 0.1),
        text("diffusion", 128, 32, 0.4),
        text("block_diffusion", 128, 32, 0.2),
        text("diffusion", 256, 32, 1.0),
    ]
    frame = load_speed(write(tmp_path / "rows.json", cells), "sample")
    table = [line for line in render(frame, "diffusion").splitlines() if line.startswith("|")]
    assert table[0] == "| backbone | sequences | tokens | 8 | 32 |"
    assert table[2:] == [
        "| block_diffusion | 1 | 128 | - | 640, 36 passes (2.00) |",
        "| diffusion | 1 | 128 | 1.28k, 12 passes | 320, 36 passes |",
        "| diffusion | 1 | 256 | - | 256, 36 passes |",
    ]
    figure = draw(frame)
    titles = [title.text for title in figure.layout.annotations]
    assert titles == ["one sequence, 128 tokens", "one sequence, 256 tokens"]
    assert [line.x for line in figure.select_traces(row=1, col=1)] == [(32,), (8, 32)]
    assert "in brackets" not in render(frame, "decoder")
    other = cells[0] | {"filling": '{"method": "ancestral"}', "backbone": "encoder"}
    with pytest.raises(ValueError, match="mixes filling"):
        load_speed(write(tmp_path / "mixed.json", [*cells, other]), "sample")


def test_files_without_the_rows_asked_for_are_refused(tmp_path: Path, rows: Path) -> None:
    mixed = write(tmp_path / "mixed.json", [*ROWS, row("s4", 512, 1, 0.1, threads=1)])
    other = write(tmp_path / "other.json", [{"a": 1}])
    broken = tmp_path / "broken.parquet"
    broken.write_text("no parquet")
    for path, mode, message in (
        (rows, "train", "no complete row with mode=train"),
        (mixed, "decode", "mixes threads: 1, 2"),
        (other, "decode", "holds no rows"),
        (broken, "decode", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            load_speed(path, mode)
        assert "\n" not in str(caught.value)


def test_the_page_of_results_quotes_its_frame() -> None:
    page = (RESULTS / "speed.md").read_text()
    quoted = page.split("<!-- generation:begin -->\n")[1].split("<!-- generation:end -->")[0]
    assert quoted == render(load_speed(RESULTS / "speed.parquet", "decode"), "decoder")


def test_another_command_names_its_own_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(ValueError, match=r"speed=.*pipe\.parquet cannot be read: it is a pipe; name a file"):
        load_all_modes(tmp_path / "pipe.parquet")
    with pytest.raises(ValueError, match=r"speed=.*absent\.parquet: there is no such file"):
        load_all_modes(tmp_path / "absent.parquet")
