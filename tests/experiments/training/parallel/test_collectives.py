"""Which GPU a process takes. There is none here: how many PyTorch sees is set."""

from __future__ import annotations

import pytest
import torch

from experiments.runtime.errors import ConfigError
from experiments.training.parallel import collectives


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
