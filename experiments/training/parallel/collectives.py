"""The processes that train one run together: who they are, how they meet, and how they agree.

Started by ``torchrun`` or, with MASTER_ADDR set, by ``srun``; otherwise a process
is alone and every function here does the plain thing. What they tell each other is
numbers and JSON, never pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from experiments.runtime import errors
from experiments.runtime.errors import ConfigError, RunError
from experiments.runtime.failures import to_run_error
from experiments.runtime.rank import process_rank

T = TypeVar("T")

FAILURE = "failure"
"""Where in the store the first process to fail says why."""

_store: dist.Store | None = None


def start(device: torch.device) -> None:
    """Meets the other processes, if there are any. Raises ConfigError."""
    global _store
    own = process_rank()
    if own.size == 1 or dist.is_initialized():
        return
    if device.type == "cuda":
        if device.index is not None or own.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"device={device}: process {own.local_rank} of this machine takes GPU {own.local_rank} of "
                f"{torch.cuda.device_count()}: use device=cuda, and as many processes as GPUs"
            )
        torch.cuda.set_device(own.local_rank)
    # srun names no port: one that the processes of a job share and other jobs hardly have.
    os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ.get("SLURM_JOB_ID", 0)) % 20000))
    store, _, _ = next(dist.rendezvous("env://", own.rank, own.size))
    _store = dist.PrefixStore("archbench", store)
    # Agreements travel over gloo, so that they need no GPU.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=_store, rank=own.rank, world_size=own.size)


def stop() -> None:
    """Leaves the other processes, if there are any; an exit without it prints warnings."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    """How many processes train this run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_rank_zero() -> bool:
    """Whether this process is the one that writes and speaks."""
    return (dist.get_rank() if dist.is_initialized() else process_rank().rank) == 0


def run_on_rank_zero(function: Callable[[], T]) -> T:
    """What ``function`` returns in the first process, which alone calls it. It must be something for JSON.

    What it raises there, translated into a RunError, is raised in all processes.
    """
    if world_size() == 1:
        return function()
    said: dict[str, Any] = {}
    failure: RunError | None = None
    if is_rank_zero():
        try:
            said["value"] = function()
        except Exception as error:
            failure = to_run_error(error)
            failure.__cause__ = error if failure is not error else None
            said = {"kind": type(failure).__name__, "message": str(failure)}
    said = json.loads(_broadcast(json.dumps(said)))
    if failure is not None:
        raise failure
    if "kind" in said:
        raise getattr(errors, said["kind"], RunError)(said["message"]) from None
    return said["value"]


def rank_zero_first(function: Callable[[], T]) -> T:
    """What ``function`` returns, called in the first process and then in the others: they find what it made.

    What the first raises is raised in all.
    """
    if world_size() == 1:
        return function()
    made: list[T] = []
    run_on_rank_zero(lambda: made.append(function()))
    return made[0] if is_rank_zero() else function()


def _broadcast(text: str) -> str:
    """The text of the first process."""
    sent = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    length = torch.tensor(len(sent))
    dist.broadcast(length, src=0)
    content = sent if is_rank_zero() else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(content, src=0)
    return bytes(content.tolist()).decode()


def all_reduce_any(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    if world_size() == 1:
        return flag
    found = torch.tensor(int(flag))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def first_failure(error: RunError) -> RunError:
    """Why the run fails: ``error``, unless another process has failed before.

    When one process fails the others soon fail too, because it is gone; theirs is not the cause.
    """
    if _store is None:
        return error
    own = process_rank().rank
    said = json.dumps([own, type(error).__name__, str(error)])
    try:
        rank, kind, message = json.loads(_store.compare_set(FAILURE, "", said))
    except (
        RuntimeError
    ):  # the first process, which keeps the store, is gone: what failed here is not the cause
        return error if is_rank_zero() else type(error)(*error.args)
    return error if rank == own else getattr(errors, kind, RunError)(message)


def reports_error(error: RunError) -> bool:
    """Whether this process is to say why the run fails: one does."""
    return is_rank_zero() if _store is None else first_failure(error) is error
