"""Rates are chosen on some seeds and confirmed on others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from archbench.analysis import rates
from archbench.analysis.declared import runs
from archbench.experiments.config import CONF
from archbench.experiments.run import tuned_rates
from archbench.experiments.run.tuned_rates import read_rates
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

ARM = {
    "task": "text", "scale": "nano", "axis": "flops", "target": 280000.0,
    "backbone": "decoder", "learning_rate": 0.02,
    "bracketed": True, "metric": "bits_per_byte", "validation": 2.5, "decades": 1.0,
}  # fmt: skip


def confirm(tmp_path: Path, *words: str, **changes: Any) -> Any:
    """The settings of a cell of study=confirm under rates that were chosen with seed 100."""
    path = tmp_path / "rates.yaml"
    path.write_text(yaml.safe_dump({"study": "tune", "seeds": [100], "arms": [{**ARM, **changes}]}))
    return commands.settings(
        "study=confirm", f"study.tuned={path}", "backbone=decoder", "scale.targets.flops=280000", *words
    )


def test_a_run_gets_the_rate_of_its_arm(tmp_path: Path) -> None:
    chosen = confirm(tmp_path, "seed=0")
    assert chosen.optimizer.learning_rate == 0.02
    assert chosen.resolved["optimizer"]["learning_rate"] == 0.02
    assert chosen.resolved["study"] == {"name": "confirm", "rate_from": str(tmp_path / "rates.yaml")}


def test_rates_that_come_with_the_package_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = confirm(tmp_path, "seed=0", learning_rate=0.03)
    assert chosen.optimizer.learning_rate == 0.03
    monkeypatch.setattr("archbench.experiments.run.tuned_rates.CONF", tmp_path / "conf")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ("study=confirm", "study.tuned=rates.yaml", "backbone=decoder", "scale.targets.flops=280000")
    chosen = commands.settings(*words)
    assert chosen.optimizer.learning_rate == 0.03
    assert chosen.resolved["study"]["rate_from"] == "rates.yaml"


def test_a_run_gets_the_batch_size_and_the_record_of_its_search(tmp_path: Path) -> None:
    tuning = {"validation": 2.5, "second_validation": 2.6, "trials": 12, "sensitivity": 0.1}
    chosen = confirm(tmp_path, "seed=0", batch_size=2, tuning=tuning)
    assert chosen.budget.batch_size == chosen.resolved["budget"]["batch_size"] == 2
    assert chosen.budget.tokens == confirm(tmp_path, "seed=0").budget.tokens
    assert chosen.resolved["study"]["tuning"] == tuning
    assert chosen.study.tuning is not None
    assert chosen.study.tuning.second_validation == 2.6


def test_the_rate_is_part_of_the_name_and_the_file_is_not(tmp_path: Path) -> None:
    by_hand = commands.settings(
        "study=confirm", "study.tuned=null", "backbone=decoder", "scale.targets.flops=280000",
        "optimizer.learning_rate=0.02",
    )  # fmt: skip
    assert confirm(tmp_path).key == by_hand.key
    assert confirm(tmp_path, learning_rate=0.01).key != by_hand.key


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        (["seed=100"], {}, "seed=100: study=tune chose the rates of .* use seeds other than 100"),
        ([], {"bracketed": False}, "was at the edge of its grid: extend it with archbench rates"),
        ([], {"backbone": "mamba"}, "has no rate for .* backbone=decoder; it has .* backbone=mamba"),
        ([], {"target": 1e5}, "no rate for .* scale.targets.flops=280000 .* scale.targets.flops=100000"),
        ([], {"axis": "total"}, "no rate for .* scale.axis=flops .* it has .* scale.axis=total "),
        (["optimizer.learning_rate=0.1"], {}, "optimizer.learning_rate=0.1 together with study.tuned="),
        (
            ["budget.batch_size=4"],
            {"batch_size": 1},
            "batch_size=4 together with .*, which sets the batch size",
        ),
        ([], {"learning_rate": "fast"}, "learning_rate"),
        ([], {"rate": 1}, "has no such key"),
        (["study.tuned=nowhere.yaml"], {}, "study.tuned=nowhere.yaml is not there: archbench train"),
        (["study.tuned=README.md"], {}, "study.tuned=README.md"),
        ([], {"learning_rate": -0.1}, "backbone=decoder: learning_rate=-0.1 must be positive"),
        ([], {"validation": float("nan")}, r"rates.yaml: arms\[0\].validation=nan must be a finite number"),
        ([], {"bracketed": 3}, r"rates.yaml: arms\[0\].bracketed=3 must be true or false"),
    ],
)
def test_what_cannot_be_confirmed_is_refused(
    words: list[str], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        confirm(tmp_path, *words, **changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seeds": [0.7]}, r"rates\.yaml.*seeds"),
        ({"seeds": [None]}, r"rates\.yaml.*seeds"),
        ({"seeds": ["a"]}, r"rates\.yaml.*seeds"),
        ({"seeds": [[1]]}, r"rates\.yaml.*seeds"),
        ({"seeds": []}, r"rates\.yaml: seeds=\[\] must be those"),
        ({"arms": {"a": 1}}, r"rates\.yaml: arms=\{'a': 1\} must be a list"),
        ({"arms": [ARM, {**ARM, "learning_rate": 0.1}]}, r"rates\.yaml: arms has two entries for task=text"),
        ("study: tune\nseeds: [100]\nseeds: [1]\narms: []\n", r"rates\.yaml.*line 3.*'seeds' is there twice"),
        ("study: tune\n\tseeds: [100]\n", r"rates\.yaml.*line 2.*not by tabs"),
    ],
)
def test_a_file_of_rates_that_is_ambiguous_is_refused(
    content: dict[str, Any] | str, message: str, tmp_path: Path
) -> None:
    if isinstance(content, dict):
        content = yaml.safe_dump({"study": "tune", "seeds": [100], "arms": [ARM], **content})
    (path := tmp_path / "rates.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_rates(path)


@pytest.mark.parametrize("name", ["learning_rate", "validation", "decades", "target", "undecided"])
@pytest.mark.parametrize("value", [float("nan"), "nan", "inf", "fast", [[1]], {"a": 1}])
def test_an_entry_of_another_type_is_named_with_its_file(name: str, value: Any, tmp_path: Path) -> None:
    arms = [{**ARM, "backbone": "mamba"}, {**ARM, name: value}]
    (path := tmp_path / "rates.yaml").write_text(
        yaml.safe_dump({"study": "tune", "seeds": [100], "arms": arms})
    )
    with pytest.raises(ConfigError) as refused:
        read_rates(path)
    assert str(refused.value).startswith(f"study.tuned={path}: arms[1].{name}")
    assert str(value) in str(refused.value)


@pytest.mark.full
def test_a_planted_edge_is_extended_and_the_rate_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a grid that is far too low to a confirmation on a fresh seed, with real training."""
    tiny = [
        *commands.TINY, *commands.SHORT_TEXT, "backbone=decoder", f"runs={tmp_path}", "budget.tokens=3000",
        "optimizer.schedule=constant",
    ]  # fmt: skip

    asked: list[list[str]] = []

    def train(words: list[str], name: str = "") -> int:
        """As a command would, in this process, which is faster."""
        kept = [word for word in words if "=" in word]
        asked.append(words)
        monkeypatch.setattr(sys, "argv", ["train", *kept])
        commands.train(*kept)
        return 1

    for rate in (3e-3, 1e-2):
        train([*tiny, "study=tune", f"optimizer.learning_rate={rate:g}", "seed=100"])
    monkeypatch.setattr(runs, "train_missing", train)
    assert rates.main(["study=tune", f"runs={tmp_path}", "--extend"]) == 0
    path = tmp_path / "tune" / "analysis" / "rates.yaml"
    arm = yaml.safe_load(path.read_text())["arms"][0]
    assert arm["bracketed"]
    assert arm["learning_rate"] >= 3e-2
    assert "-m" in asked[2]
    assert {"optimizer.learning_rate=0.03", "seed=100"} <= set(asked[2])
    folder = commands.train(*tiny, "study=confirm", "seed=0")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["optimizer"]["learning_rate"] == arm["learning_rate"]
    with pytest.raises(ConfigError, match="seed=100"):
        commands.settings(*tiny, "study=confirm", "seed=100")


