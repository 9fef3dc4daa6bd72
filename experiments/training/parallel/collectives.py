"""Communication among the processes that train one run together.

Started by ``torchrun`` or, with MASTER_ADDR set, by ``srun``; otherwise a process
is alone and every function here returns its local value. Processes exchange
numbers and JSON, never pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from archbench.experiments.runtime import errors
from archbench.experiments.runtime.errors import ConfigError, RunError, to_run_error
from archbench.experiments.runtime.machine import job_number, process_rank

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

FAILURE = "failure"
"""Key of the store under which the first process to fail writes its error."""

_store: dist.Store | None = None
_background: dist.ProcessGroup | None = None


def start(device: torch.device) -> None:
    """Join the process group of the run, if there are other processes. Raises ConfigError."""
    global _store
    process = process_rank()
    if process.size == 1 or dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(_gpu(device, process.local_rank))
    # srun names no port: one that the processes of a job share and other jobs hardly have.
    os.environ.setdefault("MASTER_PORT", str(20000 + job_number("SLURM_JOB_ID") % 20000))
    store, _, _ = next(dist.rendezvous("env://", process.rank, process.size))
    _store = dist.PrefixStore("archbench", store)
    # Control messages use gloo, which needs no GPU.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=_store, rank=process.rank, world_size=process.size)


def _gpu(device: torch.device, local_rank: int) -> int:
    """Return the index of this process's GPU among those that it sees. Raises ConfigError.

    ``srun --gpus-per-task=1`` exposes one GPU to each process, which has index 0 in all of them.
    """
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if device.index is None and local_rank > 0 and len(visible) == 1:
        return 0
    if device.index is not None or local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"device={device}: process {local_rank} of this machine takes GPU {local_rank} of "
            f"{torch.cuda.device_count()}: use device=cuda, and as many processes as GPUs"
        )
    return local_rank


def stop() -> None:
    """Leave the process group, if there is one; an exit without it prints warnings."""
    global _background
    _background = None
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def left_at_end() -> Iterator[None]:
    """Leave the process group, if one was joined, at the end."""
    try:
        yield
    finally:
        stop()


def background_group() -> dist.ProcessGroup | None:
    """Return a group of all processes for a background thread; None for a single process.

    Two threads of a process must not speak over one group. All processes must ask for it at the same place.
    """
    global _background
    if _background is None and world_size() > 1:
        _background = dist.new_group(backend="gloo")
    return _background


def world_size() -> int:
    """Return the number of processes that train this run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process among those that train this run."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_rank_zero() -> bool:
    """Return True in the process that writes files and prints."""
    return (dist.get_rank() if dist.is_initialized() else process_rank().rank) == 0


def run_on_rank_zero(function: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Call ``function`` in the process of rank 0 and return its value, which must fit JSON, in all.

    An exception there is raised in all processes as a RunError.

    Args:
        group: of all processes, used for communication; None for the default one.
    """
    if world_size() == 1:
        return function()
    reply, failure = _attempt(function) if is_rank_zero() else ({}, None)
    return _value(json.loads(_broadcast(json.dumps(reply), group)), failure)


def run_on_all(function: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Call ``function`` in every process and return all values, by rank, in each; they must fit JSON.

    Exceptions are raised in all processes as a RunError, that of the lowest rank.
    """
    if world_size() == 1:
        return [function()]
    reply, failure = _attempt(function)
    everything = [json.loads(text) for text in _gather(json.dumps(reply), group)]
    failed = next((position for position, answer in enumerate(everything) if "kind" in answer), None)
    if failed is not None:
        _value(everything[failed], failure if failed == rank() else None)
    return [answer["value"] for answer in everything]


def _attempt(function: Callable[[], T]) -> tuple[dict[str, Any], RunError | None]:
    """Call a function; return its value, or its failure, as JSON can hold it, and the failure itself."""
    try:
        return {"value": function()}, None
    except Exception as error:
        failure = to_run_error(error)
        failure.__cause__ = error if failure is not error else None
        return {"kind": type(failure).__name__, "message": str(failure)}, failure


def _value(reply: dict[str, Any], failure: RunError | None) -> Any:
    """Return the value in a reply, or raise the failure in it; ``failure`` is that of this process."""
    if failure is not None:
        raise failure
    if "kind" in reply:
        raise getattr(errors, reply["kind"], RunError)(reply["message"]) from None
    return reply["value"]


def rank_zero_first(function: Callable[[], T]) -> T:
    """Call ``function`` in the process of rank 0, then in all other ones, which reuse its files.

    An exception of the first call is raised in all processes.
    """
    if world_size() == 1:
        return function()
    made: list[T] = []
    run_on_rank_zero(lambda: made.append(function()))
    return made[0] if is_rank_zero() else function()


def _broadcast(text: str, group: dist.ProcessGroup | None) -> str:
    """Return the text of the process of rank 0 in all processes."""
    sent = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    length = torch.tensor(len(sent))
    dist.broadcast(length, src=0, group=group)
    content = sent if is_rank_zero() else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(content, src=0, group=group)
    return bytes(content.tolist()).decode()


def _gather(text: str, group: dist.ProcessGroup | None) -> list[str]:
    """Return the texts of all processes, by rank, in each."""
    sent = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    lengths = [torch.tensor(0) for _ in range(world_size())]
    dist.all_gather(lengths, torch.tensor(len(sent)), group=group)
    longest = max(int(length) for length in lengths)
    buffers = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(buffers, nn.functional.pad(sent, (0, longest - len(sent))), group=group)
    return [bytes(buffer[: int(n)].tolist()).decode() for buffer, n in zip(buffers, lengths, strict=True)]


def all_reduce_any(flag: bool) -> bool:
    """Return True in all processes if the flag is set in any process."""
    if world_size() == 1:
        return flag
    flag_1 = torch.tensor(int(flag))
    dist.all_reduce(flag_1, dist.ReduceOp.MAX)
    return bool(flag_1)


def first_failure(error: RunError) -> RunError:
    """Return why the run fails: ``error``, unless another process failed earlier.

    When one process fails, all other ones soon fail because it is gone; their errors are not the cause.
    """
    if _store is None:
        return error
    own_rank = process_rank().rank
    record = json.dumps([own_rank, type(error).__name__, str(error)])
    try:
        failed_rank, error_name, message = json.loads(_store.compare_set(FAILURE, "", record))
    except (
        RuntimeError
    ):  # the first process, which keeps the store, is gone: what failed here is not the cause
        return error if is_rank_zero() else type(error)(*error.args)
    return error if failed_rank == own_rank else getattr(errors, error_name, RunError)(message)


def reports_error(error: RunError) -> bool:
    """Return True in the one process that reports why the run fails."""
    return is_rank_zero() if _store is None else first_failure(error) is error


def is_dtensor(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Return True for a tensor divided among processes. A single process need not import DTensor."""
    if not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def add_up(tensors: list[Tensor], group: dist.ProcessGroup | None) -> None:
    """Add tensors of one type up over a group of processes, in place and in one message."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))
