"""Which scans run by flash-linear-attention; its kernels are tested in tests/kernels."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from archbench.architectures.fast_paths import Scan, scan_path
from archbench.architectures.kernels import fla
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer
from archbench.architectures.mixers import (
    deltanet,
    deltaproduct,
    gated_deltanet,
    gla,
    kda,
    mamba2,
    mamba3,
    mlstm,
    rwkv7,
)
from tests.architectures.kernels.test_backend import OnCuda


def maker(module: Any) -> Callable[..., RecurrentMixer]:
    return lambda d_model, **settings: module.make(d_model, module.Config(**settings))


MODULES = (mamba2, gla, deltanet, gated_deltanet, deltaproduct, kda, rwkv7)
MIXERS = {module.__name__.rpartition(".")[2]: maker(module) for module in MODULES}


def resolve_path(path: str, operand: Any, unsupported: str = "") -> str:
    return scan_path(path, Scan(operand=operand, unsupported=unsupported), ("fla",))


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
@pytest.mark.parametrize("name", MIXERS)
def test_without_the_package_auto_is_torch_and_fla_an_error_with_the_remedy(name: str) -> None:
    assert resolve_path("auto", OnCuda()) == "torch"
    with pytest.raises(ValueError, match=r"cannot be used .*: pip install 'fla-core>=0.6'"):
        MIXERS[name](32, scan="fla")


@pytest.mark.usefixtures("present")
def test_mamba2_prefers_the_kernels_of_its_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = MIXERS["mamba2"](64)
    monkeypatch.setattr("archbench.architectures.kernels.mamba_ssm.import_problem", lambda: "absent")
    assert mixer.path(OnCuda()) == "fla"
    assert mixer.path(torch.ones(1)) != "fla"
    monkeypatch.setattr("archbench.architectures.kernels.mamba_ssm.import_problem", lambda: "")
    assert mixer.path(OnCuda()) == "mamba_ssm"


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("name", MIXERS)
def test_every_linear_mixer_selects_it_on_a_gpu_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archbench.architectures.kernels.mamba_ssm.import_problem", lambda: "absent")
    mixer = MIXERS[name](64)
    assert mixer.path(OnCuda()) == "fla"
    assert mixer.scan_path() != "fla"
    with pytest.raises(ValueError, match=r"scan=fla cannot do torch.float32 on cpu .*: set scan=auto"):
        MIXERS[name](64, scan="fla").scan_path()


@pytest.mark.usefixtures("present")
def test_heads_of_other_widths_run_in_pytorch() -> None:
    narrow = MIXERS["gla"](64, num_heads=4)
    assert narrow.path(OnCuda()) == "torch"
    with pytest.raises(ValueError, match=r"scan=fla cannot do heads with keys of width 8 "):
        MIXERS["gla"](64, num_heads=4, scan="fla").path(OnCuda())
    assert MIXERS["gla"](1024, num_heads=1, expand_k=0.5).path(OnCuda()) == "torch"


@pytest.mark.parametrize("module", [mamba3, mlstm])
def test_mixers_without_its_kernels_refuse_it(module: Any) -> None:
    with pytest.raises(ValueError, match=r"scan='fla' must be one of auto, (cpp, )?torch, reference"):
        module.Config(scan="fla")


def test_a_triton_with_wrong_gradients_on_this_gpu_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "call_problem", lambda kernels: "")
    for fixed, problem in ((True, ""), (False, "wrong gradients on Hopper GPUs")):
        utils = types.SimpleNamespace(
            IS_NVIDIA_HOPPER=True, TRITON_ABOVE_3_4_0=True, TRITON_ABOVE_3_7_1=fixed
        )
        monkeypatch.setitem(sys.modules, "fla.utils", utils)
        assert problem in fla.import_problem.__wrapped__()
        assert bool(fla.import_problem.__wrapped__()) == bool(problem)
