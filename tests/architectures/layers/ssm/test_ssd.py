"""Shapes: B batch, T length, H heads, P head_dim, G groups, N state size."""

import pytest
import torch

from archbench.architectures.layers.ssm.selective_scan import selective_scan
from archbench.architectures.layers.ssm.ssd import ssd, ssd_flops
from tests.architectures.authors import authors
from tests.architectures.costs import arithmetic_of_one_sequence

SHAPES = [(1, 1, 1, 1, 1, 1), (2, 3, 2, 3, 1, 2), (2, 17, 4, 3, 2, 5), (1, 40, 6, 2, 3, 4)]
CHUNKS = [1, 4, 7, 64]


def operands(
    B: int, T: int, H: int, P: int, G: int, N: int, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    """x, delta, A, B, C and the first state, all asking for gradients."""
    generator = torch.Generator().manual_seed(T)
    shapes = [(B, T, H, P), (B, T, H), (H,), (B, T, G, N), (B, T, G, N), (B, H, P, N)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    drawn[1] = drawn[1].abs()
    drawn[2] = -drawn[2].exp()
    return [tensor.to(dtype).requires_grad_() for tensor in drawn]


def resets(B: int, T: int) -> torch.Tensor:
    return torch.rand(B, T, generator=torch.Generator().manual_seed(T)) < 0.2


def results(tensors: list[torch.Tensor], **settings: object) -> list[torch.Tensor]:
    """Outputs, last state, and the gradient of both with respect to every operand."""
    y, last = ssd(*tensors, **settings)
    loss = (y * y.detach().cos()).sum() + last.square().sum()
    return [y, last, *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_by_hand(path):
    """One head, one channel, one state, two steps: h = exp(delta A) h + delta x B, y = h C."""
    x, delta, B, C = (torch.tensor(v) for v in ([2.0, 3.0], [0.5, 1.0], [1.0, -1.0], [10.0, 1.0]))
    y, last = ssd(
        x.view(1, 2, 1, 1),
        delta.view(1, 2, 1),
        torch.tensor([-1.0]),
        B.view(1, 2, 1, 1),
        C.view(1, 2, 1, 1),
        path=path,
    )
    second = torch.tensor(-1.0).exp().item() - 3.0
    assert y.flatten().tolist() == pytest.approx([10.0, second])
    assert last.item() == pytest.approx(second)


def test_it_is_the_selective_scan_with_one_decay_for_each_head():
    x, delta, A, B, C, initial = operands(2, 13, 3, 4, 1, 5)
    y, last = ssd(x, delta, A, B, C, initial, chunk=4)
    expected, end = selective_scan(
        x.flatten(2),
        delta.repeat_interleave(4, dim=2),
        A.repeat_interleave(4)[:, None].expand(-1, 5),
        B[:, :, 0],
        C[:, :, 0],
        initial.flatten(1, 2),
        path="reference",
    )
    torch.testing.assert_close(y.flatten(2), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(last.flatten(1, 2), end, atol=1e-12, rtol=0)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_are_the_recurrence(shape, packed, negative, chunk):
    tensors = operands(*shape)
    settings = {"negative": negative, "reset_BT": resets(*shape[:2]) if packed else None}
    found = results(tensors, chunk=chunk, **settings)
    expected = results(tensors, path="reference", **settings)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("negative", [False, True])
def test_gradients_are_numerically_right(negative):
    reset_BT = torch.tensor([[False, True, False, False, True], [True, False, False, True, False]])

    def run(*tensors):
        return ssd(*tensors, reset_BT=reset_BT, negative=negative, chunk=3)

    assert torch.autograd.gradcheck(run, operands(2, 5, 2, 2, 1, 2))


@pytest.mark.parametrize("path", ["reference", "torch"])
@pytest.mark.parametrize("cut", [1, 7, 16])
def test_pieces_make_the_whole(path, cut):
    x, delta, A, B, C, initial = operands(2, 17, 4, 3, 2, 5)
    whole, last = ssd(x, delta, A, B, C, initial, chunk=4, path=path)
    first, middle = ssd(x[:, :cut], delta[:, :cut], A, B[:, :cut], C[:, :cut], initial, chunk=4, path=path)
    second, end = ssd(x[:, cut:], delta[:, cut:], A, B[:, cut:], C[:, cut:], middle, chunk=4, path=path)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(end, last, atol=1e-12, rtol=0)


@pytest.mark.parametrize("chunk", [3, 64])
def test_documents_are_those_alone(chunk):
    x, delta, A, B, C, _ = operands(2, 17, 4, 3, 2, 5)
    sizes = [5, 1, 7, 4]
    starts = torch.tensor([0, 5, 6, 13])
    reset_BT = torch.zeros(2, 17, dtype=torch.bool)
    reset_BT[:, starts] = True
    packed, last = ssd(x, delta, A, B, C, reset_BT=reset_BT, chunk=chunk)
    pieces = zip(*(operand.split(sizes, dim=1) for operand in (x, delta, B, C)), strict=True)
    apart = [ssd(x_, delta_, A, B_, C_) for x_, delta_, B_, C_ in pieces]
    torch.testing.assert_close(packed, torch.cat([y for y, _ in apart], dim=1), atol=1e-12, rtol=0)
    torch.testing.assert_close(last, apart[-1][1], atol=1e-12, rtol=0)


def test_large_steps_lose_nothing_in_float32():
    """Sums of thousands of exponents, whose small differences decide."""
    tensors = operands(1, 200, 2, 3, 1, 4, dtype=torch.float32)
    with torch.no_grad():
        tensors[1].mul_(3.0)
        tensors[2].copy_(torch.tensor([-16.0, -0.01]))
    weight = torch.randn(1, 200, 2, 3)
    gradients = []
    for path, dtype in (("torch", torch.float32), ("reference", torch.float64)):
        own = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        y, last = ssd(*own, path=path)
        loss = (y * weight).sum() + last.sum()
        gradients.append([y, last, *torch.autograd.grad(loss, own)])
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() < 1e-6 * other.abs().max()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (5, 2, 3, 1, 4), (12, 4, 8, 2, 16)])
def test_flops_are_the_arithmetic_that_runs(shape):
    T, H, P, G, N = shape
    measured = arithmetic_of_one_sequence(
        lambda batch: ssd(*operands(batch, T, H, P, G, N), path="reference")
    )
    assert ssd_flops(T, H, P, N) == measured


def test_it_is_the_minimal_code_of_the_authors(monkeypatch):
    minimal = authors("modules/ssd_minimal.py", monkeypatch)
    x, delta, A, B, C, initial = (tensor.detach() for tensor in operands(2, 16, 4, 3, 1, 5))
    B_BTHN, C_BTHN = (part.expand(-1, -1, 4, -1) for part in (B, C))
    expected, end = minimal.ssd_minimal_discrete(
        x * delta[..., None], delta * A, B_BTHN, C_BTHN, 8, initial_states=initial[:, None]
    )
    y, last = ssd(x, delta, A, B, C, initial, chunk=4)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(last, end, atol=1e-12, rtol=0)
