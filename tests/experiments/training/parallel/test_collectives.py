"""Messages between processes, and the GPU that each takes; there is none here: PyTorch is told how many."""

from __future__ import annotations

import pytest
import torch

from archbench.experiments.runtime.errors import CheckpointError, ConfigError
from archbench.experiments.training.parallel import collectives
from tests.faults.children import in_children


@pytest.mark.parametrize(
    ("visible", "seen", "local_rank", "expected"),
    [
        (None, 4, 3, 3),
        ("0,1,2,3", 4, 2, 2),
        ("GPU-5ebe9f43", 1, 0, 0),
        ("2", 1, 3, 0),  # srun --gpus-per-task=1: each process sees one, its own
    ],
)
def test_each_process_takes_its_gpu(
    visible: str | None, seen: int, local_rank: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    assert collectives._gpu(torch.device("cuda"), local_rank) == expected


@pytest.mark.parametrize(("device", "local_rank"), [("cuda", 2), ("cuda", 1), ("cuda:0", 0)])
def test_more_processes_than_gpus_and_a_numbered_device_are_refused(
    device: str, local_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="use device=cuda, and as many processes as GPUs"):
        collectives._gpu(torch.device(device), local_rank)


@pytest.mark.full
def test_what_each_process_says_reaches_all_and_the_first_failure_too() -> None:
    def work(rank: int) -> None:
        collectives.start(torch.device("cpu"))
        group = collectives.background_group()
        assert collectives.run_on_all(lambda: ["ö" * 300 * rank, rank], group) == [["", 0], ["ö" * 300, 1]]
        assert collectives.run_on_rank_zero(lambda: rank, group) == 0

        def fail() -> None:
            if rank == 1:
                raise CheckpointError("no room in 1")

        with pytest.raises(CheckpointError, match="no room in 1"):
            collectives.run_on_all(fail, group)
        with pytest.raises(CheckpointError, match="no room in 0"):
            collectives.run_on_all(lambda: raise_(CheckpointError(f"no room in {rank}")))

    assert in_children(2, work) == [0, 0]


def raise_(error: Exception) -> None:
    raise error
