"""A model whose weights are divided scores and writes what a whole one does. The processes are real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments import commands
from tests.experiments.training.parallel.together import run_together

MODULE = "tests.experiments.training.parallel.divided_evaluation"
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
@pytest.mark.parametrize("processes", [2, 4])
def test_divided_models_score_and_write_what_whole_ones_do(processes: int, tmp_path: Path) -> None:
    """Nine examples are not as many for each process: one that has fewer repeats its last pass."""
    words = {name: ",".join([*commands.TINY, *commands.RECALL, f"backbone={name}", "parallel=fsdp"])
             for name in FAMILIES}  # fmt: skip
    run_together(processes, MODULE, str(tmp_path / "found.json"), *words.values(), seconds=600)
    found = json.loads((tmp_path / "found.json").read_text())
    for name, case in words.items():
        divided, whole = found[case]["divided"], found[case]["whole"]
        assert found[case]["left gathered"] == [], name
        assert divided["texts"] == whole["texts"], name
        assert bool(whole["texts"]) == (name not in ("encoder", "masked_diffusion")), name
        assert divided["metrics"].keys() == whole["metrics"].keys(), name
        for metric, values in whole["metrics"].items():
            assert divided["metrics"][metric] == pytest.approx(values, rel=1e-5), (name, metric)
