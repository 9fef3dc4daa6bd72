"""The tensors of a checkpoint on disk, full or in shards, and restoring model and optimizer from them.

A single process writes ``model.safetensors`` and ``optimizer.safetensors``. Multiple processes write the
folders ``model`` and ``optimizer``, with separate files for each process. Names of tensors are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from archbench.experiments.runtime.errors import CheckpointError, is_out_of_memory
from archbench.experiments.training.parallel.collectives import world_size


def gather_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a checkpoint in this process: of the model by name, moments by index and name."""
    moments = {
        f"{index}.{key}": value
        for index, parameter in _numbered(optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return {"model": unique_tensors(model), "optimizer": moments}


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the entries of the state dict, each storage once: a tied head is its embedding."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def _numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, Tensor]]:
    """Yield every parameter with the index by which its moments are saved."""
    start = 0
    for group in optimizer.param_groups:
        indices = group.get("numbers", range(start, start + len(group["params"])))
        yield from zip(indices, group["params"], strict=True)
        start += len(group["params"])


def empty_moments(optimizer: torch.optim.Optimizer, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in which stored moments can be read: each is divided as its parameter is.

    Args:
        stored: of the same names and shapes; what they hold is not looked at.
    """
    parameters = dict(_numbered(optimizer))
    moments = {}
    for name, tensor in stored.items():
        parameter = parameters[int(name.partition(".")[0])].detach()
        alike = parameter.shape == tensor.shape
        moments[name] = torch.empty_like(parameter) if alike else torch.empty_like(tensor, device="cpu")
    return moments


def load_moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load moments by parameter index; learning rates and decays come from the configuration."""
    positions = {index: position for position, (index, _) in enumerate(_numbered(optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(positions[int(index)], {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def in_shards(path: Path) -> bool:
    """Return True for a checkpoint that multiple processes wrote."""
    return (path / "model").is_dir()


def weight_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint that hold the weights."""
    return sorted((path / "model").glob("*.safetensors")) if in_shards(path) else [path / "model.safetensors"]


def stored_tensors(path: Path, kind: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, without their content: on the meta device.

    Args:
        kind: ``model`` or ``optimizer``.

    Raises:
        CheckpointError: a file cannot be read.
    """
    from archbench.experiments.training.parallel.sharded_files import stored

    with _readable(path):
        if in_shards(path):
            return stored(path / kind) if (path / kind).is_dir() else {}
        tensors = stored(path)
        with safe_open(path / f"{kind}.safetensors", framework="pt") as file:
            return {name: tensors[name] for name in file.keys()}  # noqa: SIM118


def read_tensors(path: Path, kind: str, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, sharded or full, from a checkpoint; reads only their parts.

    Raises CheckpointError.
    """
    from archbench.experiments.training.parallel.sharded_files import read_into

    with _readable(path):
        read_into(path / kind if in_shards(path) else path, tensors)


def whole_tensors(path: Path, kind: str) -> dict[str, Tensor]:
    """Return the full tensors of a checkpoint in CPU memory. Raises CheckpointError."""
    if not in_shards(path):
        with _readable(path):
            return load_file(path / f"{kind}.safetensors")
    tensors = {name: torch.empty_like(t, device="cpu") for name, t in stored_tensors(path, kind).items()}
    read_tensors(path, kind, tensors)
    return tensors


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the tensors of a checkpoint into a model and its optimizer, in each process its parts.

    Raises CheckpointError.
    """
    if world_size() == 1 and not in_shards(path):
        with _readable(path):
            weights = load_file(path / "model.safetensors")
            _check_names(path, model, weights)
            model.load_state_dict(weights, strict=False)
            load_moments(optimizer, load_file(path / "optimizer.safetensors"))
        return
    names = stored_tensors(path, "model")
    _check_names(path, model, names)
    parameters = model.state_dict()
    read_tensors(path, "model", {name: parameters[name] for name in names})
    moments = empty_moments(optimizer, stored_tensors(path, "optimizer"))
    read_tensors(path, "optimizer", moments)
    load_moments(optimizer, moments)


def _check_names(path: Path, model: nn.Module, stored: Collection[str]) -> None:
    absent = sorted(unique_tensors(model).keys() - set(stored))
    extra = sorted(set(stored) - model.state_dict().keys())
    if absent or extra:
        raise CheckpointError(f"{path}: tensors do not fit the model; missing {absent}, extra {extra}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what reading a file and fitting its tensors raises into CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{path}: {error}") from error
