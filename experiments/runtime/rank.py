"""The rank of this process among those that share a run, from the environment of its launcher."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProcessRank:
    """The position of this process among those that share a run."""

    rank: int = 0
    local_rank: int = 0
    """Rank among the processes of its machine."""
    size: int = 1


def process_rank() -> ProcessRank:
    """Return the rank that ``torchrun`` or ``srun`` gave this process.

    Tasks of ``srun`` without MASTER_ADDR are treated as separate runs.
    """
    env = os.environ
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if "RANK" not in env and "MASTER_ADDR" in env and "SLURM_STEP_NUM_TASKS" in env:
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
    rank, local_rank, size = (int(env.get(name, default)) for name, default in zip(names, "001", strict=True))
    return ProcessRank(rank=rank, local_rank=local_rank, size=size)
