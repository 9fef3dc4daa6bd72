"""No family leaves tensors on the host or waits for a device more than it must, whatever the device."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.experiments import commands
from tests.other_device import FAMILIES

LOSS_AND_NORM = "local_loss, norm = torch.stack([total, total_norm.double()]).tolist()"


@pytest.mark.full
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_every_family_trains_evaluates_and_generates_on_another_device(precision: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.other_device", precision],
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [result["backbone"] for result in results] == list(FAMILIES)
    for result in results:
        assert result["step"] == {f"experiments/training/trainer.py: {LOSS_AND_NORM}": 2}
