"""Tensors on disk in shards: each process writes its parts, and any number of processes reads them.

``torch.distributed.checkpoint`` does both, with its safetensors files (``HuggingFaceStorageWriter``). Its
reader also reads full safetensors files. The header of a shard states which part of a tensor it has, but no
file states the number of shards: a reader needs a list of the files.
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

from archbench.experiments.training.parallel.collectives import is_dtensor

FILE_BYTES = 2**28
"""Bytes of a file of one process, about: a process copies the tensors of a file, twice, to write it."""


def own_parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, in CPU memory, of the parts that this process writes.

    Of processes with the same part of a divided tensor, the first one writes it. Tensors that every process
    holds in full are distributed, so that all processes write about as much.
    """
    parts, written = {}, [0] * dist.get_world_size()
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].nbytes, item[0])):
        if is_dtensor(tensor):
            coordinate = tensor.device_mesh.get_coordinate() or [0] * len(tensor.placements)
            replica_indices = [
                position
                for position, placement in zip(coordinate, tensor.placements, strict=True)
                if placement.is_replicate()
            ]
            mine = not any(replica_indices)
        else:
            writer = written.index(min(written))
            written[writer] += tensor.nbytes
            mine = writer == dist.get_rank()
        if mine:
            parts[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return parts


def file_numbers(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the index, from 1, of the file of a process that stores its part of each tensor."""
    file_index, index, filled = {}, 1, 0
    for name, tensor in tensors.items():
        part = tensor.nbytes // dist.get_world_size()
        if filled and filled + part > FILE_BYTES:
            index, filled = index + 1, 0
        file_index[name], filled = index, filled + part
    return file_index


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
    metadata = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        for name, entry in metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read_into(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, sharded or full, from the files of a folder. Each process reads only its parts.

    Raises:
        Exception: a file cannot be read, or has a tensor of another shape or none of that name.
    """
    with warnings.catch_warnings():
        # PyTorch warns that the process is alone; processes read independently.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            raise _first(error) from error


def _first(error: CheckpointException) -> BaseException:
    """Return what the process of the lowest rank that failed has raised."""
    rank = min(error.failures)
    return error.failures[rank][0]


# The reader logs its fallback for files without metadata of shards, at each reading.
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
