"""What a checkpoint holds of a model and its optimizer: whole tensors by name, and how they are put back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from experiments.training.parallel.dtensors import distribute_like, full_tensor


def gather_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """What a checkpoint holds, by file and name. All processes must call it; the first has what it gives."""
    return {"model.safetensors": model_tensors(model), "optimizer.safetensors": _moments(optimizer)}


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each storage once: a tied head is its embedding."""
    return {name: full_tensor(tensor) for name, tensor in unique_tensors(model).items()}


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The entries of the state as this process holds them, without those that are another's too."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """Sets parameters and buffers. Gives the names that were missing, and those the model does not have."""
    own = model.state_dict()
    cut = {
        name: distribute_like(tensor, own[name]) if name in own else tensor
        for name, tensor in tensors.items()
    }
    missing, unexpected = model.load_state_dict(cut, strict=False)
    tied = set(own) - set(unique_tensors(model))
    return sorted(set(missing) - tied), unexpected


def _numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, Tensor]]:
    """Every parameter, with the number by which its moments are saved."""
    first = 0
    for group in optimizer.param_groups:
        numbers = group.get("numbers", range(first, first + len(group["params"])))
        yield from zip(numbers, group["params"], strict=True)
        first += len(group["params"])


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{number}.{key}": full_tensor(value)
        for number, parameter in _numbered(optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Moments by parameter number; rates and decays come from the configuration."""
    places = {number: (place, p) for place, (number, p) in enumerate(_numbered(optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        place, parameter = places[int(number)]
        state.setdefault(place, {})[key] = distribute_like(tensor, parameter)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
