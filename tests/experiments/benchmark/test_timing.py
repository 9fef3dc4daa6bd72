from __future__ import annotations

import pytest
import torch

from archbench.experiments.benchmark import timing
from archbench.experiments.benchmark.timing import Stopwatch, is_stable, matmul_rate, memory_rate, quartiles


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only moves when a test moves it: its one element is the time."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def test_times_stand_still_when_two_medians_agree() -> None:
    assert not is_stable([1.0] * 19)
    assert is_stable([1.0] * 20)
    assert is_stable([9.0] * 5 + [1.0] * 10 + [1.019] * 10)  # only the last twenty count
    assert not is_stable([1.0] * 10 + [1.021] * 10)
    assert is_stable(([1.0] * 9 + [50.0]) * 2)  # one outlier in each ten is nothing to a median
    assert is_stable([1.0, 2.0, 2.0], window=1)
    assert not is_stable([1.0, 2.0], window=1)
    assert not is_stable([], window=0)


def test_the_warm_up_ends_when_times_stand_still(clock: list[float]) -> None:
    lasts = iter([3.0, 2.0, 1.5] + [1.0] * 100)

    def work() -> None:
        clock[0] += next(lasts)

    times = Stopwatch(torch.device("cpu")).until_stable(work, 1000.0)
    assert times == [3.0, 2.0, 1.5] + [1.0] * 17  # the medians of both tens are 1


def test_a_warm_up_that_never_stands_still_ends_when_its_time_is_spent(clock: list[float]) -> None:
    def work() -> None:
        clock[0] = 2 * clock[0] + 1

    assert Stopwatch(torch.device("cpu")).until_stable(work, 7.0) == [1.0, 2.0, 4.0]
    assert len(Stopwatch(torch.device("cpu")).until_stable(work, 0.0)) == 2


def test_repetitions_meet_both_floors(clock: list[float]) -> None:
    def work() -> None:
        clock[0] += 0.5

    watch = Stopwatch(torch.device("cpu"))
    assert watch.repeat(work, 3) == [0.5] * 3
    assert watch.repeat(work, 3, 4.0) == [0.5] * 8


def test_quartiles_by_hand() -> None:
    assert quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)


def test_the_rate_is_of_the_fastest_product(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CPU_SIZES", (10, 20))
    real = torch.mm

    def slow(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        clock[0] += 1.0 if len(a) == 10 else 4.0
        return real(a, b, out=out)

    monkeypatch.setattr(torch, "mm", slow)
    assert matmul_rate(torch.device("cpu"), torch.float32) == 2 * 20**3 / 4.0


def test_the_rate_of_memory_is_that_of_the_fastest_pass(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading and copying 8 MiB twice take 4 s each, a product with a vector 1 s."""
    monkeypatch.setattr(timing, "PASSED_BYTES", 2**24)
    for name, seconds in (("sum", 2.0), ("copy_", 2.0)):
        monkeypatch.setattr(torch.Tensor, name, lambda *a, t=seconds: clock.__setitem__(0, clock[0] + t))
    real = torch.mv
    sizes = []

    def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        clock[0] += 0.5
        sizes.append(a.shape)
        return real(a, b, out=out)

    monkeypatch.setattr(torch, "mv", multiply)
    assert memory_rate(torch.device("cpu"), 2**23) == 2**24 / 1.0
    assert set(sizes) == {(2048, 1024)}


def test_a_gpu_is_timed_by_its_events_once_its_clocks_are_up(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no GPU here: its events are stand-ins that read the clock of the test."""
    calls: list[float] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = -1.0

        def record(self) -> None:
            self.at = clock[0]

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return 1000 * (end.at - self.at)

    def launch() -> None:
        calls.append(clock[0])
        clock[0] += 0.25 if clock[0] < 0.5 else 0.01  # slow until the clocks are up

    monkeypatch.setattr(torch.cuda, "Event", Event)
    seconds = timing._in_a_row(Stopwatch(torch.device("cpu")), launch)
    assert seconds == pytest.approx(0.01)
    assert len([at for at in calls if at >= 1.0]) >= timing.CUDA_LAUNCHES
