"""Settings of ``device`` hold in every command that computes."""

import importlib

import pytest
import torch

from architectures.kernels import pointwise
from experiments.runtime.device import configure_process
from tests.experiments import commands

COMMANDS = {
    "evaluate": ("experiments.evaluate", ()),
    "generate": ("experiments.generate", ()),
    "sample_quality": ("experiments.evaluation.sample_quality.__main__", ("judge=nowhere",)),
    "downstream": ("experiments.evaluation.downstream.__main__", ("tasks=[words_choice]",)),
}
"""The module of each command that computes on a device, and the settings that it cannot do without."""


class AppliedError(Exception):
    """The command came to its device."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_the_threads_it_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def configure_process(*, threads: int | None, kernels: str) -> None:
        asked.append((threads, kernels))
        raise AppliedError

    module, more = COMMANDS[name]
    words = ("run=nowhere", "device.threads=3", "device.kernels=torch", *more)
    command = getattr(importlib.import_module(module), name)
    monkeypatch.setitem(command.__globals__, "configure_process", configure_process)
    with pytest.raises(AppliedError):
        command(commands.compose(*words, root=name))
    assert asked == [(3, "torch")]


def test_threads_and_kernels_hold_for_the_process() -> None:
    before = torch.get_num_threads()
    try:
        configure_process(threads=before + 1, kernels="torch")
        assert torch.get_num_threads() == before + 1
        assert pointwise.path(torch.zeros(2)) == "torch"
    finally:
        configure_process(threads=before, kernels="auto")
