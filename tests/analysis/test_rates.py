from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from analysis.rates import best_rates, main, rate_table


@pytest.fixture
def swept(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """A decoder whose best rate lies inside the grid, a mamba whose best lies at its edge, one failure."""
    scores = {
        "decoder": {1e-3: 2.6, 3e-3: 2.3, 1e-2: 2.35},
        "mamba": {1e-3: 2.9, 3e-3: 2.7, 1e-2: 2.4},
    }
    for backbone, by_rate in scores.items():
        for index, (rate, score) in enumerate(by_rate.items()):
            folder = write_run(backbone, 100, score, study="rates", digest=f"{index}{backbone[0]}")
            (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": rate}}))
    folder = write_run(
        "decoder", 100, None, study="rates", digest="9d", status="diverged", message="loss is nan"
    )
    (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": 3e-2}}))
    return tmp_path / "runs"


def test_the_best_validation_value_decides(swept: Path) -> None:
    best = best_rates(rate_table(swept, "rates")).set_index("backbone")
    assert best.loc["decoder", "learning_rate"] == 3e-3
    assert best.loc["mamba", "learning_rate"] == 1e-2


def test_an_optimum_at_the_edge_is_flagged(swept: Path) -> None:
    best = best_rates(rate_table(swept, "rates")).set_index("backbone")
    assert bool(best.loc["mamba", "edge"])
    assert not best.loc["decoder", "edge"]


def test_rates_within_five_percent_are_counted(swept: Path) -> None:
    best = best_rates(rate_table(swept, "rates")).set_index("backbone")
    assert best.loc["decoder", "robust"] == 2
    assert best.loc["mamba", "robust"] == 1


def test_the_printed_choice_is_yaml_for_the_study(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study=rates", f"runs={swept}"]) == 0
    printed = capsys.readouterr().out
    chosen = yaml.safe_load(printed.split("wants it\n")[1])
    assert chosen == {"text": {"decoder": 3e-3, "mamba": 1e-2}}
    assert "at the edge of the grid" in printed


def test_an_absent_study_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study=rates", f"runs={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_of_rates_that_tie_the_middle_is_taken(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    for index, (rate, score) in enumerate({3e-4: 2.1, 1e-3: 2.1, 3e-3: 2.1, 1e-2: 3.0}.items()):
        folder = write_run("decoder", 100, score, study="rates", digest=f"{index}d")
        (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": rate}}))
    best = best_rates(rate_table(tmp_path / "runs", "rates"))
    assert best["learning_rate"].tolist() == [1e-3]
    assert not best["edge"].any()
