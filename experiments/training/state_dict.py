"""The tensors of a model and its optimizer by name, as checkpoints hold them, and restoring them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from experiments.training.parallel.dtensors import distribute_like, full_tensor
from experiments.training.parallel.gathered_file import GatheredFile


def gather_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a checkpoint by file and name, whole on rank 0. All processes must call it."""
    moments = {name: full_tensor(value) for name, value in _moments(optimizer).items()}
    return {"model.safetensors": model_tensors(model), "optimizer.safetensors": moments}


def divided_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, GatheredFile]:
    """Return the files of a checkpoint, their tensors as this process holds them."""
    return {
        "model.safetensors": GatheredFile(unique_tensors(model)),
        "optimizer.safetensors": GatheredFile(_moments(optimizer)),
    }


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, each storage once: a tied head is its embedding."""
    return {name: full_tensor(tensor) for name, tensor in unique_tensors(model).items()}


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the entries of the state dict as this process holds them, tied ones once."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """Load parameters and buffers. Return the names that were missing and those the model does not have."""
    own = model.state_dict()
    cut = {
        name: distribute_like(tensor, own[name]) if name in own else tensor
        for name, tensor in tensors.items()
    }
    missing, unexpected = model.load_state_dict(cut, strict=False)
    tied = set(own) - set(unique_tensors(model))
    return sorted(set(missing) - tied), unexpected


def _numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, Tensor]]:
    """Yield every parameter with the number by which its moments are saved."""
    first = 0
    for group in optimizer.param_groups:
        numbers = group.get("numbers", range(first, first + len(group["params"])))
        yield from zip(numbers, group["params"], strict=True)
        first += len(group["params"])


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments by parameter number and name, as this process holds them."""
    return {
        f"{number}.{key}": value
        for number, parameter in _numbered(optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load moments by parameter number; learning rates and decays come from the configuration."""
    positions = {number: (position, p) for position, (number, p) in enumerate(_numbered(optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        position, parameter = positions[int(number)]
        state.setdefault(position, {})[key] = distribute_like(tensor, parameter)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
