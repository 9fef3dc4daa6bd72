"""A model whose weights are divided scores and writes what a whole one does. The processes are real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.experiments import commands
from tests.experiments.training.parallel.divided_evaluation import check
from tests.experiments.training.parallel.together import found_together

FAMILIES = (
    "decoder",
    "moe",
    "mamba",
    "s4",
    "deltanet",
    "hybrid",
    "encoder_decoder",
    "block_diffusion",
    "masked_diffusion",
    "encoder",
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("processes", "families"), [(2, FAMILIES), (4, ("moe", "hybrid", "encoder_decoder"))], ids=["2", "4"]
)
def test_divided_models_score_and_write_what_whole_ones_do(
    processes: int, families: tuple[str, ...], tmp_path: Path
) -> None:
    """Nine examples are not as many for each process: one that has fewer repeats its last pass."""
    cases = {
        name: commands.settings(*commands.TINY, *commands.RECALL, f"backbone={name}", "parallel=fsdp")
        for name in families
    }
    found = found_together(
        processes, tmp_path, lambda: {name: check(settings) for name, settings in cases.items()}
    )
    for name in cases:
        divided, whole = found[name]["divided"], found[name]["whole"]
        assert found[name]["left gathered"] == [], name
        assert divided["texts"] == whole["texts"], name
        assert bool(whole["texts"]) == (name not in ("encoder", "masked_diffusion")), name
        assert divided["metrics"].keys() == whole["metrics"].keys(), name
        for metric, values in whole["metrics"].items():
            assert divided["metrics"][metric] == pytest.approx(values, rel=1e-5), (name, metric)
