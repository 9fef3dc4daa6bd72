"""The tensors of a model and its optimizer by name, as checkpoints hold them, and restoring them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


def gather_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a checkpoint by kind and name, as this process holds them."""
    return {"model": unique_tensors(model), "optimizer": _moments(optimizer)}


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


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments by parameter index and name, as this process holds them."""
    return {
        f"{index}.{key}": value
        for index, parameter in _numbered(optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


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
