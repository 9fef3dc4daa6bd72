from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import REFERENCE_COLOUR, styles
from archbench.analysis.figures.tradeoffs import (
    decoding_context,
    decoding_note,
    dominated,
    pareto_fronts,
    with_costs,
)
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.arms import arm_table


def decoding(
    backbone: str, context: int, rate: float, batch: int = 1, mode: str = "decode"
) -> dict[str, Any]:
    return {
        "backbone": backbone, "mode": mode, "context": context, "batch_size": batch,
        "tokens_per_second": rate, "parameters_body": 200_000,
    }  # fmt: skip


SPEED = pd.DataFrame(
    [
        decoding("decoder", 512, 900.0), decoding("decoder", 2048, 500.0), decoding("mamba", 512, 700.0),
        decoding("mamba", 512, 4000.0, batch=8), decoding("mamba", 512, 9000.0, mode="prefill"),
        decoding("encoder", 512, 800.0),
    ]
)  # fmt: skip


def test_an_arm_is_dominated_by_one_as_good_in_both() -> None:
    rows = pd.DataFrame(
        {
            "arm": list("abcd"),
            "score": [2.0, 2.1, 2.0, 1.9],
            "cost": [10.0, 20.0, 12.0, 5.0],
            "direction": "lower",
        }
    )
    assert dominated(rows, "cost", "higher") == {"a"}  # c is as good and faster
    assert dominated(rows, "cost", "lower") == {"a", "b", "c"}  # d is better and cheaper


def test_decoding_is_compared_after_the_longest_common_context(study: Path) -> None:
    assert decoding_context(SPEED) == 512
    assert decoding_context(SPEED[SPEED["context"] == 2048]) == 2048
    assert decoding_context(SPEED[SPEED["mode"] == "prefill"]) is None
    arms = arm_table(load_study(study, "compare")).query("kind == 'arm' and task == 'text'")
    found = with_costs(arms, SPEED).set_index("arm")
    assert found["decoded_per_second"].dropna().to_dict() == {"decoder": 900.0, "mamba": 700.0}
    # An encoder keeps no state: that is no cheap state, and it writes nothing token by token.
    assert math.isnan(found.loc["encoder", "state_bytes_2k"])
    assert found.loc["decoder", "state_bytes_2k"] == 65536


def axes(figure: go.Figure) -> dict[str, str]:
    """The names of horizontal axes, as traces have them, by title."""
    names = [name for name in figure.layout if name.startswith("xaxis")]
    return {figure.layout[name].title.text: name.replace("axis", "") for name in names}


def test_scores_stand_against_the_speed_of_decoding(study: Path) -> None:
    frame = load_study(study, "compare")
    without, figure = (
        pareto_fronts(Comparison(frame)),
        pareto_fronts(Comparison(frame, speed=SPEED.assign(batch_choice="given"))),
    )
    assert without is not None
    assert figure is not None
    label = "decoded tokens per second (higher is better)"
    assert label in axes(figure)
    assert label not in axes(without)
    here = [t for t in figure.data if t.xaxis == axes(figure)[label]]
    shown = {t.name: (t.x[0], t.marker.color, t.marker.symbol) for t in here if t.name != "front"}
    look = styles(frame)
    assert shown["decoder"] == (900.0, look["decoder"]["color"], look["decoder"]["symbol"])
    assert shown["mamba"] == (700.0, REFERENCE_COLOUR, f"{look['mamba']['symbol']}-open")  # slower and worse


def test_points_have_labels_and_intervals_and_a_line_joins_the_front(study: Path) -> None:
    frame = load_study(study, "compare")
    figure = pareto_fronts(Comparison(frame))
    assert figure is not None
    label = "training tokens per second (higher is better)"
    here = [t for t in figure.data if t.xaxis == "x3"]  # recall, then the exact likelihoods of the text
    assert label in axes(figure)
    points = {t.name: t for t in here if t.name != "front"}
    assert {name: t.text[0] for name, t in points.items()} == {name: name for name in points}
    assert points["decoder"].error_y.array[0] == pytest.approx(0.0224, abs=1e-3)
    assert points["moe"].error_y.array[0] == 0.0  # one seed has no interval
    [front] = [t for t in here if t.name == "front"]
    assert "-open" not in points[min(points, key=lambda name: points[name].y[0])].marker.symbol
    assert set(front.y) == {t.y[0] for t in points.values() if not t.marker.symbol.endswith("-open")}


def test_of_many_models_those_on_the_front_are_labelled(write_run: Any, tmp_path: Path) -> None:
    for number in range(12):
        write_run(f"net{number:02}", 0, 2.0 + number / 10)
    figure = pareto_fronts(Comparison(load_study(tmp_path / "runs", "compare")))
    assert figure is not None
    assert {t.text[0] for t in figure.data if t.name != "front"} == {"", "net00"}


@pytest.mark.parametrize(("device", "shown"), [("cpu", False), ("cuda", True)])
def test_memory_is_a_cost_where_it_was_measured_of_the_model(study: Path, device: str, shown: bool) -> None:
    """On a CPU it is the memory of the whole process."""
    figure = pareto_fronts(Comparison(load_study(study, "compare").assign(device_name=device)))
    assert figure is not None
    assert any("memory" in title for title in axes(figure)) == shown


def test_the_note_says_what_was_measured(study: Path) -> None:
    frame = load_study(study, "compare")
    assert decoding_note(frame, None) == ""
    note = decoding_note(frame, SPEED)
    assert "after 512 tokens" in note
    assert "decoder 200,000, encoder 200,000, mamba 200,000" in note


def test_names_stay_within_the_panel(study: Path) -> None:
    """Names at the left end begin at their point, names at the right end there, and none is at the edge."""
    frame = load_study(study, "compare")
    frame.loc[frame["status"] == "complete", "state_bytes_2k"] = frame["backbone"].map(
        {"decoder": 1e6, "mamba": 1e4, "s4": 1e5, "moe": 1e6}
    )
    figure = pareto_fronts(Comparison(frame))
    assert figure is not None
    panels = [
        [trace for trace in figure.data if trace.xaxis == axis and trace.mode == "markers+text"]
        for axis in dict.fromkeys(trace.xaxis for trace in figure.data)
    ]
    for traces in panels:
        ordered = sorted(traces, key=lambda trace: trace.x[0])
        assert ordered[0].textposition.endswith("right")
        assert ordered[-1].textposition.endswith("left") or ordered[-1].x == ordered[0].x
        low, high = figure.layout[traces[0].yaxis.replace("y", "yaxis")].range
        scores = [float(trace.y[0]) for trace in traces]
        assert low < min(scores) - 0.05 * (high - low)
        assert high > max(scores) + 0.05 * (high - low)
