"""Processes of ``experiments.benchmark``: how they end, and the search for the largest batch."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archbench.experiments.benchmark import subprocess_runner, worker
from archbench.experiments.benchmark.__main__ import answers, read
from archbench.experiments.benchmark.memory_limit import MOST, largest, limited
from archbench.experiments.benchmark.subprocess_runner import failure, measure
from archbench.experiments.benchmark.workloads import CellConfig
from tests.experiments import commands

TINY = (
    "scale.targets.non_embedding=20000",
    "contexts=[12]", "batch_size=1", "repeats=2", "seconds=0", "warmup_seconds=0",
    "device=cpu", "device.threads=1", "mode=[train]",
)  # fmt: skip


def test_how_a_process_ended_is_told_from_its_last_words() -> None:
    assert failure(-9, "") == {"status": "oom", "message": "out of memory"}
    trace = "Traceback\n  File\ntorch.OutOfMemoryError: CUDA out of memory\n\n"
    assert failure(1, trace)["status"] == "oom"
    assert failure(-6, "terminate called\n  what():  std::bad_alloc\n")["status"] == "oom"
    assert failure(1, "Traceback\nKeyError: 'x'\n") == {"status": "failed", "message": "KeyError: 'x'"}
    assert failure(-11, "") == {"status": "failed", "message": "exit code -11"}


def test_the_largest_batch_is_found_exactly_where_it_is_small() -> None:
    for limit in (0, 1, 2, 3, 7, 8, 31, 33):
        tried: list[int] = []
        fits = lambda n, limit=limit, tried=tried: tried.append(n) or n <= limit  # noqa: E731
        assert largest(fits) == (limit, limit + 1)
        assert len(tried) == len(set(tried))


def test_a_large_batch_is_found_to_a_thirtysecond() -> None:
    tried: list[int] = []
    low, high = largest(lambda n: tried.append(n) or n <= 5000)  # type: ignore[func-returns-value]
    assert high is not None
    assert low <= 5000 < high
    assert high - low <= low // 32
    assert len(tried) < 20
    assert largest(lambda n: True) == (MOST, None)


class Machine:
    """Stands for the processes: each fits where memory for its batch is left."""

    def __init__(self, fits: int, whole: int | None = None) -> None:
        """``whole`` is what fits of a full measurement, which may be less than of a trial."""
        self.fits, self.whole = fits, fits if whole is None else whole
        self.cells: list[CellConfig] = []

    def one(self, benchmark: Any, cell: CellConfig) -> dict[str, Any]:
        self.cells.append(cell)
        fits = cell.batch_size <= (self.fits if cell.trial else self.whole)
        row = {"status": "complete"} if fits else {"status": "oom", "message": "no memory"}
        return subprocess_runner.known(benchmark, cell) | row


@pytest.mark.parametrize(("fits", "whole", "found"), [(6, 6, 6), (40, 39, 38), (1, 1, 1)])
def test_the_row_is_of_the_largest_batch_that_could_be_measured(
    fits: int, whole: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(fits, whole)
    monkeypatch.setattr(subprocess_runner, "one", machine.one)
    asked = read(commands.compose(*TINY, "memory_limit=1", root="benchmark"))
    given, sought = asked.cells()
    row = measure(asked, sought)
    assert (row["status"], row["batch_size"], row["batch_choice"]) == ("complete", found, "largest")
    assert row["memory_limit_bytes"] == 2**30
    assert row["batch_too_large"] == found + 1 if fits == whole else fits
    trials = [cell for cell in machine.cells if cell.trial]
    assert {cell.repeats for cell in trials} == {1}
    assert {cell.repeats for cell in machine.cells if not cell.trial} == {2}
    assert measure(asked, given)["batch_choice"] == "given"


def test_that_nothing_fits_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_runner, "one", Machine(0).one)
    asked = read(commands.compose(*TINY, "memory_limit=0.25", root="benchmark"))
    given, sought = asked.cells()
    row = measure(asked, sought)
    assert row["status"] == "oom"
    assert row["message"] == f"not even one sequence fits into {2**28} bytes"
    assert answers(row)
    assert not answers(measure(asked, given))


def test_a_trial_that_fails_otherwise_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"status": "failed", "message": "KeyError: 'x'"}
    monkeypatch.setattr(subprocess_runner, "one", lambda b, cell: subprocess_runner.known(b, cell) | broken)
    asked = read(commands.compose(*TINY, "memory_limit=1", root="benchmark"))
    row = measure(asked, list(asked.cells())[-1])
    assert (row["status"], row["message"]) == ("failed", "with 1 sequences: KeyError: 'x'")
    assert not answers(row)


def test_allocations_beyond_the_limit_fail_and_only_inside() -> None:
    cpu, floats = torch.device("cpu"), 2**24  # 64 MiB
    with limited(cpu, 2**27):
        torch.empty(floats)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(4 * floats)
    torch.empty(4 * floats)
    with limited(cpu, None):
        torch.empty(4 * floats)


@pytest.mark.parametrize(("name", "index"), [("cuda", None), ("cuda:1", 1)])
def test_the_limit_of_a_gpu_is_a_share_of_its_memory(
    name: str, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch takes an index here, or None for the current device, but no device without an index."""
    shares: list[tuple[float, int | None]] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(total_memory=2**33))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *a: shares.append(a))
    with limited(torch.device(name), 2**31), limited(torch.device(name), 2**40):
        pass
    assert shares == [(0.25, index), (1.0, index), (1.0, index), (1.0, index)]


def test_a_process_keeps_to_its_limit() -> None:
    """A state of 64 sequences of 4,096 tokens is beyond 32 MiB, one of one sequence is not."""
    words = ("mode=[decode]", "contexts=[4096]", "decode_tokens=1", "piece=64", "memory_limit=0.03125")
    asked = read(commands.compose(*TINY, *words, root="benchmark"))
    one = dataclasses.replace(list(asked.cells())[-1], trial=True)
    assert set(worker.measure(asked.order(one))) == {"peak_memory_bytes"}
    row = subprocess_runner.one(asked, dataclasses.replace(one, batch_size=64))
    assert (row["status"], row["batch_size"]) == ("oom", 64)
