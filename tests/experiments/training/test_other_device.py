"""Nothing leaves tensors on the host or waits for a device more than it must, whatever the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cuda_without_driver
from tests.experiments import commands
from tests.other_device import CASES

LOSS_AND_NORM = "local_loss, norm = torch.stack([total, total_norm.double()]).tolist()"
LARGEST_COUNT = "X, M, C = len(counts_X), len(x_MD), int(counts_X.max())"
MOST_TOKENS = "num_tokens = int(selected_BT.sum(1).max())"
LAYERS_THAT_WAIT = {
    "experts, padded": f"architectures/layers/moe/dispatch.py: {LARGEST_COUNT}",
    "mixture_of_depths": f"architectures/layers/mixture_of_depths.py: {MOST_TOKENS}",
}
"""Lines of layers in which the host waits, by case: once for each layer and pass."""


@pytest.mark.full
@pytest.mark.parametrize("device", ["other", "cuda"])
@pytest.mark.parametrize(
    ("group", "precision"),
    [
        ("families", "bf16"),
        ("families", "fp32"),
        ("objectives", "bf16"),
        ("options", "bf16"),
    ],
)
def test_every_case_trains_evaluates_and_generates_on_another_device(
    device: str, group: str, precision: str, tmp_path: Path
) -> None:
    if device == "cuda" and (problem := cuda_without_driver.problem()):
        pytest.skip(problem)
    environment = cuda_without_driver.environment(tmp_path) if device == "cuda" else None
    results = commands.printed_rows("tests.other_device", device, group, precision, env=environment)
    assert [result["case"] for result in results] == list(CASES[group])
    for result in results:
        layer = LAYERS_THAT_WAIT.get(result["case"])
        step, evaluation = result["step"], result["evaluation"]
        assert step.pop(f"experiments/training/trainer.py: {LOSS_AND_NORM}") == 2, result
        assert step.keys() <= {layer}, result
        # Where an evaluation generates, a prefill of rows of different lengths waits.
        if not any("sampling.py" in place for place in evaluation):
            assert {place for place in evaluation if place.startswith("architectures")} <= {layer}, result
