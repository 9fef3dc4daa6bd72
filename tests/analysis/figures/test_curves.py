from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.curves import AXES, MOST_POINTS, SEED, learning_curves, loss_curves, thinned
from archbench.analysis.figures.scores import final_scores
from archbench.analysis.figures.style import PALETTE, PANEL_HEIGHT, log_axis, palette_indices, styles
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.page import plot_json


def test_an_architecture_has_one_colour_and_its_arms_differ_in_dash(write_run: Any, tmp_path: Path) -> None:
    write_run("mamba", 0)
    write_run("encoder", 0, objective="masked_lm")
    write_run("encoder", 0, objective="masked_diffusion")
    found = styles(load_study(tmp_path / "runs", "compare"))
    lm, diffusion = found["encoder masked_lm"], found["encoder masked_diffusion"]
    assert lm["color"] == diffusion["color"] != found["mamba"]["color"]
    assert lm["dash"] != diffusion["dash"]


def test_an_architecture_has_the_same_colour_in_every_study() -> None:
    small = palette_indices(["mamba", "decoder"])
    large = palette_indices(["s4", "mamba", "gla", "decoder", "rwkv"])
    assert all(small[name] == large[name] for name in small)
    assert len(set(large.values())) == 5  # and no two of a study share one while there are enough
    assert set(palette_indices([f"other{i:02}" for i in range(20)]).values()) == set(range(len(PALETTE)))


def test_curves_show_every_seed_and_their_mean(study: Path) -> None:
    frame, history = load_study(study, "compare"), load_history(study, "compare")
    figure = learning_curves(Comparison(frame, history))
    assert figure is not None
    lines = [t for t in figure.data if t.name == "decoder" and t.yaxis == "y2"]
    low, high, *seeds, mean = lines
    assert low.y == pytest.approx([2.392 * (1 + 1 / s) for s in (10, 20, 30, 40, 50)])
    assert high.y == pytest.approx([2.41 * (1 + 1 / s) for s in (10, 20, 30, 40, 50)])
    assert (low.line.width, high.line.width, high.fill) == (0, 0, "tonexty")
    assert low.x == high.x == mean.x
    assert [(t.visible, t.meta) for t in seeds] == [(False, SEED)] * 3  # until the switch shows them
    assert mean.visible is None
    assert mean.y == pytest.approx([(2.40 + 2.41 + 2.392) / 3 * (1 + 1 / s) for s in (10, 20, 30, 40, 50)])
    assert mean.x == pytest.approx([s * 4096 for s in (10, 20, 30, 40, 50)])
    # tokens, FLOPs, seconds: what the switch of the page puts on the other axes
    assert mean.customdata[0] == pytest.approx([40960, 1e11, 1 + (0 + 1 + 2) / 7 / 3])
    legend = [t.name for t in figure.data if t.showlegend]
    assert sorted(legend) == ["decoder", "diffusion", "encoder", "mamba", "moe", "s4"]


def test_a_seed_that_was_killed_does_not_cut_the_mean(write_run: Any, tmp_path: Path) -> None:
    write_run("mamba", 0)
    write_run("mamba", 1)
    short = write_run("mamba", 2, killed=True) / "metrics.jsonl"
    short.write_text("".join(short.read_text().splitlines(keepends=True)[:4]))
    runs = tmp_path / "runs"
    figure = learning_curves(Comparison(load_study(runs, "compare"), load_history(runs, "compare")))
    assert figure is not None
    lines = [t for t in figure.data if t.name == "mamba"]
    assert [len(t.x) for t in lines] == [5, 5, 5, 5, 5]  # the band's edges, the seeds that ended, the mean


