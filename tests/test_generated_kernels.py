"""Kernels that Inductor generates for our blocks become machine code of Ampere and Hopper, without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cuda_without_driver
from tests.experiments import commands
from tests.generated_kernels import CASES


@pytest.mark.full
@pytest.mark.parametrize(("capability", "target"), [(80, "sm_80"), (90, "sm_90a")])
def test_compiled_blocks_and_flex_attention_become_machine_code(
    capability: int, target: str, tmp_path: Path
) -> None:
    if problem := cuda_without_driver.problem():
        pytest.skip(problem)
    done = subprocess.run(
        [sys.executable, "-m", "tests.generated_kernels"],
        env=cuda_without_driver.environment(tmp_path, capability),
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [result["case"] for result in results] == list(CASES)
    for result in results:
        assert result["targets"] == [target], result
        assert result["kernels"] > 10, result
        backward = 1 if result["case"].startswith("FlexAttention") else 0
        assert min(result["flex"], result["flex_backward"]) >= backward, result
