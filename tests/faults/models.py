"""A model with a checkpoint, small enough to be saved a thousand times."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.checkpoints.stored_state import gather_state


def make(seed: int = 0) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24))
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer


def at_step(step: int) -> tuple[nn.Module, torch.optim.AdamW]:
    """The model and its optimizer after some training; another one for every step."""
    model, optimizer = make(step)
    model(torch.ones(1, 24)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, step: int, keep: int = 2) -> None:
    """Write the checkpoint of a step, without the second try that a run makes."""
    tensors = gather_state(*at_step(step))
    checkpoint.write(folder, step, tensors, {"train_state": {"step": step}}, keep, print)


def load(folder: Path) -> int | None:
    """The step that is restored, after a look that weights and moments are exactly those of that step."""
    model, optimizer = make(seed=12345)
    said: list[str] = []
    saved = checkpoint.load_newest(folder, model, optimizer, said.append)
    if saved is None:
        return None
    step = saved["train_state"]["step"]
    expected, expected_optimizer = at_step(step)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), f"step {step}: {name}"
    found, wanted = optimizer.state_dict()["state"], expected_optimizer.state_dict()["state"]
    for index, moments in wanted.items():
        for name, tensor in moments.items():
            assert torch.equal(tensor, found[index][name]), f"step {step}: moment {name} of {index}"
    assert len(said) <= 1, "more than one line of warning"
    return step


def begun(folder: Path) -> Path:
    """Checkpoints of steps 3 and 6, as a run that keeps two has."""
    for step in (3, 6):
        save(folder, step)
    return folder