def test_the_logged_losses_are_curves(study: Path) -> None:
    frame, history = load_study(study, "compare"), load_history(study, "compare")
    figure = loss_curves(Comparison(frame, history))
    assert figure is not None
    *_, mean = [t for t in figure.data if t.name == "decoder" and t.yaxis == "y2"]
    assert mean.y == pytest.approx([3 / step + 0.001 for step in (10, 20, 30, 40, 50)])
    assert mean.x == pytest.approx([step * 4096 for step in (10, 20, 30, 40, 50)])
    first = history.groupby(["path", "kind"]).head(1)  # one point is no curve
    assert loss_curves(Comparison(frame, first)) is None
    assert learning_curves(Comparison(frame, first)) is None


def test_a_long_curve_keeps_its_ends_and_its_early_points() -> None:
    points = pd.DataFrame({"tokens": range(5000)})
    kept = thinned(points)["tokens"].tolist()
    assert len(kept) <= MOST_POINTS
    assert (kept[:4], kept[-1]) == ([0, 1, 2, 3], 4999)
    assert max(b - a for a, b in itertools.pairwise(kept)) < 150
    assert len(thinned(points.head(50))) == 50


def test_one_seed_has_no_band(write_run: Any, tmp_path: Path) -> None:
    write_run("mamba", 0)
    runs = tmp_path / "runs"
    figure = learning_curves(Comparison(load_study(runs, "compare"), load_history(runs, "compare")))
    assert figure is not None
    [line] = [t for t in figure.data if t.name == "mamba"]
    assert line.meta is None
    assert len(line.customdata[0]) == len(AXES)


def test_references_of_the_test_split_are_not_drawn_under_validation(study: Path) -> None:
    figure = learning_curves(Comparison(load_study(study, "compare"), load_history(study, "compare")))
    assert figure is not None
    assert not [t for t in figure.data if t.text or t.name in ("xz", "unigram entropy", "any value")]


def test_nan_leaves_no_point(write_run: Any, tmp_path: Path) -> None:
    rows = [{"kind": "validation", "step": s, "tokens": s, "flops": s, "seconds": s, "bits_per_byte": v}
            for s, v in ((1, 3.0), (2, "nan"), (3, "inf"), (4, 2.0))]  # fmt: skip
    folder = write_run("mamba", 0)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    runs = tmp_path / "runs"
    figure = learning_curves(Comparison(load_study(runs, "compare"), load_history(runs, "compare")))
    assert figure is not None
    assert all(len(t.y) == 2 for t in figure.data if t.name == "mamba")


def test_many_arms_make_a_taller_panel_and_no_legend(write_run: Any, tmp_path: Path) -> None:
    for number in range(18):
        write_run(f"net{number:02}", 0)
    frame, history = load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare")
    scores, curves = final_scores(Comparison(frame)), learning_curves(Comparison(frame, history))
    assert scores is not None
    assert curves is not None
    assert scores.layout.height == pytest.approx(PANEL_HEIGHT * 20 / 6)  # 18 arms and two references
    assert json.loads(plot_json(curves))["layout"]["showlegend"] is False
    assert curves.layout.showlegend is None  # the figure itself keeps it, for print


def test_no_figures_without_results(write_run: Any, tmp_path: Path) -> None:
    folder = write_run("mamba", 0, None, status="failed", message="no memory")
    (folder / "metrics.jsonl").unlink()
    runs = tmp_path / "runs"
    assert learning_curves(Comparison(load_study(runs, "compare"), load_history(runs, "compare"))) is None
    assert final_scores(Comparison(load_study(runs, "compare"))) is None


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.4, 3.0], ["0.2", "0.5", "1", "2", "5"]),
        ([1500, 90_000, float("nan"), 0], ["1k", "2k", "5k", "10k", "20k", "50k", "100k"]),
        ([1e-4, 3.0], ["0.0001", "0.001", "0.01", "0.1", "1"]),
        ([2e6], ["1M", "2M"]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_whole_numbers(values: list[float], ticks: list[str]) -> None:
    found = log_axis(values)
    assert found["ticktext"] == ticks
    assert found["type"] == "log"
    assert log_axis([0.0]) == {"type": "log"}
