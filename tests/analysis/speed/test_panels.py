from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.compare import main
from archbench.analysis.figures.tradeoffs import decoding_context
from archbench.analysis.speed.curves import roofline_grid, speed_curves
from archbench.analysis.speed.panels import largest_curves, largest_grid, memory_curves, sampling_curves
from archbench.analysis.speed.rows import extremes, load_all_modes
from archbench.analysis.stats.trusted_speeds import given
from tests import ROOT

RESULTS = ROOT / "docs" / "results"
MIB = 2**20


def cell(backbone: str, context: int, batch: int = 8, mode: str = "train", **more: Any) -> dict[str, Any]:
    """Memory beyond the process's own is a MiB for 512 tokens."""
    return {
        "backbone": backbone, "mode": mode, "context": context, "batch_size": batch, "batch_choice": "given",
        "tokens_per_step": None, "memory_limit_bytes": None, "batch_too_large": None, "steps": None,
        "passes": None, "tokens": batch * context, "tokens_per_second": 100.0 * batch, "flops": 8.0,
        "matmul_flops_per_second": 8000.0, "least_bytes": 20.0, "memory_bytes_per_second": 8000.0,
        "peak_memory_bytes": 250 * MIB + context * MIB // 512, "base_memory_bytes": 250 * MIB,
    } | more  # fmt: skip


SPEED = pd.DataFrame(
    [
        cell("decoder", 512, 8, tokens_per_step=4096),
        cell("decoder", 2048, 2, tokens_per_step=4096),
        cell("decoder", 512, 1, "decode"),
        cell("decoder", 512, 70, batch_choice="largest", memory_limit_bytes=2**30, batch_too_large=71),
        cell("diffusion", 128, 1, "sample", steps=16, passes=16),
        cell("diffusion", 128, 1, "sample", steps=4, passes=4),
    ]
)


def titles(figure: Any) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]


def test_training_is_drawn_at_equal_tokens_whatever_the_batch() -> None:
    figure = speed_curves(SPEED)
    assert titles(figure) == ["train, 4,096 tokens a step", "decode, one sequence"]
    assert figure is not None
    assert next(trace.x for trace in figure.data if trace.xaxis == "x") == (512, 2048)
    assert [row[1] for row in roofline_grid(SPEED).rows] == ["train, 2 at once", "decode, 1 at once"]
    assert "sample" not in set(extremes(SPEED)["mode"])
    assert len(given(SPEED)) == 5


def test_memory_is_that_of_the_model() -> None:
    figure = memory_curves(SPEED)
    assert figure is not None
    assert titles(figure)[0] == "train, 4,096 tokens a step"
    assert (figure.data[0].x, figure.data[0].y) == ((512, 2048), (1.0, 4.0))


def test_filling_in_is_drawn_against_steps() -> None:
    figure = sampling_curves(SPEED)
    assert figure is not None
    assert titles(figure) == ["128 tokens, one sequence"]
    (line,) = figure.data
    assert (line.name, line.x, line.y) == ("diffusion", (4, 16), (100.0, 100.0))
    assert line.customdata == ("100 tokens/s, 4 passes", "100 tokens/s, 16 passes")
    assert sampling_curves(SPEED[SPEED["mode"] == "train"]) is None


def test_the_largest_batches_stand_by_themselves() -> None:
    figure = largest_curves(SPEED)
    assert titles(figure) == ["train, the largest batch in 1 GiB"]
    assert figure is not None
    assert figure.data[0].y == (7000.0,)
    assert largest_grid(SPEED).rows == [
        ["decoder", "train, the largest batch in 1 GiB", "512", "70", "71", "7k", "1 MiB"]
    ]


def test_decoding_alone_is_drawn() -> None:
    """The rows in the results of this project: decoding of one and eight sequences, and no more."""
    speed = load_all_modes(RESULTS / "speed.parquet")
    assert titles(speed_curves(speed)) == ["decode, one sequence", "decode, 8 sequences"]
    assert titles(memory_curves(speed)) == ["decode, one sequence", "decode, 8 sequences"]
    assert sampling_curves(speed) is largest_curves(speed) is None
    assert decoding_context(given(speed)) == 32768


@pytest.mark.parametrize("kept", [True, False])
def test_the_report_shows_what_there_is(kept: bool, study: Path, tmp_path: Path) -> None:
    rows = RESULTS / "speed.parquet"
    if not kept:
        rows = tmp_path / "rows.parquet"
        settings = {
            "status": "complete", "seconds_median": 1.0, "device": "cpu", "processor": "one", "threads": 1,
            "precision": "fp32", "vocab_size": 256, "torch": "2", "filling": "{}", "parameters_body": 10,
        }  # fmt: skip
        SPEED.assign(**settings).to_parquet(rows)
    assert main([f"runs={study}", f"speed={rows}", f"out={tmp_path}"]) == 0
    page = (tmp_path / "compare.html").read_text()
    heads = (
        "<h2>Speed</h2>",
        "<h3>Memory against length</h3>",
        "<h3>Sampling by unmasking</h3>",
        "<h3>The largest batch that fits</h3>",
    )
    assert [head in page for head in heads] == [True, True, not kept, not kept]
