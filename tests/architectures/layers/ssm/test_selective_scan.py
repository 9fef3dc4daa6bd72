"""Shapes: T length, B batch, C channels, N state size of a channel."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from archbench.architectures.layers.ssm import selective_scan as scan
from archbench.architectures.layers.ssm.selective_scan import selective_scan, selective_scan_flops
from tests.architectures.authors import authors
from tests.architectures.costs import arithmetic_of_one_sequence


def operands(B: int, T: int, C: int, N: int) -> list[torch.Tensor]:
    """u, delta, A, B, C and the first state, in float64, all asking for gradients."""
    generator = torch.Generator().manual_seed(T)
    shapes = [(B, T, C), (B, T, C), (C, N), (B, T, N), (B, T, N), (B, C, N)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    drawn[1] = drawn[1].abs()
    drawn[2] = -drawn[2].exp()
    return [tensor.requires_grad_() for tensor in drawn]


SHAPES = [(1, 1, 1, 1), (2, 2, 3, 1), (3, 17, 5, 4), (1, 40, 2, 7)]


def test_scan_by_hand():
    """One channel, one state, two steps: h = exp(delta A) h + delta B u, y = C h."""
    u, delta, b, c = (
        torch.tensor(v).view(1, 2, 1) for v in ([2.0, 3.0], [0.5, 1.0], [1.0, -1.0], [10.0, 1.0])
    )
    for path in ("reference", "torch"):
        y, last = selective_scan(u, delta, torch.tensor([[-1.0]]), b, c, path=path)
        second = torch.tensor(-1.0).exp().item() * 1.0 - 3.0
        assert y.flatten().tolist() == pytest.approx([10.0, second])
        assert last.item() == pytest.approx(second)


@pytest.fixture(params=[1, 20, 2**20])
def chunk_numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one step, of a few steps, and of the whole sequence."""
    monkeypatch.setattr(scan, "CHUNK_NUMBERS", request.param)


@pytest.mark.usefixtures("chunk_numbers")
def test_written_out_gradient_is_numerically_right():
    assert torch.autograd.gradcheck(selective_scan, operands(2, 5, 2, 2))
    assert torch.autograd.gradcheck(selective_scan, operands(1, 1, 2, 3))


