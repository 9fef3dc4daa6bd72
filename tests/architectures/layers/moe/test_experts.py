"""Experts and their dispatch.

Shapes: B batch, T length, D d_model, F hidden width, X experts, K experts for each token.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from archbench.architectures.layers.context import Context
from archbench.architectures.layers.feedforward import ACTIVATIONS, DenseFeedForward, FeedForwardConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.dispatch import (
    Weights,
    dispatch,
    grouped_product,
    run_all,
    run_grouped,
    run_loop,
    run_padded,
)
from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.layers.moe.routing_record import record_routing


def experts(
    X: int, K: int, D: int = 6, d_ff: int = 5, gated: bool = True, limit: Any = None, **settings: Any
) -> Experts:
    torch.manual_seed(10 * X + K)
    config = ExpertsConfig(num_experts=X, experts_per_token=K, **settings)
    layer = Experts(D, d_ff, config, FeedForwardConfig(gated=gated, limit=limit)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.5)
    return layer


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def padded(valid_BT: Tensor) -> Context:
    """The context of full sequences with padding."""
    return Context.whole(valid_BT, valid_BT, None)


def with_dispatch(layer: Experts, way: str) -> Experts:
    layer.config = replace(layer.config, dispatch=way)
    return layer


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "not renormalised": {"renormalise": False},
    "sigmoid": {"score": "sigmoid", "scaling": 2.5, "bias_rate": 0.001},
    "dropping": {"capacity_factor": 1.0},
    "little room": {"capacity": 1},
    "experts choose": {"choice": "expert"},
    "ungated": {"gated": False},
    "shared": {"num_shared_experts": 2, "shared_gate": True},
    "biases": {"bias": True},
    "limited, with biases": {"bias": True, "limit": 0.5, "capacity": 2},
    "ungated, with biases": {"bias": True, "gated": False},
}


@pytest.mark.parametrize(("X", "K", "B", "T"), [(1, 1, 1, 1), (4, 2, 3, 7), (5, 1, 2, 9), (16, 3, 1, 3)])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", ["loop", "padded"])
def test_every_way_is_the_reference(way, variant, X, K, B, T):
    """Outputs and gradients, also where some experts see no token, or some tokens no expert."""
    layer = experts(X, K, **VARIANTS[variant])
    x = tokens(B, T, 6).requires_grad_()
    context = None if T == 1 else padded(torch.arange(T) < torch.randint(1, T + 1, (B, 1)))
    inputs = (x, *layer.parameters())
    results = []
    for name in (way, "reference"):
        y, losses = with_dispatch(layer, name)(x, context)
        loss = (y * y.detach().cos()).sum() + sum(losses.values())
        results.append([y, *torch.autograd.grad(loss, inputs, allow_unused=True)])
    for found, expected in zip(*results, strict=True):
        found = torch.zeros_like(expected) if found is None else found
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def weights(X: int, D: int, d_ff: int, dtype: torch.dtype, gated: bool, bias: bool = False) -> Weights:
    stacks = [0.3 * torch.randn(shape, dtype=dtype) for shape in ((X, d_ff, D), (X, d_ff, D), (X, D, d_ff))]
    stacks = [stack.requires_grad_() for stack in stacks]
    biases = [torch.randn(X, width, dtype=dtype).requires_grad_() for width in (d_ff, d_ff, D)]
    own = (biases[0] if gated else None, *biases[1:]) if bias else ()
    return Weights(stacks[0] if gated else None, stacks[1], stacks[2], ACTIVATIONS["silu"], *own)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("counts", [[3, 0, 5, 1], [0, 0, 9, 0], [0, 0, 0, 0]])
def test_the_grouped_product_is_the_loop(counts, dtype, tolerance, gated, bias):
    """float64 has no such product in PyTorch, so this is at the precisions that have it."""
    torch.manual_seed(0)
    held = weights(4, 16, 8, dtype, gated, bias)
    x = torch.randn(sum(counts), 16, dtype=dtype, requires_grad=True)
    inputs = [t for t in (x, *held) if isinstance(t, Tensor)]
    results = []
    for run in (run_grouped, run_loop, run_padded):
        y = run(x, torch.tensor(counts), held)
        if not counts[2]:
            assert y.shape == (0, 16)
            continue
        results.append([y, *torch.autograd.grad((y * torch.ones_like(y)).sum(), inputs)])
    for other in results[1:]:
        for found, expected in zip(results[0], other, strict=True):
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("bias", [False, True])
def test_rows_in_bfloat16_are_filled_up_to_few_shapes(bias):
    torch.manual_seed(0)
    counts, held = [100, 0, 17, 3, 64], weights(5, 16, 8, torch.bfloat16, True, bias)
    x = torch.randn(sum(counts), 16, dtype=torch.bfloat16, requires_grad=True)
    inputs, shapes = [t for t in (x, *held) if isinstance(t, Tensor)], set()

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket.__name__ in ("mm", "addmm"):
                shapes.add(args[-2].shape[0])
            return function(*args, **(kwargs or {}))

    with Products():
        y = run_loop(x, torch.tensor(counts), held)
    assert y.shape == x.shape
    assert shapes <= {0, 3, 64, 128}
    found = torch.autograd.grad(y.sum(), inputs)
    exact = [None if t is None or callable(t) else t.detach().float().requires_grad_() for t in held]
    full = Weights(*(held[i] if i == 3 else own for i, own in enumerate(exact)))
    x32 = x.detach().float().requires_grad_()
    y32 = run_loop(x32, torch.tensor(counts), full)
    torch.testing.assert_close(y.float(), y32, atol=0.05, rtol=0.05)
    of = [x32, *(t for t in full if isinstance(t, Tensor))]
    for mine, expected in zip(found, torch.autograd.grad(y32.sum(), of), strict=True):
        torch.testing.assert_close(mine.float(), expected, atol=0.3, rtol=0.05)


def test_a_number_of_rows_that_needs_no_filling_is_not_compiled_for():
    """A block is compiled in seconds; one step in thirty has such a number."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    held, counter = weights(2, 16, 8, torch.bfloat16, True, False), CompileCounter()
    compiled = torch.compile(run_loop, backend=counter)
    compilations = []
    for first in (100, 101, 131, 128, 64):
        x = torch.randn(256, 16, dtype=torch.bfloat16)
        counts = torch.tensor([first, 256 - first])
        with torch.no_grad():
            y = compiled(x, counts, held)
            torch.testing.assert_close(y, run_loop(x, counts, held), atol=0.05, rtol=0.05)
        compilations.append(counter.frame_count)
    assert compilations[2:] == [compilations[2]] * 3, compilations


