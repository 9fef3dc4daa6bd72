"""Shapes: B batch, T length, H heads, K key width, V value width, S updates of all tokens."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_next import modeling_qwen3_next as oracle

from archbench.architectures.layers.linear_attention.delta_rule import delta_rule, delta_rule_flops
from tests.architectures.costs import arithmetic_of_one_sequence


def operands(
    B: int,
    T: int,
    H: int,
    K: int,
    V: int,
    *,
    strongest: float = 1.0,
    rate: float = 1.0,
    updates: int = 1,
    channels: bool = False,
) -> list[torch.Tensor]:
    """q, k, v, beta, log decay and the first memory, in float64, all asking for gradients."""
    generator = torch.Generator().manual_seed(T)
    S, decays = T * updates, (B, T, H, K) if channels else (B, T, H)
    shapes = [(B, T, H, K), (B, S, H, K), (B, S, H, V), (B, S, H), decays, (B, H, K, V)]
    q, k, v, beta, decay, memory = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    drawn = [q, F.normalize(k, dim=-1), v, strongest * beta.sigmoid(), -rate * decay.abs(), memory]
    return [tensor.requires_grad_() for tensor in drawn]


SHAPES = [(1, 1, 1, 1, 1), (2, 2, 1, 3, 1), (3, 17, 2, 5, 4), (1, 40, 3, 2, 7), (1, 129, 1, 4, 3)]


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_by_hand(path):
    """K = 4, so that queries are halved. The second write meets half of the first under the same key."""
    key = [1.0, 0.0, 0.0, 0.0]
    k = torch.tensor([key, key, [0.0, 1.0, 0.0, 0.0]]).view(1, 3, 1, 4)
    q = torch.tensor([key, key, [2.0, 2.0, 0.0, 0.0]]).view(1, 3, 1, 4)
    v = torch.tensor([8.0, 2.0, 5.0]).view(1, 3, 1, 1)
    beta = torch.tensor([1.0, 0.5, 1.0]).view(1, 3, 1)
    decay = torch.tensor([1.0, 0.5, 1.0]).log().view(1, 3, 1)
    y, last = delta_rule(q, k, v, beta, decay, path=path)
    assert y.flatten().tolist() == pytest.approx([4.0, 1.5, 8.0])  # memory: 8; 4 + (2 - 4) / 2 = 3; 3 and 5
    assert last.flatten().tolist() == pytest.approx([3.0, 5.0, 0.0, 0.0])


KINDS: dict[str, dict[str, Any]] = {
    "no decay": {},
    "heads": {},
    "channels": {"channels": True},
    "two updates": {"updates": 2},
    "three updates": {"updates": 3},
}
"""Decays, and updates for each token."""


@pytest.mark.parametrize("chunk", [1, 4, 16, 48, 64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_are_the_recurrence(shape, kind, chunk):
    """Outputs, last memory, and the gradient of both with respect to every operand."""
    tensors = operands(*shape, strongest=2.0, **KINDS[kind])
    decays = kind != "no decay"
    asked = tensors if decays else [*tensors[:4], tensors[5]]
    results = {}
    for path in ("torch", "reference"):
        log_decay = tensors[4] if decays else None
        y, last = delta_rule(*tensors[:4], log_decay, tensors[5], path=path, chunk=chunk)
        loss = (y * y.detach().cos()).sum() + last.square().sum()
        results[path] = [y, last, *torch.autograd.grad(loss, asked)]
    for found, expected in zip(results["torch"], results["reference"], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
@pytest.mark.parametrize("path", ["reference", "torch"])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_outputs_are_those_of_the_transformers_library(shape, path, name):
    q, k, v, beta, decay, memory = (tensor.detach().float() for tensor in operands(*shape))
    expected = getattr(oracle, name)(
        q, k, v, g=decay, beta=beta, initial_state=memory, output_final_state=True
    )
    found = delta_rule(q, k, v, beta, decay, memory, path=path)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"])
@pytest.mark.parametrize("path", ["reference", "torch"])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_decays_of_channels_are_those_of_the_transformers_library(shape, path, name):
    q, k, v, beta, decay, memory = (x.detach().float() for x in operands(*shape, channels=True))
    expected = getattr(kimi, name)(q, k, v, decay, beta, initial_state=memory, output_final_state=True)
    found = delta_rule(q, k, v, beta, decay, memory, path=path)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_equal_decays_of_channels_are_a_decay_of_the_head(path):
    q, k, v, beta, decay, memory = operands(2, 100, 2, 5, 4)
    results = []
    for log_decay in (decay, decay[..., None].expand(-1, -1, -1, 5)):
        y, last = delta_rule(q, k, v, beta, log_decay, memory, path=path)
        loss = (y * y.detach().cos()).sum() + last.square().sum()
        results.append([y, last, *torch.autograd.grad(loss, (q, k, v, beta, decay, memory))])
    torch.testing.assert_close(*results, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("path", ["reference", "torch"])
@pytest.mark.parametrize("channels", [False, True])
def test_a_step_is_a_product_of_matrices(channels, path):
    """S_t = (I - b k k^T) Diag(a) S + b k v^T, with one or three such factors, in plain matrices."""
    updates = 1 if channels else 3
    tensors = operands(1, 70, 1, 4, 3, strongest=2.0, channels=channels, updates=updates)
    q, k, v, beta, decay, memory = (x.detach() for x in tensors)
    eye, state, outputs = torch.eye(4, dtype=torch.float64), memory[0, 0], []
    for t in range(70):
        state = torch.diag(decay[0, t, 0].exp().expand(4)) @ state
        for s in range(t * updates, (t + 1) * updates):
            key, value, b = k[0, s, 0], v[0, s, 0], beta[0, s, 0]
            state = (eye - b * key.outer(key)) @ state + b * key.outer(value)
        outputs.append(state.T @ q[0, t, 0] / 2)
    found, last = delta_rule(q, k, v, beta, decay, memory, path=path)
    torch.testing.assert_close(found[0, :, 0], torch.stack(outputs), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(last[0, 0], state, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("path", ["reference", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_numerically_right(kind, path):
    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return delta_rule(*tensors, path=path, chunk=2)

    assert torch.autograd.gradcheck(run, operands(2, 5, 1, 2, 2, **KINDS[kind]))


@pytest.mark.parametrize("path", ["torch", "reference"])
@pytest.mark.parametrize("cut", [1, 7, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_make_the_whole(kind, path, cut):
    *tensors, initial = operands(3, 17, 2, 5, 4, **KINDS[kind])
    whole, last = delta_rule(*tensors, initial, path=path, chunk=4)
    cuts = [cut * x.shape[1] // 17 for x in tensors]
    heads, tails = zip(
        *(x.tensor_split([at], dim=1) for x, at in zip(tensors, cuts, strict=True)), strict=True
    )
    first, middle = delta_rule(*heads, initial, path=path, chunk=4)
    second, end = delta_rule(*tails, middle, path=path, chunk=4)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(end, last, atol=1e-12, rtol=0)


@pytest.mark.parametrize("path", ["torch", "reference"])
@pytest.mark.parametrize("channels", [False, True])
def test_minus_infinity_forgets_everything(channels, path):
    tensors = operands(2, 20, 2, 3, 4, channels=channels)
    q, k, v, beta, decay, memory = (tensor.detach() for tensor in tensors)
    starts = [7, 8, 16]
    decay[:, starts] = -math.inf
    decay.requires_grad_()
    y, last = delta_rule(q, k, v, beta, decay, memory, path=path, chunk=8)
    spans = zip([0, *starts], [*starts, 20], strict=True)
    pieces = [
        delta_rule(
            *(x[:, start:end] for x in (q, k, v, beta)),
            decay[:, start:end].clamp(min=-100),
            memory if start == 0 else None,
            path="reference",
        )
        for start, end in spans
    ]
    torch.testing.assert_close(y, torch.cat([piece[0] for piece in pieces], dim=1), atol=1e-12, rtol=0)
    torch.testing.assert_close(last, pieces[-1][1], atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad(y.square().sum() + last.sum(), decay)
    assert gradient.isfinite().all()
    assert not gradient[:, starts].any()


@pytest.mark.parametrize("rate", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("kind", ["heads", "channels", "two updates"])
def test_gradients_of_any_decay_in_float32(kind, rate):
    """Beside those of the recurrence in float64, each in units of its largest."""
    tensors = operands(2, 150, 2, 8, 8, rate=rate, **KINDS[kind])
    single = [tensor.detach().float().requires_grad_() for tensor in tensors]
    y_BTHV, _ = delta_rule(*single)
    expected_BTHV, _ = delta_rule(*tensors, path="reference")
    found = torch.autograd.grad((y_BTHV * expected_BTHV.detach().float().cos()).sum(), single)
    expected = torch.autograd.grad((expected_BTHV * expected_BTHV.detach().cos()).sum(), tensors)
    for ours, exact in zip(found, expected, strict=True):
        scale = exact.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(ours.double() / scale, exact / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rate", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("kind", ["heads", "channels", "two updates"])
def test_any_decay_in_float32(kind, rate):
    """Beside the recurrence in float64; a quotient of cumulative products would overflow."""
    drawn = operands(2, 150, 2, 8, 8, strongest=2.0, rate=rate, **KINDS[kind])
    tensors = [tensor.detach() for tensor in drawn]
    for found, expected in zip(
        delta_rule(*(tensor.float() for tensor in tensors)),
        delta_rule(*tensors, path="reference"),
        strict=True,
    ):
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)


def test_channels_of_every_speed_in_float32():
    """A channel that forgets at once and a neighbour that never does both keep their digits."""
    q, k, v, beta, decay, memory = (x.detach() for x in operands(1, 200, 1, 4, 4, channels=True))
    decay = decay * torch.tensor([0.0, 1e-4, 1.0, 1e5], dtype=torch.float64)
    found, _ = delta_rule(*(x.float() for x in (q, k, v, beta, decay, memory)))
    expected, _ = delta_rule(q, k, v, beta, decay, memory, path="reference")
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_two_updates_rotate(path):
    """Two reflections at 45 degrees to each other are a quarter turn, which one update cannot be."""
    k = torch.tensor([[1.0, 0.0], [0.5**0.5, 0.5**0.5]], dtype=torch.float64).repeat(3, 1)[None, :, None]
    v, beta = torch.zeros_like(k), torch.full(k.shape[:3], 2.0, dtype=torch.float64)
    memory = torch.eye(2, dtype=torch.float64)[None, None]
    _, last = delta_rule(k[:, :3], k, v, beta, None, memory, path=path)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(last[0, 0], torch.linalg.matrix_power(turn, 3), atol=1e-12, rtol=0)


def test_rounding_does_not_grow_under_reflections_in_float32():
    """beta = 2 and one key throughout: the hardest system of a chunk, whose entries do not decay."""
    q, k, v, beta, _, memory = (tensor.detach() for tensor in operands(1, 256, 1, 4, 4))
    k, beta = k[:, :1].expand_as(k), torch.full_like(beta, 2.0)
    found, _ = delta_rule(q.float(), k.float(), v.float(), beta.float(), None, memory.float())
    expected, _ = delta_rule(q, k, v, beta, None, memory, path="reference")
    scale = expected.abs().max()
    assert ((found.double() - expected).abs().max() / scale).item() < 1e-4


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 1.7, 2.0])
def test_the_transition_has_eigenvalue_one_minus_beta(beta):
    k = F.normalize(torch.randn(1, 1, 1, 5, dtype=torch.float64), dim=-1)
    eye = torch.eye(5, dtype=torch.float64)[None, None]
    _, transition = delta_rule(
        k, k, torch.zeros_like(k), torch.full((1, 1, 1), beta, dtype=torch.float64), None, eye
    )
    eigenvalues = torch.linalg.eigvalsh(transition[0, 0])
    expected = sorted([1.0 - beta, 1.0, 1.0, 1.0, 1.0])
    assert eigenvalues.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("T", "H", "K", "V"), [(1, 1, 1, 1), (5, 3, 4, 2), (12, 2, 8, 16)])
def test_flops_are_the_arithmetic_that_runs(T, H, K, V, kind):
    drawn = {batch: [x.detach() for x in operands(batch, T, H, K, V, **KINDS[kind])] for batch in (1, 2)}
    decays, updates = kind != "no decay", KINDS[kind].get("updates", 1)

    def run(batch: int) -> object:
        q, k, v, beta, decay, memory = drawn[batch]
        return delta_rule(q, k, v, beta, decay if decays else None, memory, path="reference")

    found = delta_rule_flops(T, H, K, V, decays=decays, updates=updates)
    assert found == arithmetic_of_one_sequence(run)