@pytest.mark.usefixtures("chunk_numbers")
@pytest.mark.parametrize("shape", SHAPES)
def test_portable_is_the_reference(shape):
    """Outputs, last state, and the gradient of both with respect to every operand."""
    tensors = operands(*shape)
    results = {}
    for path in ("torch", "reference"):
        y, last = selective_scan(*tensors, path=path)
        loss = (y * y.detach().cos()).sum() + last.square().sum()
        results[path] = [y, last, *torch.autograd.grad(loss, tensors)]
    for found, expected in zip(results["torch"], results["reference"], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("chunk_numbers")
def test_gradient_of_the_last_state_alone():
    tensors = operands(2, 7, 3, 2)
    gradients = [
        torch.autograd.grad(selective_scan(*tensors, path=path)[1].sum(), tensors, materialize_grads=True)
        for path in ("torch", "reference")
    ]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def results(path: str, tensors: list[torch.Tensor], **settings: object) -> list[torch.Tensor]:
    """Outputs, last state, and the gradient of both with respect to every operand."""
    y, last = selective_scan(*tensors, path=path, **settings)
    loss = (y * y.detach().cos()).sum() + last.square().sum()
    return [y, last, *torch.autograd.grad(loss, tensors)]


def resets(B: int, T: int) -> torch.Tensor:
    return torch.rand(B, T, generator=torch.Generator().manual_seed(T)) < 0.2


@pytest.mark.usefixtures("chunk_numbers")
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_portable_is_the_reference_with_documents(shape, negative):
    settings = {"reset_BT": resets(*shape[:2]), "negative": negative}
    tensors = operands(*shape)
    pairs = zip(*(results(path, tensors, **settings) for path in ("torch", "reference")), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("chunk_numbers")
def test_gradients_with_documents_and_negative_decays_are_numerically_right():
    reset_BT = torch.tensor([[False, True, False, False, True], [True, False, False, True, False]])

    def run(*tensors):
        return selective_scan(*tensors, reset_BT=reset_BT, negative=True)

    assert torch.autograd.gradcheck(run, operands(2, 5, 2, 2))


@pytest.mark.parametrize("path", ["torch", "reference"])
def test_a_document_begins_in_the_zero_state(path):
    u, delta, A, B, C, initial = operands(2, 11, 3, 2)
    reset_BT = torch.zeros(2, 11, dtype=torch.bool)
    reset_BT[:, 4] = True
    y, last = selective_scan(u, delta, A, B, C, initial, reset_BT=reset_BT, path=path)
    second, end = selective_scan(u[:, 4:], delta[:, 4:], A, B[:, 4:], C[:, 4:], path=path)
    torch.testing.assert_close(y[:, 4:], second, atol=1e-12, rtol=0)
    torch.testing.assert_close(last, end, atol=1e-12, rtol=0)


def test_negative_decays_by_hand():
    """exp(ln 1/4) = 1/4 becomes 2/4 - 1 = -1/2."""
    one, A = torch.ones(1, 2, 1), torch.tensor([[0.25]]).log()
    for path in ("reference", "torch"):
        y, _ = selective_scan(one, one, A, one, one, negative=True, path=path)
        assert y.flatten().tolist() == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("path", ["torch", "reference"])
@pytest.mark.parametrize("cut", [1, 7, 16])
def test_pieces_make_the_whole(path, cut):
    u, delta, A, B, C, initial = operands(3, 17, 5, 4)
    whole, last = selective_scan(u, delta, A, B, C, initial, path=path)
    first, middle = selective_scan(u[:, :cut], delta[:, :cut], A, B[:, :cut], C[:, :cut], initial, path=path)
    second, end = selective_scan(u[:, cut:], delta[:, cut:], A, B[:, cut:], C[:, cut:], middle, path=path)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(end, last, atol=1e-12, rtol=0)


def test_no_state_is_the_zero_state():
    *tensors, initial = operands(2, 9, 3, 2)
    y, _ = selective_scan(*tensors)
    zero, _ = selective_scan(*tensors, torch.zeros_like(initial))
    assert torch.equal(y, zero)


@pytest.mark.parametrize(("T", "C", "N"), [(1, 1, 1), (5, 3, 4), (12, 8, 16)])
def test_flops_are_the_arithmetic_that_runs(T, C, N):
    measured = arithmetic_of_one_sequence(
        lambda batch: selective_scan(*operands(batch, T, C, N), path="reference")
    )
    assert selective_scan_flops(T, C, N) == measured


def test_it_is_the_plain_code_of_the_authors(monkeypatch):
    interface = authors("ops/selective_scan_interface.py", monkeypatch)
    u, delta, A, B, C, _ = (tensor.detach().float() for tensor in operands(2, 17, 5, 4))
    y, last = selective_scan(u, delta, A, B, C)
    expected, end = interface.selective_scan_ref(
        *(x.mT for x in (u, delta)), A, B.mT, C.mT, return_last_state=True
    )
    torch.testing.assert_close(y.mT, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last, end, atol=1e-5, rtol=1e-5)


def test_chunks_are_long_on_a_gpu():
    """A model of 48 layers and 1,536 channels on 1,024 tokens: two steps a chunk took a million launches."""
    with FakeTensorMode():
        states = {device: torch.empty(16, 1536, 16, device=device) for device in ("cpu", "cuda")}
        lengths = {device: scan._chunk_length(state) for device, state in states.items()}
    assert lengths == {"cpu": 2, "cuda": 85}
    assert scan._chunk_length(torch.empty(2**11, 2**10)) == 1