def test_the_grouped_product_follows_autocast():
    layer = with_dispatch(experts(4, 2, D=16, d_ff=8).float(), "grouped")
    x = tokens(2, 9, 16).float()
    with torch.autocast("cpu", torch.bfloat16):
        found, loop = layer(x)[0], with_dispatch(layer, "loop")(x)[0]
    assert not torch.equal(loop, layer(x)[0])  # bfloat16 is seen to be used
    torch.testing.assert_close(found, loop, atol=0.02, rtol=0.02)


def test_gpus_have_a_grouped_product_of_bfloat16_alone():
    """PyTorch's kernel rejects float32: "Expected inputs of BF16 type"."""
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    assert [grouped_product("cuda", dtype, 16, 16) for dtype in types] == [True, False, False, False]
    assert [grouped_product("cpu", dtype, 16, 16) for dtype in types] == [True, True, True, False]
    assert not grouped_product("cuda", torch.bfloat16, 16, 12)


def test_an_impossible_grouped_product_is_refused():
    with pytest.raises(ValueError, match=r"dispatch=grouped .*float64"):
        with_dispatch(experts(4, 2, D=16, d_ff=8), "grouped")(tokens(1, 3, 16))
    with pytest.raises(ValueError, match=r"dispatch=grouped .*d_model=6 and experts of 5"):
        with_dispatch(experts(4, 2).float(), "grouped")(tokens(1, 3, 6).float())


