"""The device mesh: parallel dimensions of a run, and the position of each process."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from archbench.experiments.config.schema import AUTO, BudgetConfig, ParallelConfig
from archbench.experiments.evaluation.shard import EvaluationShard
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.training.parallel import collectives


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """The parallel dimensions of a run, and the position of this process in each."""

    strategy: str = "none"
    """``ddp`` or ``fsdp``; ``none`` for a single process."""
    data: int = 1
    """Processes, or groups of tensor-parallel processes, among which a batch is divided."""
    data_rank: int = 0
    """Position of this process among them."""
    replicate: int = 1
    """Number of groups of processes that hold a full model in parts."""
    tensor: int = 1
    """Processes among which each layer is divided."""
    tensor_rank: int = 0
    """Position of this process among them."""
    expert: int = 1
    """Processes among which the experts of a layer are divided."""
    mesh: DeviceMesh | None = None
    """Mesh with the dimensions ``data`` and ``tensor``, or ``replicate``, ``shard`` and ``tensor``; None for
    a single process."""
    data_group: dist.ProcessGroup | None = None
    """The processes among which a batch is divided, of this process's place in ``tensor``; None for one."""
    experts: DeviceMesh | None = None
    """Mesh with the dimensions ``replica`` and ``expert``; None without expert parallelism."""

    def sharding_mesh(self) -> DeviceMesh:
        """Return the mesh of fsdp: parameters are divided on its last dimension, and equal on the first."""
        assert self.mesh is not None
        return self.mesh["data"] if self.replicate == 1 else self.mesh["replicate", "shard"]

    def evaluation_shard(self) -> EvaluationShard:
        """Return this process's part of an evaluation.

        Processes that share experts score the same examples, and one of them reports the scores.
        """
        return EvaluationShard(
            index=self.data_rank // self.expert,
            of=self.data // self.expert,
            reports=self.tensor_rank == 0 and self.data_rank % self.expert == 0,
            lockstep=self.strategy == "fsdp",
        )

    def describe(self) -> str:
        """Return a short description of the layout, for the record of a run."""
        sizes = (("replicate", self.replicate), ("tensor", self.tensor), ("expert", self.expert))
        parts = [f"{self.data * self.tensor} processes", self.strategy]
        parts += [f"{name} {n}" for name, n in sizes if n > 1]
        return ", ".join(parts)


def make_parallel_dims(config: ParallelConfig, device: str, budget: BudgetConfig) -> ParallelDims:
    """Lay out all processes by the settings of ``parallel``.

    Raises ConfigError if the batch cannot be divided.
    """
    size = collectives.world_size()
    for name in ("replicate", "tensor", "expert"):
        parts = getattr(config, name)
        if size % parts:
            raise ConfigError(
                f"parallel.{name}={parts}: {size} processes cannot be divided by it; start a multiple of "
                f"{parts} processes, as in torchrun --nproc-per-node {parts} -m archbench.experiments.train"
            )
    data = size // config.tensor
    if data % config.replicate:
        raise ConfigError(
            f"parallel.replicate={config.replicate} with parallel.tensor={config.tensor}: {size} processes "
            f"cannot be divided by both; start a multiple of {config.replicate * config.tensor}"
        )
    if budget.batch_size % data:
        raise ConfigError(
            f"budget.batch_size={budget.batch_size} cannot be divided among {data} processes: make it a "
            "multiple"
        )
    if size == 1:
        return ParallelDims()
    if budget.micro_batch_size == AUTO:
        raise ConfigError(
            f"budget.micro_batch_size={AUTO} with {size} processes, which must keep step: give a number, "
            f"such as {max(1, budget.batch_size // data // 2)}"
        )
    if config.replicate == 1:
        mesh = init_device_mesh(device, (data, config.tensor), mesh_dim_names=("data", "tensor"))
        data_group = mesh["data"].get_group()
    else:
        shape = (config.replicate, data // config.replicate, config.tensor)
        mesh = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard", "tensor"))
        data_group = mesh["replicate", "shard"]._flatten("data").get_group()
    experts = None
    if config.expert > 1:
        by_expert = (data // config.expert, config.expert)
        experts = init_device_mesh(device, by_expert, mesh_dim_names=("replica", "expert"))
    strategy = config.strategy if config.strategy != "none" else "fsdp" if config.tensor > 1 else "ddp"
    return ParallelDims(
        strategy=strategy,
        data=data,
        data_rank=dist.get_rank(data_group),
        data_group=data_group,
        replicate=config.replicate,
        tensor=config.tensor,
        tensor_rank=mesh.get_local_rank("tensor"),
        expert=config.expert,
        mesh=mesh,
        experts=experts,
    )
