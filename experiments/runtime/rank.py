"""Which of the processes that share a run this one is, as told by what started it."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProcessRank:
    """Which of the processes this is."""

    rank: int = 0
    local_rank: int = 0
    """Among those of its machine."""
    size: int = 1


def process_rank() -> ProcessRank:
    """What ``torchrun`` or ``srun`` says of this process.

    Tasks of ``srun`` without MASTER_ADDR are taken for runs of their own.
    """
    env = os.environ
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if "RANK" not in env and "MASTER_ADDR" in env and "SLURM_STEP_NUM_TASKS" in env:
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
    rank, local_rank, size = (int(env.get(name, default)) for name, default in zip(names, "001", strict=True))
    return ProcessRank(rank=rank, local_rank=local_rank, size=size)