def test_the_search_varies_settings_that_there_are_under_the_conditions_of_tuning() -> None:
    """Its sweeper is a package that need not be installed, so the file is read and not composed."""
    search = OmegaConf.load(CONF / "study" / "search" / "optuna.yaml")
    tune = commands.compose("study=tune")
    for key in search.hydra.sweeper.params:
        assert OmegaConf.select(tune, str(key)) is not None, key
    for part in ("task", "budget", "trainer"):
        for key, value in search[part].items():
            assert tune[part][key] == value, (part, key)
    assert "override /hydra/sweeper" in search.defaults[1]


def test_a_fixed_grid_takes_the_rate_at_its_edge(tmp_path: Path) -> None:
    assert confirm(tmp_path, "study.fixed_grid=true", bracketed=False).optimizer.learning_rate == 0.02


def test_rates_that_analysis_wrote_are_read_whole(tmp_path: Path) -> None:
    assert confirm(tmp_path, undecided=[0.01]).optimizer.learning_rate == 0.02


def test_a_file_is_read_again_after_a_change_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(rate: float) -> None:
        arms = [{**ARM, "learning_rate": rate}]
        path.write_text(yaml.safe_dump({"study": "tune", "seeds": [100], "arms": arms}))

    read, honest = [], tuned_rates.read_yaml
    monkeypatch.setattr(tuned_rates, "read_yaml", lambda *words: read.append(words) or honest(*words))
    path = tmp_path / "rates.yaml"
    write(0.003)
    assert [read_rates(path).arms[0].learning_rate for _ in range(3)] == [0.003] * 3
    assert len(read) == 1
    write(0.0056)
    assert read_rates(path).arms[0].learning_rate == 0.0056
