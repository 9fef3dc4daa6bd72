"""Rankings of the results board, from frames with planted scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.board.families import family
from archbench.analysis.board.pages import Board, pages, score
from archbench.analysis.board.rankings import Ranking, rankings, score_frame
from archbench.analysis.board.sources import Source, read_sources, submitted, with_all_columns
from archbench.analysis.files import parquet, write
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.intervals import mean_interval

SCORES = {"decoder": (2.40, 2.41, 2.39), "mamba": (2.30, 2.31, 2.29), "s4": (2.70, 2.71, 2.69)}


@pytest.fixture
def frame(write_run: Any, tmp_path: Path) -> pd.DataFrame:
    """A study with ``SCORES``, a bound and a pseudo-likelihood that are lower, and a failed run."""
    for seed in range(3):
        for name, scores in SCORES.items():
            write_run(name, seed, scores[seed])
        write_run(
            "masked_diffusion", seed, 2.1 + seed / 100, objective="masked_diffusion", likelihood="bound"
        )
        write_run("encoder", seed, 1.1 + seed / 100, objective="masked_lm", likelihood="pseudo")
        write_run("moe", seed, None, status="oom", message="asked for 9 GiB. 8 GiB were free")
    return load_study(tmp_path / "runs", "compare")


def ranked(frame: pd.DataFrame) -> dict[str, Ranking]:
    source = Source(name="compare", is_track=False, frame=with_all_columns(frame))
    return {ranking.likelihood: ranking for ranking in rankings([source])}


def test_lines_have_the_planted_scores_in_their_order(frame: pd.DataFrame) -> None:
    exact = ranked(frame)["exact"]
    assert [line.name for line in exact.models] == ["mamba", "decoder", "s4"]
    for line in exact.models:
        estimate = mean_interval(SCORES[line.name])
        assert estimate.half_width is not None
        assert line.score == pytest.approx(estimate.mean)
        assert line.high - line.score == pytest.approx(estimate.half_width)
        assert line.seed_scores == SCORES[line.name]
    assert [line.rank for line in exact.models] == ["1", "2", "3"]
    assert exact.budget == 5e11


def test_models_tested_against_a_baseline_only_have_no_rank(frame: pd.DataFrame) -> None:
    exact = ranked(frame.assign(baseline="decoder"))["exact"]
    assert [line.rank for line in exact.models] == ["", "", ""]
    board = {page.path: page.body for page in pages(Board(rankings=[exact], claims=[]))}["index"]
    assert 'class="best"' not in board
    assert 'class="open"' not in board  # they have learned the task
    two = frame[frame["arm"].isin(["decoder", "mamba"])].assign(baseline="decoder")
    assert [line.rank for line in ranked(two)["exact"].models] == ["1", "2"]  # one pair, which was tested


def test_two_seeds_are_shown_without_an_interval_and_a_rank(frame: pd.DataFrame) -> None:
    exact = ranked(frame[frame["seed"] < 2])["exact"]
    assert [score(line) for line in exact.models] == ["2.300, 2.310", "2.400, 2.410", "2.700, 2.710"]
    assert all(math.isnan(line.low) and math.isnan(line.high) and not line.rank for line in exact.models)
    board = {page.path: page.body for page in pages(Board(rankings=[exact], claims=[]))}["index"]
    assert 'stroke-width="2.5"' not in board  # no bar
    assert 'class="best"' not in board


def test_references_and_failures_are_lines_without_a_rank(frame: pd.DataFrame) -> None:
    lines = {line.name: line for line in ranked(frame)["exact"].lines}
    assert lines["xz"].is_reference
    assert next(iter(lines)) == "xz"  # the best score of all
    assert [*lines][-1] == "moe"
    assert (lines["xz"].rank, lines["moe"].rank) == ("", "")
    assert "9 GiB" in lines["moe"].note


def test_the_types_of_likelihood_are_ranked_separately(frame: pd.DataFrame) -> None:
    by_type = ranked(frame.assign(allow_mixed=True))
    assert {kind: [line.name for line in r.models] for kind, r in by_type.items()} == {
        "exact": ["mamba", "decoder", "s4"], "bound": ["masked_diffusion"], "pseudo": ["encoder"],
    }  # fmt: skip
    assert all(line.rank == "1" for kind in ("bound", "pseudo") for line in by_type[kind].models)
    assert "xz" not in {line.name for line in by_type["pseudo"].lines}  # it encodes the text


def test_an_accuracy_is_ranked_from_the_highest(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 0.99 - seed / 1000, task="recall")
        write_run("s4", seed, 0.50 - seed / 1000, task="recall")
    [(kind, ranking)] = ranked(load_study(tmp_path / "runs", "compare")).items()
    assert kind == "accuracy"
    assert [line.name for line in ranking.lines] == ["decoder", "s4", "any value"]


def test_a_frame_of_older_rules_lacks_columns(frame: pd.DataFrame) -> None:
    older = frame.drop(columns=["references", "state_bytes_2k", "shared_seeds", "margin", "solved", "arm"])
    lines = ranked(older)["exact"].lines
    assert [line.name for line in lines] == ["mamba", "decoder", "s4", "moe"]
    assert lines[0].score == pytest.approx(2.3)


def test_a_submission_is_ranked_in_its_study_under_its_own_name(frame: pd.DataFrame, tmp_path: Path) -> None:
    kept = frame.drop(columns=["path", "arm"])
    write(tmp_path / "docs" / "results" / "compare.parquet", parquet(frame.drop(columns="path")))
    own = kept[kept["backbone"] == "decoder"].assign(score=2.2, digest="99999999")
    write(tmp_path / "docs" / "submissions" / "quick" / "results.parquet", parquet(own))
    write(tmp_path / "docs" / "submissions" / "of_the_study" / "results.parquet", parquet(kept))
    [source] = [each for each in read_sources(tmp_path / "docs") if "quick" in set(each.frame["arm"])]
    [exact] = [r for r in rankings([source]) if r.likelihood == "exact"]
    assert [line.name for line in exact.models] == ["quick", "mamba", "decoder", "s4"]
    assert [line.submission for line in exact.models] == ["quick", "", "", ""]
    assert set(submitted(own, "quick")["backbone"]) == {"quick"}


def test_studies_by_the_protocol_and_large_budgets_come_first(frame: pd.DataFrame, tmp_path: Path) -> None:
    kept = frame.drop(columns=["path", "arm"])
    text = kept[(kept["task"] == "text") & (kept["backbone"] == "decoder")].assign(
        study="newer", protocol="1.0"
    )
    small, large = (
        text.assign(scale=scale, training_flops=flops, seed=text["seed"] + 10 * seed)
        for seed, (scale, flops) in enumerate([("4e10_flops", 4e10), ("4e11_flops", 4e11)])
    )
    for name, rows in (("compare", kept), ("newer", pd.concat([small, large]))):
        write(tmp_path / "docs" / "results" / f"{name}.parquet", parquet(rows))
    found = [
        (r.source, r.scale) for r in rankings(read_sources(tmp_path / "docs")) if r.likelihood == "exact"
    ]
    assert found[:2] == [("newer", "4e11_flops"), ("newer", "4e10_flops")]
    assert len(found) > 2


def test_the_file_to_download_has_every_line(frame: pd.DataFrame) -> None:
    of_all = [*ranked(frame).values()]
    table = score_frame(of_all)
    assert len(table) == sum(len(each.lines) for each in of_all)
    assert table.set_index(["likelihood", "model"]).loc[("exact", "mamba"), "score"] == pytest.approx(2.3)


def test_pages_link_to_each_other_and_escape_names(frame: pd.DataFrame) -> None:
    board = Board(rankings=[*ranked(frame.replace({"arm": {"s4": "s4 <b>"}})).values()], claims=[])
    written = {page.path: page.body for page in pages(board)}
    assert {"index", "workloads/text", "models/mamba", "models/encoder"} <= {*written}
    assert 'href="models/mamba.html"' in written["index"]
    assert 'href="../workloads/text.html#compare-text-nano-exact"' in written["models/mamba"]
    assert "s4 &lt;b&gt;" in written["index"]
    assert "<b>" not in written["index"]
    assert 'src="' not in written["index"].replace('src="board.js"', "")  # nothing from another site


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        ("mamba2", "state space"), ("decoder_gated", "transformer decoder"),
        ("block_diffusion_4", "diffusion"), ("deltanet_negative", "linear attention"),
        ("encoder_decoder", "encoder-decoder"),
        ("my_mixer.MyMixer", "other"), ("../../escape", "other"),
    ],
)  # fmt: skip
def test_the_family_follows_from_the_name_of_the_backbone(backbone: str, expected: str) -> None:
    assert family(backbone) == expected
