"""The paths to the kernels of mamba-ssm, which need a GPU: here others stand in for them, which have their
arguments and layouts (mamba-ssm 2.3: selective_scan_interface.py, ssd_combined.py).

Shapes: B batch, T length, C channels, N state size; H heads, P head_dim, G groups.
"""

import re
import sys
import types

import pytest
import torch

from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.fast_paths import Scan, scan_path
from archbench.architectures.kernels import mamba_ssm as backend
from archbench.architectures.kernels.cpu import build
from archbench.architectures.kernels.mamba_ssm import (
    INSTALL,
    KERNELS,
    PACKAGES,
    convolution_unable,
)
from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution
from archbench.architectures.layers.ssm.selective_scan import selective_scan
from archbench.architectures.layers.ssm.ssd import ssd
from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM

MODELS = {
    "mamba": lambda **settings: Mamba(MambaConfig(d_model=16, **settings), vocab_size=9, max_length=20),
    "mamba2": lambda **settings: Mamba2(Mamba2Config(d_model=16, **settings), vocab_size=9, max_length=20),
}


def selective_scan_fn(u, delta, A, B, C, return_last_state=False):
    """``selective_scan_ref`` without its options."""
    assert all(x.is_contiguous() for x in (u, delta, B, C))
    h_BCN, outputs = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype), []
    for t in range(u.shape[2]):
        decay_BCN = torch.exp(torch.einsum("bc,cn->bcn", delta[..., t], A))
        added_BCN = torch.einsum("bc,bn,bc->bcn", delta[..., t], B[..., t], u[..., t])
        h_BCN = decay_BCN * h_BCN + added_BCN
        outputs.append(torch.einsum("bcn,bn->bc", h_BCN, C[..., t]))
    y_BCT = torch.stack(outputs, dim=2)
    return (y_BCT, h_BCN) if return_last_state else y_BCT


def mamba_chunk_scan_combined(
    x, dt, A, B, C, chunk_size, initial_states=None, seq_idx=None, return_final_states=False
):
    """The recurrence, forgetting its state wherever the number of the sequence changes."""
    assert seq_idx is None or (seq_idx.dtype == torch.int32 and seq_idx.shape == x.shape[:2])
    heads = x.shape[2] // B.shape[2]
    h = torch.zeros(*x[:, 0].shape, B.shape[-1], dtype=x.dtype) if initial_states is None else initial_states
    outputs, before = [], torch.zeros(x.shape[0], dtype=torch.int32)
    for t in range(x.shape[1]):
        if seq_idx is not None:
            h = torch.where((seq_idx[:, t] == before)[:, None, None, None], h, torch.zeros_like(h))
            before = seq_idx[:, t]
        B_t, C_t = (part[:, t].repeat_interleave(heads, dim=1) for part in (B, C))
        added = torch.einsum("bh,bhn,bhp->bhpn", dt[:, t], B_t, x[:, t])
        h = torch.exp(dt[:, t] * A)[..., None, None] * h + added
        outputs.append(torch.einsum("bhpn,bhn->bhp", h, C_t))
    y = torch.stack(outputs, dim=1)
    return (y, h) if return_final_states else y


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
):
    """A number of another sequence is not seen (causal-conv1d 1.7: causal_conv1d_interface.py)."""
    assert activation == "silu"
    assert x.stride(2) == 1 or (x.stride(1) == 1 and x.shape[1] % 8 == 0)
    assert 2 <= weight.shape[1] <= 4
    if seq_idx is not None:
        assert seq_idx.dtype == torch.int32
        assert seq_idx.shape == (x.shape[0], x.shape[2])
        assert x.stride(1) == 1
    y = x * weight[:, -1, None]
    for lag in range(1, min(weight.shape[1], x.shape[2])):
        earlier = torch.nn.functional.pad(x, (lag, 0))[..., : x.shape[2]]
        if seq_idx is not None:
            same = seq_idx[:, lag:] == seq_idx[:, :-lag]
            earlier = earlier * torch.nn.functional.pad(same, (lag, 0))[:, None]
        y = y + earlier * weight[:, -1 - lag, None]
    return torch.nn.functional.silu(y if bias is None else y + bias[:, None])


