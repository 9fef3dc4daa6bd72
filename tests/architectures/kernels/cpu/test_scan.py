"""The scans in C++ against the plain recurrences in float64, which say what is meant.

Shapes: B batch, T length, C channels, N state size; H heads, P head_dim, G groups of heads.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from archbench.architectures.kernels.cpu import build
from archbench.architectures.kernels.cpu.mamba_ops import cpp_selective_scan
from archbench.architectures.layers.ssm.selective_scan import selective_scan
from archbench.architectures.layers.ssm.ssd import ssd

pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())

SCANS = [(1, 1, 1, 1), (2, 5, 3, 1), (3, 70, 37, 5), (2, 64, 16, 4), (1, 131, 300, 16)]
SSDS = [
    (1, 2, 1, 1, 1, 1),
    (2, 5, 4, 3, 2, 5),
    (3, 70, 4, 37, 1, 9),
    (2, 64, 2, 16, 1, 4),
    (1, 131, 6, 300, 3, 8),
]
Scan = Callable[..., tuple[Tensor, Tensor]]


def scan_operands(B: int, T: int, C: int, N: int) -> list[Tensor]:
    """u, delta, A, B, C, first state."""
    g = torch.Generator().manual_seed(T)
    u, b, c, h = (torch.randn(s, generator=g) for s in ((B, T, C), (B, T, N), (B, T, N), (B, C, N)))
    return [u, torch.rand(B, T, C, generator=g), -4 * torch.rand(C, N, generator=g), b, c, h]


def ssd_operands(B: int, T: int, H: int, P: int, G: int, N: int) -> list[Tensor]:
    """x, delta, A, B, C, first state."""
    g = torch.Generator().manual_seed(T)
    shapes = ((B, T, H, P), (B, T, G, N), (B, T, G, N), (B, H, P, N))
    x, b, c, h = (torch.randn(s, generator=g) for s in shapes)
    return [x, torch.rand(B, T, H, generator=g), -4 * torch.rand(H, generator=g), b, c, h]


def results(scan: Scan, operands: list[Tensor], dtype: torch.dtype, **settings: object) -> list[Tensor]:
    """Outputs, last state, and all gradients, for the same weights of outputs and state every time."""
    operands = [x.to(dtype).requires_grad_() for x in operands]
    found = scan(*operands, **settings)
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=g).to(dtype) for x in found]
    return [*(x.detach() for x in found), *torch.autograd.grad(found, operands, weights)]


def check_against_float64(scan: Scan, operands: list[Tensor], **settings: object) -> None:
    """Each within 1e-6 of its largest number, or as near as the plain loop in float32 comes, twice over."""
    ours, plain, exact = (
        results(scan, operands, dtype, path=path, **settings)
        for path, dtype in (
            ("cpp", torch.float32),
            ("reference", torch.float32),
            ("reference", torch.float64),
        )
    )
    for found, other, expected in zip(ours, plain, exact, strict=True):
        size = expected.abs().max()
        rounding = 2 * (other - expected).abs().max() / size
        assert (found - expected).abs().max() / size < max(1e-6, rounding)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", SCANS)
def test_the_selective_scan_is_the_reference(shape, packed, negative):
    reset_BT = torch.rand(shape[:2], generator=torch.Generator().manual_seed(0)) < 0.2 if packed else None
    check_against_float64(selective_scan, scan_operands(*shape), reset_BT=reset_BT, negative=negative)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", SSDS)
def test_the_ssd_is_the_reference(shape, packed, negative):
    reset_BT = torch.rand(shape[:2], generator=torch.Generator().manual_seed(0)) < 0.2 if packed else None
    check_against_float64(ssd, ssd_operands(*shape), reset_BT=reset_BT, negative=negative)


def test_slices_of_wider_tensors_are_read_in_place():
    x, delta, A, b, c, h = ssd_operands(2, 9, 4, 3, 2, 5)
    wide = torch.cat([x.flatten(2), b.flatten(2), c.flatten(2)], dim=-1)
    parts = wide.split([12, 10, 10], dim=-1)
    x_slice, b_slice, c_slice = (
        part.unflatten(-1, (n, -1)) for part, n in zip(parts, (4, 2, 2), strict=True)
    )
    found = ssd(x_slice, delta, A, b_slice, c_slice, h, path="cpp")
    for one, other in zip(found, ssd(x, delta, A, b, c, h, path="cpp"), strict=True):
        assert torch.equal(one, other)


def test_what_is_transposed_or_expanded_is_not_mistaken():
    u, delta, A, b, c, h = scan_operands(2, 7, 20, 3)
    odd = [u.mT.contiguous().mT, delta, A[:1].expand_as(A), b, b[:, :1].expand_as(b), h.mT.contiguous().mT]
    check_against_float64(selective_scan, odd)
    x, delta, A, b, c, h = ssd_operands(2, 7, 4, 3, 2, 5)
    odd = [x.transpose(1, 2).contiguous().transpose(1, 2), delta, A, b, c[:, :1].expand_as(c), h]
    check_against_float64(ssd, odd)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("scan", "operands"),
    [(selective_scan, scan_operands(3, 67, 150, 5)), (ssd, ssd_operands(3, 67, 6, 150, 2, 6))],
)
def test_the_number_of_threads_changes_no_bit(scan, operands, threads):
    found = []
    for count in (1, 2, 3, 2):
        threads(count)
        found.append(results(scan, operands, torch.float32, path="cpp"))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("scan", "operands"),
    [(selective_scan, scan_operands(3, 67, 20, 5)), (ssd, ssd_operands(3, 67, 6, 20, 2, 6))],
)
def test_a_sequence_is_not_touched_by_its_neighbours(scan, operands):
    whole = scan(*operands, path="cpp")
    shared = 2  # A belongs to no sequence
    one = [x if i == shared else x[1:2] for i, x in enumerate(operands)]
    for part, found in zip(whole, scan(*one, path="cpp"), strict=True):
        assert torch.equal(part[1:2], found)


def test_states_are_kept_only_for_training(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "archbench.architectures.kernels.cpu.mamba_ops.call",
        lambda name, *rest: asked.append(name) or build.call(name, *rest),
    )
    operands = [x.requires_grad_() for x in scan_operands(1, 4, 3, 2)]
    with torch.no_grad():
        cpp_selective_scan(*operands, None, False)  # type: ignore[call-arg]
    assert asked == ["scan_forward"]
    cpp_selective_scan(*operands, None, False)  # type: ignore[call-arg]
    assert "scan_starts" in asked