def test_kernels_are_named():
    names = {"auto": "sorted loop", "padded": "padded product", "reference": "all experts on all tokens"}
    for way, name in names.items():
        assert with_dispatch(experts(3, 1), way).kernel() == name
    assert experts(3, 1).path(tokens(1, 1, 6)) == "loop"


def test_pairs_that_are_not_kept_are_not_run():
    held = weights(3, 4, 4, torch.float64, gated=True)
    seen = []

    def run(x_MD: Tensor, counts_X: Tensor) -> Tensor:
        seen.append(counts_X.tolist())
        return run_loop(x_MD, counts_X, held)

    x, gate = tokens(4, 4), torch.full((4, 2), 0.5, dtype=torch.float64)
    expert = torch.tensor([[0, 1], [1, 2], [1, 0], [2, 1]])
    kept = torch.tensor([[True, True], [True, False], [False, False], [False, True]])
    found = dispatch(x, expert, gate, kept, num_experts=3, run=run)
    assert seen == [[1, 3, 0]]
    assert torch.equal(found[2], torch.zeros_like(found[2]))
    torch.testing.assert_close(found, run_all(x, expert, gate, kept, held), atol=1e-14, rtol=0)


def dense(layer: Experts, index: int) -> DenseFeedForward:
    """One expert as an ordinary feed-forward."""
    _, d_ff, d_model = layer.gate_XFD.shape
    feedforward = DenseFeedForward(d_model, d_ff).double()
    feedforward.load_state_dict(
        {
            "gate.weight": layer.gate_XFD[index],
            "up.weight": layer.up_XFD[index],
            "down.weight": layer.down_XDF[index],
        }
    )
    return feedforward


@pytest.mark.parametrize("K", [1, 2, 4])
def test_identical_experts_are_one_dense_layer(K):
    layer = experts(4, K)
    with torch.no_grad():
        for weight in (layer.gate_XFD, layer.up_XFD, layer.down_XDF):
            weight.copy_(weight[:1].clone().expand_as(weight))
    x = tokens(2, 9, 6)
    torch.testing.assert_close(layer(x)[0], dense(layer, 0)(x)[0], atol=1e-12, rtol=0)


