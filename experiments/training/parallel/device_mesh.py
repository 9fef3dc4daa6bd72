"""Which part of the work each process has."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from experiments.config.parallel import ParallelConfig
from experiments.config.schema import AUTO, BudgetConfig
from experiments.runtime.errors import ConfigError
from experiments.training.parallel import collectives


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """Where this process stands among those that train a run."""

    strategy: str = "none"
    """``ddp`` or ``fsdp``; ``none`` for a process that is alone."""
    data: int = 1
    """Parts of a batch."""
    data_rank: int = 0
    """The part of this process."""
    tensor: int = 1
    tensor_rank: int = 0
    expert: int = 1
    mesh: DeviceMesh | None = None
    """Of ``data`` and ``tensor``; None for a process that is alone."""
    experts: DeviceMesh | None = None
    """Of ``replica`` and ``expert``, where experts are shared out."""

    @property
    def shares(self) -> int:
        """Parts that an evaluation is cut into: processes that share experts go through the same examples."""
        return self.data // self.expert

    @property
    def share(self) -> int:
        """The part of this process."""
        return self.data_rank // self.expert

    @property
    def reports(self) -> bool:
        """Whether this process says what came of its share; the others that have it keep silent."""
        return self.tensor_rank == 0 and self.data_rank % self.expert == 0

    def describe(self) -> str:
        """In a few words, for the record of a run."""
        parts = [f"{self.data * self.tensor} processes", self.strategy]
        parts += [f"{name} {n}" for name, n in (("tensor", self.tensor), ("expert", self.expert)) if n > 1]
        return ", ".join(parts)


def make_parallel_dims(config: ParallelConfig, device: str, budget: BudgetConfig) -> ParallelDims:
    """The grid of all processes. Raises ConfigError where they, or the batch, cannot be divided so."""
    size = collectives.world_size()
    for name in ("tensor", "expert"):
        parts = getattr(config, name)
        if size % parts:
            raise ConfigError(
                f"parallel.{name}={parts}: {size} processes cannot be divided by it; start a multiple of "
                f"{parts} processes, as in torchrun --nproc-per-node {parts} -m experiments.train"
            )
    data = size // config.tensor
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
    mesh = init_device_mesh(device, (data, config.tensor), mesh_dim_names=("data", "tensor"))
    experts = None
    if config.expert > 1:
        shape = (data // config.expert, config.expert)
        experts = init_device_mesh(device, shape, mesh_dim_names=("replica", "expert"))
    strategy = config.strategy if config.strategy != "none" else "fsdp" if config.tensor > 1 else "ddp"
    return ParallelDims(
        strategy=strategy,
        data=data,
        data_rank=mesh.get_local_rank("data"),
        tensor=config.tensor,
        tensor_rank=mesh.get_local_rank("tensor"),
        expert=config.expert,
        mesh=mesh,
        experts=experts,
    )