def resolve_path(path, operand, unsupported=""):
    return scan_path(path, Scan(operand=operand, unsupported=unsupported), ("mamba_ssm", "cpp"))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package mamba_ssm with these two functions where theirs are."""
    places = {
        "mamba_ssm.ops.selective_scan_interface": selective_scan_fn,
        "mamba_ssm.ops.triton.ssd_combined": mamba_chunk_scan_combined,
        "causal_conv1d": causal_conv1d_fn,
    }
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", *places):
        module = types.ModuleType(name)
        if name in places:
            setattr(module, places[name].__name__, places[name])
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "import_problem", lambda: "")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "import_problem", lambda: "mamba_ssm: ModuleNotFoundError")


@pytest.mark.usefixtures("kernels")
def test_the_kernel_of_mamba_is_given_what_it_takes():
    B, T, C, N = 2, 9, 3, 4
    u, delta, b, c = (torch.randn(B, T, width, dtype=torch.float64) for width in (C, C, N, N))
    A = -torch.rand(C, N, dtype=torch.float64)
    found = selective_scan(u, delta.abs(), A, b, c, path="mamba_ssm")
    expected = selective_scan(u, delta.abs(), A, b, c, path="reference")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_the_kernel_of_mamba2_is_given_what_it_takes(packed, begun):
    B, T, H, P, G, N = 2, 9, 4, 3, 2, 5
    x, b, c = (torch.randn(B, T, *shape, dtype=torch.float64) for shape in ((H, P), (G, N), (G, N)))
    delta, A = torch.rand(B, T, H, dtype=torch.float64), -torch.rand(H, dtype=torch.float64)
    initial = torch.randn(B, H, P, N, dtype=torch.float64) if begun else None
    reset_BT = torch.rand(B, T) < 0.3 if packed else None
    found = ssd(x, delta, A, b, c, initial, reset_BT=reset_BT, path="mamba_ssm")
    expected = ssd(x, delta, A, b, c, initial, reset_BT=reset_BT, path="reference")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("channels", "width", "packed"), [(8, 4, False), (8, 3, True), (5, 2, False)])
def test_the_kernel_of_the_convolution_is_given_what_it_takes(channels, width, packed, bias):
    layer = CausalConvolution(channels, width, bias=bias).double()
    layer.initialise()
    x_BTC = torch.randn(2, 9, 2 * channels, dtype=torch.float64)[..., channels:]
    positions_BT = (
        torch.tensor([[0, 1, 2, 3, 0, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5, 0]]) if packed else None
    )
    assert not convolution_unable(channels, width, packed=packed)
    found = layer.activated(x_BTC, positions_BT=positions_BT, path="mamba_ssm")
    expected = layer.activated(x_BTC, positions_BT=positions_BT, path="torch")
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    window = layer.start(2)
    continued = layer.activated(x_BTC, window, path="mamba_ssm")
    torch.testing.assert_close(continued, layer.activated(x_BTC, path="torch"), atol=1e-12, rtol=0)


def test_what_the_kernel_of_the_convolution_cannot_do_is_named():
    assert convolution_unable(8, 5) == "conv_width=5 (only 2 to 4)"
    assert convolution_unable(8, 1) == "conv_width=1 (only 2 to 4)"
    assert convolution_unable(6, 4) == ""
    assert "packed documents with 6 channels" in convolution_unable(6, 4, packed=True)


class OnCuda:
    """What the choice looks at."""

    is_cuda = True
    device = torch.device("cuda")

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype


@pytest.mark.usefixtures("present")
def test_mamba_ssm_is_taken_where_it_can_be():
    assert resolve_path("auto", OnCuda()) == "mamba_ssm"
    assert resolve_path("mamba_ssm", OnCuda()) == "mamba_ssm"
    assert resolve_path("torch", OnCuda()) == "torch"
    for operand, unable in ((OnCuda(torch.float64), ""), (torch.ones(1), ""), (OnCuda(), "packed documents")):
        assert resolve_path("auto", operand, unable) != "mamba_ssm"
        with pytest.raises(ValueError, match=r"scan=mamba_ssm cannot do .*: set scan=auto"):
            resolve_path("mamba_ssm", operand, unable)


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("name", MODELS)
def test_kernels_asked_for_and_absent_are_an_error_with_the_remedy(name):
    assert resolve_path("auto", OnCuda()) == "torch"
    with pytest.raises(ValueError, match=f"cannot be imported .*: {re.escape(INSTALL)}, or set scan=auto"):
        MODELS[name](scan="mamba_ssm")


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Installed packages with functions of the right names, which nothing has imported yet."""
    for module, (name, parameters) in KERNELS.items():
        path = tmp_path.joinpath(*module.split("."))
        path.mkdir(parents=True)
        (path / "__init__.py").write_text(f"def {name}({parameters.replace(' ', ', ')}): pass\n")
        for part in range(len(module.split("."))):
            monkeypatch.delitem(sys.modules, ".".join(module.split(".")[: part + 1]), raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    backend.import_problem.cache_clear()
    yield tmp_path
    backend.import_problem.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def test_packages_that_can_be_imported_make_the_mamba_ssm_path(stand_ins):
    assert backend.installed()


def test_a_version_that_lacks_a_parameter_cannot_be_called(stand_ins):
    (stand_ins / "causal_conv1d" / "__init__.py").write_text("def causal_conv1d_fn(x, weight, bias): pass\n")
    assert backend.import_problem() == "causal_conv1d.causal_conv1d_fn has no parameter seq_idx, activation"


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("from transformers.generation import GreedySearchDecoderOnlyOutput", "ImportError: cannot import"),
        ("raise OSError('libcudart.so.12: cannot open shared object file')", r"OSError: libcudart\.so\.12"),
        ("", "AttributeError: module"),
    ],
)
def test_an_installed_package_that_cannot_be_called_is_none(stand_ins, package, code, reason):
    for module in KERNELS:
        if module.startswith(package):
            stand_ins.joinpath(*module.split("."), "__init__.py").write_text(code)
    assert not backend.installed()
    operand = torch.zeros(1)
    assert resolve_path("auto", operand) in ("cpp", "torch")
    with pytest.raises(ValueError, match=f"cannot be imported .{package}.*{reason}.*set scan=auto"):
        resolve_path("mamba_ssm", operand)


