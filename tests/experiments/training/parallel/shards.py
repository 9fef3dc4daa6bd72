"""The work of each process of ``test_sharded_files``.

It divides tensors in every way that we train with, writes them, and reads them again, divided and whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from archbench.experiments.training.parallel import collectives, sharded_files
from tests.experiments.training.parallel.initial_weights import whole


def plain() -> dict[str, Tensor]:
    """Tensors that every process holds whole: of no element, of one, of several types, and a view."""
    return {
        "empty": torch.zeros(0),
        "scalar": torch.tensor(3.5),
        "numbers": torch.arange(7),
        "bits": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "view": torch.arange(6.0).view(2, 3).t(),
    }


def divided() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors divided by FSDP, HSDP and FSDP with tensor parallelism, and the whole of each."""
    torch.manual_seed(0)
    expected, tensors = plain(), plain()

    def add(name: str, module: nn.Module) -> nn.Module:
        expected.update({f"{name}.{key}": value.clone() for key, value in module.state_dict().items()})
        return module

    odd = add("odd", nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 1)))  # the last process has none of a bias
    fully_shard(odd)
    modules = {"odd": odd}
    if collectives.world_size() == 4:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        cut = add("cut", nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4)))
        parallelize_module(cut, grid["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(cut, mesh=grid["data"])
        copied = add("copied", nn.Linear(5, 3))
        groups = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(copied, mesh=groups)
        modules |= {"cut": cut, "copied": copied}
    for name, module in modules.items():
        tensors.update({f"{name}.{key}": value for key, value in module.state_dict().items()})
    return tensors, expected


def different(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    return [name for name, tensor in expected.items() if not torch.equal(whole(found[name]), tensor)]


def check(folder: Path) -> dict[str, Any]:
    group = collectives.background_group()
    tensors, expected = divided()
    sharded_files.FILE_BYTES = 60  # several files of each process
    parts = sharded_files.own_parts(tensors)
    numbers = sharded_files.file_numbers(tensors)
    for tensor in tensors.values():
        tensor.detach().zero_()  # what is written is what was copied
    files = sharded_files.write_parts(folder / "shards", parts, numbers, group)
    written = collectives.run_on_all(
        lambda: [{"names": sorted(parts), "files": [file.name for file in files]}], group
    )
    again = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    sharded_files.read_into(folder / "shards", again)
    alone = {
        name: torch.empty_like(tensor, device="cpu")
        for name, tensor in sharded_files.stored(folder / "shards").items()
    }
    sharded_files.read_into(folder / "shards", alone)
    return {
        "written": [each[0] for each in written],
        "different": different(again, expected),
        "different where read whole": different(alone, expected),
        "unknown": sorted(alone.keys() - expected.keys()),
        "refused": refusals(folder, parts, numbers, group),
    }


def refusals(folder: Path, parts: Any, numbers: Any, group: Any) -> list[str]:
    """Check what is raised where a file stands in the place of the folder, and for tensors not stored."""
    said = []
    (folder / "file").touch()
    for work in (
        lambda: sharded_files.write_parts(folder / "file" / "in", parts, numbers, group),
        lambda: sharded_files.read_into(folder / "shards", {"numbers": torch.zeros(8)}),
        lambda: sharded_files.read_into(folder / "shards", {"absent": torch.zeros(8)}),
    ):
        try:
            work()
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said
