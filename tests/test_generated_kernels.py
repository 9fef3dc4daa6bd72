"""Kernels that Inductor generates for our blocks become machine code of Ampere and Hopper, without a GPU."""

from __future__ import annotations

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
    environment = cuda_without_driver.environment(tmp_path, capability)
    results = commands.printed_rows("tests.generated_kernels", env=environment)
    assert [result["case"] for result in results] == list(CASES)
    for result in results:
        assert result["targets"] == [target], result
        assert result["kernels"] > 10, result
        backward = 1 if result["case"].startswith("FlexAttention") else 0
        assert min(result["flex"], result["flex_backward"]) >= backward, result