def test_a_state_that_the_kernel_of_mamba_has_no_room_for_is_left_to_others(present):
    for d_state, able in ((256, True), (257, False)):
        layer = SelectiveSSM(16, SelectiveConfig(d_state=d_state, scan="mamba_ssm"))
        on_gpu = types.SimpleNamespace(dtype=torch.float32, is_cuda=True, device=torch.device("cuda"))
        if able:
            assert layer.path(on_gpu, packed=False, continued=False) == "mamba_ssm"
        else:
            with pytest.raises(ValueError, match=r"d_state=257 \(at most 256\)"):
                layer.path(on_gpu, packed=False, continued=False)


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("name", MODELS)
def test_kernels_asked_for_do_not_run_on_a_cpu(name):
    model, tokens = MODELS[name](scan="mamba_ssm"), torch.zeros(1, 4, dtype=torch.int64)
    for run in (model.kernels, lambda: model(tokens)):
        with pytest.raises(ValueError, match=r"cannot do torch.float32 on cpu"):
            run()


@pytest.mark.parametrize("name", MODELS)
def test_auto_is_cpp_where_that_can_be_built(name, monkeypatch):
    monkeypatch.setattr(build, "problem", lambda: "")
    assert MODELS[name](scan="auto").kernels()["scan"] == "cpp"
    assert MODELS[name](scan="auto").bfloat16().kernels()["scan"] == "cpp"  # the scan is in float32
    assert MODELS[name](scan="auto").double().kernels()["scan"] == "torch"
    assert MODELS[name](scan="auto").to("meta").kernels()["scan"] == "torch"
    monkeypatch.setattr(build, "problem", lambda: "no C++ compiler")
    assert MODELS[name](scan="auto").kernels()["scan"] == "torch"


@pytest.mark.parametrize("name", MODELS)
def test_cpp_asked_for_and_not_there_is_an_error_with_the_remedy(name, monkeypatch):
    monkeypatch.setattr(build, "problem", lambda: "no C++ compiler")
    with pytest.raises(ValueError, match=r"cannot be built here \(no C\+\+ compiler\): install a C\+\+ comp"):
        MODELS[name](scan="cpp")
    monkeypatch.setattr(build, "problem", lambda: "")
    model = MODELS[name](scan="cpp").double()
    with pytest.raises(ValueError, match=r"scan=cpp cannot do torch.float64 on cpu .*: set scan=auto"):
        model(torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.parametrize("name", MODELS)
def test_unknown_paths_are_named(name):
    valid = r"scan='fast' must be one of auto, mamba_ssm, cpp, (fla, )?torch, reference"
    with pytest.raises(ValueError, match=valid):
        MODELS[name](scan="fast")
