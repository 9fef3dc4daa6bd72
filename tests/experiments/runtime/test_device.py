"""What ``device`` says holds in every command that computes."""

import importlib

import pytest
import torch

from architectures.kernels import pointwise
from experiments.config.schema import DeviceConfig
from tests.experiments import commands

WORDS = {
    "evaluate": (),
    "generate": (),
    "sample_quality": ("judge=nowhere",),
    "downstream": ("tasks=[words_choice]",),
}


class AppliedError(Exception):
    """The command came to its device."""


@pytest.mark.parametrize("name", WORDS)
def test_a_command_takes_the_threads_it_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def apply(device: DeviceConfig) -> None:
        asked.append((device.threads, device.kernels))
        raise AppliedError

    monkeypatch.setattr(DeviceConfig, "apply", apply)
    words = ("run=nowhere", "device.threads=3", "device.kernels=portable", *WORDS[name])
    command = getattr(importlib.import_module(f"experiments.{name}"), name)
    with pytest.raises(AppliedError):
        command(commands.compose(*words, root=name))
    assert asked == [(3, "portable")]


def test_threads_and_kernels_hold_for_the_process() -> None:
    before = torch.get_num_threads()
    try:
        DeviceConfig(threads=before + 1, kernels="portable").apply()
        assert torch.get_num_threads() == before + 1
        assert pointwise.path(torch.zeros(2)) == "portable"
    finally:
        DeviceConfig(threads=before).apply()
