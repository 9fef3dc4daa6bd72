"""Settings of parallel training. With one process only activation checkpointing applies."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.runtime.errors import nearest

STRATEGIES = ("none", "ddp", "fsdp")
PLACES = ("none", "block")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Parallelism over the processes that ``torchrun`` or ``srun`` starts for one run.

    None of it enters the digest of a run: results agree to rounding, as with micro-batches.
    """

    strategy: str = "none"
    """``ddp``: every process has the whole model and a part of the batch. ``fsdp``: it also keeps a part only
    of the weights, gradients and moments, and gathers a block when it needs it. ``none`` is ddp where there
    are several processes."""
    replicate: int = 1
    """Under fsdp, groups of processes that each hold a whole model in parts (HSDP): weights are gathered
    within a group, and gradients added up between groups. With a group for each node no weights cross the
    network."""
    tensor: int = 1
    """Degree of tensor parallelism: processes among which attention and feed-forward layers are divided."""
    expert: int = 1
    """Degree of expert parallelism: processes among which the experts of a layer are divided."""
    activation_checkpointing: str = "none"
    """``block`` keeps only the input of each block and computes the rest again: less memory, a third more
    work."""
    nodes: int | None = None
    """Nodes that ``archbench slurm submit`` asks for and ``archbench plan`` counts with, for each run; null
    for those of the cluster's file, and for one in a plan. Training takes the processes that are there."""
    gpus_per_node: int | None = None
    """GPUs on each of these nodes, with a process for each; null as above. With ``device=cpu`` it is the
    number of processes alone."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy={self.strategy!r}{nearest(self.strategy, STRATEGIES)}")
        if (value := self.activation_checkpointing) not in PLACES:
            raise ValueError(f"activation_checkpointing={value!r}{nearest(value, PLACES)}")
        for name in ("replicate", "tensor", "expert"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("nodes", "gpus_per_node"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ValueError(f"{name}={number} must be at least 1, or null")
        if self.tensor > 1 and self.expert > 1:
            raise ValueError(f"tensor={self.tensor} and expert={self.expert} do not go together: leave one 1")
        if self.replicate > 1 and self.strategy != "fsdp":
            raise ValueError(
                f"replicate={self.replicate} goes with strategy=fsdp, not {self.strategy}: under ddp every "
                "process has a whole model already"
            )
        if self.tensor > 1 and self.strategy == "ddp":
            raise ValueError(f"tensor={self.tensor} goes with strategy=fsdp, not ddp")

    @property
    def processes(self) -> int:
        """Return the processes that the run is planned for: one for each GPU of its nodes."""
        return (self.nodes or 1) * (self.gpus_per_node or 1)