def test_the_order_of_the_experts_does_not_matter():
    layer, shuffled = experts(5, 2), experts(5, 2)
    order = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        for mine, theirs in zip(shuffled.parameters(), layer.parameters(), strict=True):
            mine.copy_(theirs[order])
    x = tokens(2, 9, 6)
    torch.testing.assert_close(shuffled(x)[0], layer(x)[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(shuffled(x)[1]["balance"], layer(x)[1]["balance"], atol=1e-12, rtol=0)


def test_shared_experts_are_one_layer_times_its_gate():
    layer = experts(3, 1, num_shared_experts=2, shared_gate=True)
    x = tokens(2, 5, 6)
    assert layer.shared.up.weight.shape == (10, 6)
    bare = experts(3, 1)
    bare.load_state_dict({name: layer.state_dict()[name] for name in bare.state_dict()})
    gate = torch.sigmoid(x @ layer.shared_gate.weight[0])[..., None]
    torch.testing.assert_close(layer(x)[0], bare(x)[0] + gate * layer.shared(x)[0], atol=1e-12, rtol=0)


def test_under_autocast_the_router_stays_in_float32():
    layer = experts(4, 2, z_coefficient=0.1).float()
    x = tokens(2, 9, 6).float()
    with torch.autocast("cpu", torch.bfloat16):
        y, auxiliary = layer(x)
    for name in ("balance", "router_z"):
        assert torch.equal(auxiliary[name], layer(x)[1][name])
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, layer(x)[0], atol=0.05, rtol=0.05)


def test_costs_by_hand():
    """Four experts of 5 x 6 x 3 weights, two used, and a router of 4 x 6."""
    layer = experts(4, 2)
    assert layer.inactive_parameters() == 2 * 90
    assert layer.flops(7).linear == 2 * 7 * (4 * 6 + 2 * 90)
    shared = experts(4, 2, num_shared_experts=3, shared_gate=True)
    assert shared.inactive_parameters() == 2 * 90
    assert shared.flops(7).linear == 2 * 7 * (4 * 6 + 2 * 90 + 3 * 90 + 6)
    ungated = experts(4, 2, gated=False)
    assert ungated.inactive_parameters() == 2 * 60
    # Each of four experts takes 4 of 7 tokens: 2 x 7 / 4, rounded up.
    assert experts(4, 2, choice="expert").flops(7).linear == 2 * (7 * 4 * 6 + 4 * 4 * 90)


def test_a_record_says_what_was_decided():
    """Expert 0 may take one token of a sequence: of three and two that want it, one each stays."""
    layer = experts(2, 1, D=2, capacity=1)
    with torch.no_grad():
        layer.router.weight.copy_(torch.tensor([[9.0, 0.0], [0.0, 9.0]]))
    first, second = torch.eye(2, dtype=torch.float64)
    x = torch.stack([torch.stack([first, first, first]), torch.stack([first, first, second])])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    layer(x)
    with record_routing(layer) as records:
        layer(x, padded(valid))
        layer(x[:1])
    layer(x)
    record, later = records[""]
    assert record.expert_BTK[..., 0].tolist() == [[0, 0, 0], [0, 0, 1]]
    assert record.taken_BTK[..., 0].tolist() == [[True, False, False], [True, False, False]]
    assert record.load_X.tolist() == [1.0, 0.0]
    assert (record.load_entropy, record.max_load) == (0.0, 2.0)
    assert record.dropped_share == pytest.approx(3 / 5)
    p = torch.tensor([9.0, 0.0]).softmax(0)
    assert record.router_entropy == pytest.approx(float(-(p * p.log()).sum()), rel=1e-4)
    assert later.expert_BTK.shape == (1, 3, 1)
    assert not record.gate_BTK.requires_grad


def test_without_a_limit_nothing_counts_as_dropped():
    for settings in ({}, {"choice": "expert"}):
        layer = experts(4, 2, **settings)
        with record_routing(layer) as records:
            layer(tokens(2, 8, 6))
        (record,) = records[""]
        assert record.dropped_share == 0
        assert record.load_X.sum() == pytest.approx(1)
        if settings:
            assert record.load_X.tolist() == [0.25] * 4
            assert record.load_entropy == pytest.approx(torch.tensor(4.0).log().item())


@pytest.mark.parametrize("left_out", [False, True])
def test_no_gradient_of_dispatch_sorts(left_out):
    """That of x[index] does on a GPU; that of index_select adds."""
    x_ND, gate_NK = torch.randn(6, 4, requires_grad=True), torch.rand(6, 2, requires_grad=True)
    expert_NK = torch.tensor([[0, 1], [1, 2], [2, 0], [1, 0], [0, 2], [2, 1]])
    kept_NK = expert_NK != 1 if left_out else None
    y_ND = dispatch(x_ND, expert_NK, gate_NK, kept_NK, num_experts=3, run=lambda x_MD, counts_X: 2 * x_MD)
    share_N1 = (gate_NK if kept_NK is None else gate_NK * kept_NK).sum(1, keepdim=True)
    torch.testing.assert_close(y_ND, 2 * share_N1 * x_ND)
    seen, left = set(), [y_ND.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
    names = {node.name() for node in seen}
    assert "IndexSelectBackward0" in names
    assert not names & {"IndexBackward0", "IndexPutBackward0"}
