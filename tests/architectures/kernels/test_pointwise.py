"""The C++ path of what stands between matrix products, against PyTorch in float64, and when it is taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from archbench.architectures import fast_paths
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.kernels.cpu import build, where
from archbench.architectures.layers.activations import ACTIVATIONS
from archbench.architectures.layers.cross_entropy import cross_entropy
from archbench.architectures.layers.normalization import OffsetRMSNorm, RMSNorm, for_products, rms_norm
from archbench.architectures.layers.positions import Rotary

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1e-2}
SHAPES = [(1, 3), (3, 5), (0, 7), (70, 37), (2, 33, 256), (130, 130)]
DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """The kernels compute inputs of any size."""
    monkeypatch.setattr(where, "faster", lambda *operands, **settings: True)
    torch.manual_seed(0)
    yield
    fast_paths.choose("auto")


def compare(run, operands: list[Tensor], exact=None) -> None:
    """Values and gradients of ``run`` against those of ``exact`` (or itself) in float64."""
    assert fast_paths.path(*operands) == "cpp"
    wide = [x.detach().double().requires_grad_() for x in operands]
    assert fast_paths.path(*wide) == "torch"
    y, expected = run(*operands), (exact or run)(*wide)
    weights = torch.randn(y.shape).to(y.dtype)
    found = [y, *torch.autograd.grad(y, operands, weights)]
    other = [expected, *torch.autograd.grad(expected, wide, weights.double())]
    limit = TOLERANCE[operands[0].dtype]
    for one, two, like in zip(found, other, [y, *operands], strict=True):
        assert one.dtype == like.dtype
        assert one.shape == two.shape
        scale = two.abs().max().item() if two.numel() else 1.0
        torch.testing.assert_close(one.double(), two, rtol=limit, atol=limit * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape, dtype):
    x = (3 * torch.randn(shape)).to(dtype).requires_grad_()
    weight = torch.randn(shape[-1]).to(dtype).requires_grad_()
    compare(lambda x, weight: rms_norm(x, weight, 1e-3), [x, weight])
    # Every other number of something wider.
    gaps = torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype).requires_grad_()
    compare(lambda gaps, weight: rms_norm(gaps[..., ::2], weight, 1e-3), [gaps, weight])


def test_the_offset_norm_multiplies_by_one_more():
    norm, x = OffsetRMSNorm(24, 1e-5), torch.randn(2, 3, 24, requires_grad=True)
    torch.nn.init.normal_(norm.weight)
    assert fast_paths.path(x, norm.weight) == "cpp"
    compare(lambda x, w: rms_norm(x, 1 + w, 1e-5), [x, norm.weight])
    assert torch.equal(norm(x), rms_norm(x, 1 + norm.weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_alone_and_times_a_gate(name, shape, dtype):
    activation = ACTIVATIONS[name]
    x, other = (3 * torch.randn(2, *shape)).to(dtype).unbind(0)
    x, other = x.clone().requires_grad_(), other.clone().requires_grad_()
    compare(activation, [x])
    compare(activation.times, [x, other])


def test_activations_far_from_zero_are_finite():
    x = torch.tensor([-1e15, -200.0, -90.0, 0.0, 90.0, 200.0, 1e15], requires_grad=True)
    for name in ("silu", "gelu", "gelu_tanh"):
        y = ACTIVATIONS[name].times(x, torch.ones(7))
        torch.testing.assert_close(y[[0, 3, 6]], x[[0, 3, 6]].clamp_min(0))
        slope = torch.autograd.grad(y.sum(), x)[0]
        torch.testing.assert_close(slope, torch.tensor([0.0, 0, 0, 0.5, 1, 1, 1]))


@pytest.mark.parametrize("never", [None, 0, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 6), (0, 7), (5, 16), (40, 70), (3, 1000)])
def test_cross_entropy(shape, dtype, never):
    logits = (5 * torch.randn(shape)).to(dtype).requires_grad_()
    target = torch.randint(1, 5, shape[:1])

    def exact(logits: Tensor) -> Tensor:
        if never is not None:
            logits = logits.masked_fill(torch.arange(shape[1]) == never, -torch.inf)
        return F.cross_entropy(logits, target, reduction="none")

    y = cross_entropy(logits, target, never)
    assert y.dtype == torch.float32
    weights = torch.rand(len(target))
    wide = logits.detach().double().requires_grad_()
    torch.testing.assert_close(y.double(), exact(wide), rtol=1e-6, atol=1e-5)
    slope, expected = (
        torch.autograd.grad(exact_y, x, weights.to(exact_y.dtype))[0]
        for exact_y, x in ((y, logits), (exact(wide), wide))
    )
    torch.testing.assert_close(slope.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)


def test_cross_entropy_where_tokens_are_closed():
    logits = torch.randn(3, 40)
    logits[0, 7:] = -torch.inf
    logits[1, 2] = torch.nan
    target = torch.tensor([3, 4, 39])
    found = cross_entropy(logits.requires_grad_(), target)
    torch.testing.assert_close(found, F.cross_entropy(logits, target, reduction="none"), equal_nan=True)
    assert cross_entropy(logits[:1], torch.tensor([9])).item() == torch.inf
    assert torch.autograd.grad(found[0], logits)[0][0, 7:].eq(0).all()
    with pytest.raises(IndexError, match=r"\[0, 40\)"):
        cross_entropy(logits, torch.tensor([0, 1, 40]))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width", "dim"), [(1, 2, 2), (3, 10, 6), (2, 64, 64), (4, 40, 34)])
def test_rotation(heads, width, dim, dtype, interleaved):
    rotary = Rotary(dim=dim, base=100.0, interleaved=interleaved)
    x = torch.randn(2, 9, heads, width).to(dtype).requires_grad_()
    for positions in (torch.arange(4, 13)[None], torch.randint(50, (2, 9))):
        tables = rotary.tables(positions)

        def run(x: Tensor, tables=tables) -> Tensor:
            mine = tables if x.dtype in DTYPES else tuple(table.double() for table in tables)
            return rotary.rotate(x.transpose(1, 2), mine)

        compare(run, [x])


def model() -> Decoder:
    torch.manual_seed(1)
    return Decoder(DecoderConfig(d_model=24, num_layers=2, tie_embeddings=True), vocab_size=19, max_length=33)


def gradients(decoder: Decoder, tokens_BT: Tensor) -> list[Tensor]:
    logits_NV = decoder(tokens_BT).logits_BTV.flatten(0, 1)
    nats = cross_entropy(logits_NV, tokens_BT.flatten()).mean()
    return [nats.detach(), *torch.autograd.grad(nats, list(decoder.parameters()))]


def test_a_model_is_the_same_on_both_paths_and_says_which_it_takes():
    decoder, tokens_BT = model(), torch.randint(19, (3, 33))
    found = {}
    for choice, taken in (("torch", "torch"), ("cpp", "cpp"), ("auto", "cpp")):
        fast_paths.choose(choice)
        assert decoder.kernels()["pointwise"] == taken
        found[choice] = gradients(decoder, tokens_BT)
    for one, other in zip(found["cpp"], found["torch"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert all(map(torch.equal, found["cpp"], found["auto"]))
    assert decoder.double().kernels()["pointwise"] == "torch"
    assert decoder.to("meta").kernels()["pointwise"] == "torch"


def test_the_number_of_threads_changes_no_bit():
    x, weight = torch.randn(700, 200, requires_grad=True), torch.randn(200, requires_grad=True)
    target, before = torch.randint(200, (700,)), torch.get_num_threads()
    rotary, found = Rotary(dim=40, base=100.0), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = ACTIVATIONS["gelu"].times(rms_norm(x, weight, 1e-5), x)
            y = rotary.rotate(y.view(7, 100, 5, 40).transpose(1, 2), rotary.tables(torch.arange(100)[None]))
            nats = cross_entropy(y.transpose(1, 2).reshape(700, 200), target)
            found.append([nats.detach(), *torch.autograd.grad(nats.sum(), [x, weight])])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_autocast_rounds_once_what_matrix_products_read():
    norm, x = RMSNorm(20, eps=1e-5), torch.randn(4, 20)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).dtype == torch.float32
        found = for_products(norm, x)
        fast_paths.choose("torch")
        assert torch.equal(found, norm(x).bfloat16())
        assert for_products(norm, x).dtype == torch.bfloat16
        assert for_products(torch.nn.LayerNorm(20), x).dtype == torch.bfloat16
    assert for_products(norm, x).dtype == torch.float32


def test_a_second_derivative_is_refused_and_checkpointing_changes_nothing():
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(8)
    slope = torch.autograd.grad(rms_norm(x, weight, 1e-5).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()

    def layer(x: Tensor) -> Tensor:
        return ACTIVATIONS["silu"].times(rms_norm(x, weight, 1e-5), x)

    plain = torch.autograd.grad(layer(x).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).sum(), x)[0], plain)


def test_transforms_take_the_portable_path():
    x, weight = torch.randn(5, 8), torch.randn(8)
    expected = torch.stack([rms_norm(row, weight, 1e-5) for row in x])
    torch.testing.assert_close(torch.vmap(lambda row: rms_norm(row, weight, 1e-5))(x), expected)
    assert torch.func.grad(lambda x: rms_norm(x, weight, 1e-5).sum())(x).shape == x.shape
    program = torch.export.export(RMSNorm(8), (x,))
    assert "rms_norm" in str(program.graph)


def test_a_choice_must_exist_and_be_possible(monkeypatch):
    with pytest.raises(ValueError, match="auto, torch, cpp"):
        fast_paths.choose("fast")
    monkeypatch.setattr(build, "problem", lambda: "no C++ compiler")
    with pytest.raises(ValueError, match="install a C\\+\\+ compiler"):
        fast_paths.choose("cpp")
    assert fast_paths.path(torch.ones(1)) == "torch"
