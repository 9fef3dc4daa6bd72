"""Several studies as one frame: what they share, what differs, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from archbench.analysis.load.arm_names import split_name
from archbench.analysis.load.study import load_history, load_study
from tests.results import write_result


def configured(folder: Path, tokens: int, **backbone: Any) -> None:
    config = {"budget": {"tokens": tokens}, "task": {"name": "text"}, "backbone": backbone}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def changed(folder: Path, **metric: Any) -> None:
    record = json.loads((folder / "result.json").read_text())
    record["metrics"][0] |= metric
    write_result(folder, record)


@pytest.fixture
def runs(write_run: Any, tmp_path: Path) -> Path:
    """Studies ``one`` (a decoder) and ``two`` (Mamba, and the same decoder run again)."""
    for seed in range(2):
        configured(write_run("decoder", seed, study="one"), 1000, heads=4)
        configured(write_run("mamba", seed, study="two", processor="q"), 2000, heads=0)
    configured(write_run("decoder", 0, 9.0, study="two", processor="q"), 1000, heads=4)
    return tmp_path / "runs"


def test_they_are_joined_and_a_run_of_both_counts_once(runs: Path) -> None:
    frame = load_study(runs, "one,two")
    assert frame["study"].tolist() == ["one", "one", "two", "two"]
    assert frame["arm"].tolist() == ["decoder", "decoder", "mamba", "mamba"]
    assert 9.0 not in frame["score"].tolist()
    history = load_history(runs, "one,two")
    assert set(frame["path"]) <= set(history["path"])
    assert load_study(runs, "one,one").equals(load_study(runs, "one"))


def test_what_differs_between_them_is_said(runs: Path) -> None:
    [text] = load_study(runs, "one,two")["studies_differ"].unique()
    assert json.loads(text) == [
        "budget.tokens is 1000 in one, 1000 or 2000 in two",
        "processor is p in one, q in two",
        "1 run is in several of the studies and counts once",
    ]
    assert "studies_differ" not in load_study(runs, "one")


def test_settings_of_studies_without_a_common_task_are_not_compared(runs: Path, write_run: Any) -> None:
    configured(write_run("decoder", 0, study="recall", task="recall", fingerprint="data-2"), 7)
    [text] = load_study(runs, "one,recall")["studies_differ"].unique()
    assert json.loads(text) == []


def test_one_backbone_with_other_settings_is_two_arms(write_run: Any, tmp_path: Path) -> None:
    for study, digest, tokens in (("one", "11111111", 1000), ("two", "22222222", 2000)):
        configured(write_run("mamba", 0, study=study, digest=digest), tokens)
    assert load_study(tmp_path / "runs", "one,two")["arm"].tolist() == [
        "mamba tokens=1000",
        "mamba tokens=2000",
    ]


@pytest.mark.parametrize(
    ("changes", "metric", "words"),
    [
        ({"fingerprint": "data-2"}, {}, "other data (fingerprints), one data-1 and three data-2"),
        ({}, {"name": "loss"}, "other metrics, one bits_per_byte and three loss"),
        ({}, {"items": 9}, "other scored items, one 256 and three 9"),
        (
            {},
            {"averaging": "macro: over documents"},
            "other averagings, one micro: over bytes and three macro: over documents",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    runs: Path, write_run: Any, changes: dict[str, Any], metric: dict[str, Any], words: str
) -> None:
    changed(write_run("s4", 0, study="three", **changes), **metric)
    with pytest.raises(ValueError, match="study=one,three cannot be compared on text, nano, exact") as caught:
        load_study(runs, "one,three")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_tasks_and_likelihood_types_stand_beside_each_other(runs: Path, write_run: Any) -> None:
    changed(write_run("diffusion", 0, study="bounds", likelihood="bound"), estimator="masks", samples=8)
    write_run("decoder", 0, study="recall", task="recall", fingerprint="data-2")
    assert len(load_study(runs, "one,bounds,recall")) == 4


def test_names_are_checked_one_by_one(runs: Path) -> None:
    with pytest.raises(ValueError, match=r"study=tow is not in .*did you mean 'two'\?"):
        load_study(runs, "one,tow")
    with pytest.raises(ValueError, match="a name is empty"):
        load_study(runs, "one,")


@pytest.mark.parametrize(
    ("arm", "parts"),
    [
        ("mamba", ("mamba", {})),
        ("encoder masked_lm", ("encoder masked_lm", {})),
        ("decoder heads=4 kind=rope", ("decoder", {"heads": "4", "kind": "rope"})),
        ("hybrid layers=mamba*3,attention", ("hybrid", {"layers": "mamba*3,attention"})),
        ("a path=/my texts/b n=1", ("a", {"path": "/my texts/b", "n": "1"})),
    ],
)
def test_settings_are_split_from_a_name(arm: str, parts: tuple[str, dict[str, str]]) -> None:
    assert split_name(arm) == parts
