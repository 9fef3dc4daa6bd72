"""Measuring the kernels on an instruction set that is in no table."""

import json
import time

import pytest
import torch

from archbench.architectures.kernels.cpu import build, where
from archbench.architectures.kernels.cpu import measure as measuring

pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "instruction_set", lambda: "neon")
    monkeypatch.setattr(where, "measured_file", lambda: tmp_path / "kernels.json")
    where.measured_here.cache_clear()
    yield tmp_path / "kernels.json"
    where.measured_here.cache_clear()


def test_every_kernel_is_measured_once_in_little_time(file, monkeypatch):
    before, begin = torch.get_rng_state(), time.process_time()
    measuring.measure_unless_known()
    assert time.process_time() - begin < 4  # 1.3 to 1.9 on an idle machine
    assert torch.equal(torch.get_rng_state(), before)
    found = json.loads(file.read_text())
    assert found.keys() == set(where.KERNELS) == where.measured_here().keys()
    assert all(ratio > 0 for ratios in found.values() for ratio in ratios.values())
    assert all("fp32 training" in ratios for ratios in found.values())
    monkeypatch.setattr(measuring, "measure", lambda: pytest.fail("measured again"))
    measuring.measure_unless_known()
    where.measured_here.cache_clear()  # as in another process
    measuring.measure_unless_known()
    assert list(file.parent.iterdir()) == [file]


def test_whoever_is_first_decides(file, monkeypatch):
    def measure() -> dict[str, dict[str, float]]:
        file.write_text('{"scan": {"fp32 training": 2.0}}')  # another process, meanwhile
        return {"scan": {"fp32 training": 0.5}}

    monkeypatch.setattr(measuring, "measure", measure)
    measuring.measure_unless_known()
    assert where.measured_here() == {"scan": {"fp32 training": 2.0}}
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"scan": 2.0}', '{"scan": {"fp32 training": "fast"}}'])
def test_damaged_measurements_are_measured_again(file, monkeypatch, damage):
    measured = {"scan": {"fp32 training": 0.5}}
    monkeypatch.setattr(measuring, "measure", lambda: measured)
    file.write_text(damage)
    measuring.measure_unless_known()
    assert where.measured_here() == json.loads(file.read_text()) == measured
    assert list(file.parent.iterdir()) == [file]


def test_nothing_is_measured_where_the_table_says(file, monkeypatch):
    monkeypatch.setattr(build, "instruction_set", lambda: "avx2")
    measuring.measure_unless_known()
    assert not file.exists()


@pytest.mark.parametrize("case", list(measuring.short_cases()), ids=lambda case: case[1].kernel)
def test_both_ways_compute_the_same(case):
    dtype, one = case
    torch.manual_seed(0)
    y, expected = one.ours(*one.operands), one.theirs(*one.operands)
    limit = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(y.float(), expected.float(), rtol=limit, atol=limit)
