"""Tensors on disk in shards: each process writes its parts, and any number of processes reads them.

``torch.distributed.checkpoint`` does both, with its safetensors files (``HuggingFaceStorageWriter``). Its
reader reads whole safetensors files too. A shard says in its header which part of a tensor it has, and no
file says how many shards there are: whoever trusts them needs a list of the files.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from experiments.training.parallel.dtensors import is_dtensor

FILE_BYTES = 2**28
"""Bytes of a file of one process, about: a process copies the tensors of a file, twice, to write it."""


def own_parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, in CPU memory, of those tensors of which this process writes its part.

    Of processes that hold the same part of a divided tensor the first writes it. Tensors that every process
    holds whole are dealt out, so that all write about as much.
    """
    parts, written = {}, [0] * dist.get_world_size()
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].nbytes, item[0])):
        if is_dtensor(tensor):
            place = tensor.device_mesh.get_coordinate() or [0] * len(tensor.placements)
            same = [at for at, kind in zip(place, tensor.placements, strict=True) if kind.is_replicate()]
            mine = not any(same)
        else:
            writer = written.index(min(written))
            written[writer] += tensor.nbytes
            mine = writer == dist.get_rank()
        if mine:
            parts[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return parts


def file_numbers(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return in which file of a process, counted from 1, its part of each tensor goes."""
    numbers, number, filled = {}, 1, 0
    for name, tensor in tensors.items():
        part = tensor.nbytes // dist.get_world_size()
        if filled and filled + part > FILE_BYTES:
            number, filled = number + 1, 0
        numbers[name], filled = number, filled + part
    return numbers


def write_parts(
    folder: Path, parts: dict[str, Tensor], numbers: dict[str, int], group: dist.ProcessGroup | None
) -> list[Path]:
    """Write the parts of all processes, which all must call it, and return this process's files.

    Args:
        numbers: of ``file_numbers``; of all tensors.
        group: over which the processes agree on what each writes.

    Raises:
        Exception: the first that any process has raised.
    """
    writer = dcp.HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=numbers, save_distributed=True)
    try:
        dcp.save(parts, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _first(error) from error
    return sorted(folder.glob(f"shard-{dist.get_rank() + 1:05d}-*.safetensors"))


def stored(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in the files of a folder by name, without their content: on the meta device.

    Raises OSError, SafetensorError.
    """
    found = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name: torch.empty(each.size, dtype=each.properties.dtype, device="meta")
        for name, each in found.items()
        if isinstance(each, TensorStorageMetadata)
    }


def read_into(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, divided or whole, from the files of a folder. A process reads its own parts, alone.

    Raises:
        Exception: a file cannot be read, or has a tensor of another shape or none of that name.
    """
    with warnings.catch_warnings():
        # That it is alone: what others read is nothing that it need know.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            raise _first(error) from error


def _first(error: CheckpointException) -> BaseException:
    """Return what the process of the lowest rank that failed has raised."""
    rank = min(error.failures)
    return error.failures[rank][0]


# It says at each reading that it falls back to what a file of another format would say.
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
