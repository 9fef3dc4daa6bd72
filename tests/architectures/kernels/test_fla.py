"""Which scans run by flash-linear-attention; its kernels are tested in tests/kernels."""

from __future__ import annotations

import pytest
import torch

from architectures.kernels import fla
from architectures.kernels.fla import resolve_path
from architectures.mixers.mamba2 import SSDConfig, make
from tests.architectures.kernels.test_backend import OnCuda


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "import_problem", lambda: "")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "import_problem", lambda: "fla.ops.gla.chunk_gla: ModuleNotFoundError")


@pytest.mark.usefixtures("present")
def test_fla_runs_where_it_is_installed_and_supports_the_call() -> None:
    assert resolve_path("auto", OnCuda()) == "fla"
    assert resolve_path("fla", OnCuda()) == "fla"
    assert resolve_path("torch", OnCuda()) == "torch"
    for operand, unsupported in (
        (OnCuda(torch.float64), ""),
        (torch.ones(1), ""),
        (OnCuda(), "packed documents"),
    ):
        assert resolve_path("auto", operand, unsupported) == "torch"
        with pytest.raises(ValueError, match=r"scan=fla cannot do .*: set scan=auto or scan=torch"):
            resolve_path("fla", operand, unsupported)


@pytest.mark.usefixtures("absent")
def test_without_the_package_auto_is_torch_and_fla_an_error_with_the_remedy() -> None:
    assert resolve_path("auto", OnCuda()) == "torch"
    with pytest.raises(ValueError, match=r"cannot be imported .*: pip install 'fla-core>=0.6'"):
        make(32, SSDConfig(scan="fla"))


@pytest.mark.usefixtures("present")
def test_mamba2_prefers_the_kernels_of_its_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = make(32, SSDConfig())
    monkeypatch.setattr("architectures.kernels.backend.import_problem", lambda: "absent")
    assert mixer.path(OnCuda()) == "fla"
    assert mixer.path(OnCuda(), packed=True) == "torch"
    assert mixer.path(torch.ones(1)) != "fla"
    monkeypatch.setattr("architectures.kernels.backend.import_problem", lambda: "")
    assert mixer.path(OnCuda()) == "mamba_ssm"
