"""Settings of ``device`` hold in every command that computes."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from archbench.architectures import fast_paths
from archbench.architectures.kernels import fla, mamba_ssm
from archbench.experiments.run import session
from archbench.experiments.runtime.device import configure_process
from archbench.experiments.runtime.errors import ConfigError, to_run_error
from tests.experiments import commands

COMMANDS = {
    "evaluate": ("archbench.experiments.evaluate", ()),
    "generate": ("archbench.experiments.generate", ()),
    "sample_quality": ("archbench.experiments.evaluation.sample_quality.__main__", ("judge=nowhere",)),
    "downstream": ("archbench.experiments.evaluation.downstream.__main__", ("tasks=[words_choice]",)),
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
        assert fast_paths.path(torch.zeros(2)) == "torch"
    finally:
        configure_process(threads=before, kernels="auto")


@pytest.fixture
def numerics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's numerics before the test, restored after it."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("numerics")
def test_float32_on_a_gpu_is_never_tf32() -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    configure_process(threads=None, kernels="torch")
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.usefixtures("numerics")
def test_deterministic_mode_holds_until_a_run_without_it() -> None:
    configure_process(threads=None, kernels="torch", deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    configure_process(threads=None, kernels="torch")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("numerics")
def test_an_operation_without_deterministic_algorithm_is_named() -> None:
    configure_process(threads=None, kernels="torch", deterministic=True)
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
    error = to_run_error(caught.value)
    assert isinstance(error, ConfigError)
    assert "no deterministic put_" in str(error)


@pytest.mark.usefixtures("numerics")
@pytest.mark.parametrize("package", [mamba_ssm, fla])
def test_auto_takes_no_scan_of_a_package_in_deterministic_mode(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "import_problem", lambda: "")
    name = package.__name__.rpartition(".")[2]
    on_cuda = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, requires_grad=False)
    scan = fast_paths.Scan(operand=on_cuda)
    assert fast_paths.scan_path("auto", scan, (name,)) == name
    torch.use_deterministic_algorithms(True)
    assert fast_paths.scan_path("auto", scan, (name,)) == "torch"


def test_a_run_takes_deterministic_mode_from_its_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def configure_process(*, threads: int | None, kernels: str, deterministic: bool) -> None:
        asked.append(deterministic)
        raise AppliedError

    monkeypatch.setattr(session, "configure_process", configure_process)
    with pytest.raises(AppliedError):
        commands.train(
            "backbone=decoder",
            *commands.TINY,
            *commands.SHORT_TEXT,
            "device.deterministic=true",
            f"runs={tmp_path}",
        )
    assert asked == [True]
