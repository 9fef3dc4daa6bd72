"""Maps of needles and loss by position; curves over further tests: test_further.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.contexts import (
    EVALUATED,
    further_curves,
    is_map,
    position_curves,
    read_positions,
    recall_maps,
)
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.style import PALETTE
from archbench.analysis.load.study import load_study
from tests.results import write_result


@pytest.fixture
def needles(write_run: Any, tmp_path: Path) -> Path:
    """Two arms, tested at two lengths and three depths; the score is depth + length / 1000."""
    for backbone in ("decoder", "mamba"):
        folder = write_run(backbone, 0, 0.9, task="recall", study="needles")
        result = json.loads((folder / "result.json").read_text())
        for depth in (1.0, 0.0, 0.5):
            for length in (100, 50):
                test = f"sequence_length={length} depth={depth:g}"
                value = 0.8 * depth + length / 1000 + (backbone == "mamba") / 20
                result["metrics"].append({**result["metrics"][0], "split": test, "value": value})
        write_result(folder, result)
    return tmp_path / "runs"


def test_needles_make_a_map_for_each_arm(needles: Path) -> None:
    frame = load_study(needles, "needles")
    assert further_curves(Comparison(frame)) is None  # not six unordered points as well
    figure = recall_maps(Comparison(frame))
    assert figure is not None
    assert [a.text for a in figure.layout.annotations] == ["decoder, recall", "mamba, recall"]
    decoder = figure.data[0]
    assert (decoder.x, decoder.y) == (("50", "100"), ("0", "0.5", "1"))
    assert [list(row) for row in decoder.z] == [
        pytest.approx([0.05, 0.1]),
        pytest.approx([0.45, 0.5]),
        pytest.approx([0.85, 0.9]),
    ]
    assert figure.layout.yaxis.title.text == "depth"
    assert [t.showscale for t in figure.data] == [False, True]


def test_maps_are_of_length_and_depth_alone(study: Path) -> None:
    assert is_map(["as trained", "depth=0 sequence_length=8", "sequence_length=9 depth=1"])
    assert not is_map(["as trained"])
    assert not is_map(["sequence_length=8"])
    assert not is_map(["sequence_length=8 depth=0", "sequence_length=8 depth=0 kind=single"])
    assert recall_maps(Comparison(load_study(study, "compare"))) is None


def test_a_map_is_printed_with_its_numbers(needles: Path) -> None:
    figure = recall_maps(Comparison(load_study(needles, "needles")))
    assert figure is not None
    svg = printed(figure, "svg").decode()
    for words in (">0.45<", ">0.90<", ">sequence length<", ">depth<", ">decoder, recall<"):
        assert words in svg
    assert svg.index(">0.05<") < svg.index(">0.85<")
    assert svg == printed(figure, "svg").decode()


def evaluated(folder: Path, nats: list[float]) -> None:
    """The output of ``archbench evaluate``, in stretches of 8 tokens."""
    found = [{"begin": 8 * i, "end": 8 * i + 8, "nats_per_token": value} for i, value in enumerate(nats)]
    (folder / EVALUATED).write_text(json.dumps({"by_position": found, "metrics": []}))


def test_loss_by_position_is_the_mean_over_the_seeds_that_have_it(write_run: Any, tmp_path: Path) -> None:
    for seed, shift in enumerate((0.0, 0.2)):
        evaluated(write_run("mamba", seed), [3.0 + shift, 2.0 + shift])
    write_run("mamba", 2)
    write_run("decoder", 0)
    frame = load_study(tmp_path / "runs", "compare")
    positions = read_positions(frame)
    assert len(positions) == 4
    figure = position_curves(Comparison(frame))
    assert figure is not None
    [line] = figure.data
    assert (line.name, line.line.color) == ("mamba", PALETTE[1])
    assert line.x == (3.5, 11.5)
    assert line.y == pytest.approx([3.1, 2.1])
    # t(0.975, 1) = 12.706, times the standard deviation of 3.0 and 3.2 over the root of 2.
    assert line.error_y.array[0] == pytest.approx(12.706 * 0.1, rel=1e-3)
    assert line.customdata == ("0 to 7", "8 to 15")


def test_without_evaluations_there_is_no_figure(study: Path) -> None:
    frame = load_study(study, "compare")
    assert position_curves(Comparison(frame)) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"by_position": [{"begin": 0}]}', '{"metrics": []}'])
def test_a_file_that_is_no_evaluation_is_named_and_left_out(
    write_run: Any, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run("mamba", 0) / EVALUATED
    path.write_text(text)
    assert read_positions(load_study(tmp_path / "runs", "compare")).empty
    assert f"warning: {path}: is damaged" in capsys.readouterr().err
