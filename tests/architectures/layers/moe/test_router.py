"""Routers: choices, gates, capacity, losses and the bias that balances.

Shapes: B batch, T length, D d_model, X experts, K experts for each token.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from archbench.architectures.layers.context import Context
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.layers.moe.router import Router, Routing, router_losses


def router(X: int, K: int, D: int = 6, **settings: Any) -> Router:
    torch.manual_seed(10 * X + K)
    made = Router(D, ExpertsConfig(num_experts=X, experts_per_token=K, **settings)).double()
    torch.nn.init.normal_(made.weight, 0.0, 0.5)
    return made


def experts(X: int, K: int, D: int = 6, **settings: Any) -> Experts:
    torch.manual_seed(10 * X + K)
    layer = Experts(D, 5, ExpertsConfig(num_experts=X, experts_per_token=K, **settings)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.5)
    return layer


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def padded(valid_BT: Tensor) -> Context:
    """The context of full sequences with padding."""
    return Context.whole(valid_BT, valid_BT, None)


def from_logits(logits: list[list[float]], K: int, **settings: Any) -> Routing:
    """The routing of one sequence of tokens with these logits."""
    table = torch.tensor(logits, dtype=torch.float64)
    made = router(table.shape[1], K, D=len(table), **settings)
    with torch.no_grad():
        made.weight.copy_(table.T)
    return made.route(torch.eye(len(table), dtype=torch.float64)[None], None)


PROBABILITIES = torch.tensor([0.2, 0.5, 0.3]).log().tolist()


@pytest.mark.parametrize(
    ("settings", "gates"),
    [
        ({}, [5 / 8, 3 / 8]),
        ({"renormalise": False}, [0.5, 0.3]),
        ({"renormalise": False, "scaling": 2.0}, [1.0, 0.6]),
        # Sigmoids of log p are p / (1 + p): 1/3 and 3/13.
        ({"score": "sigmoid", "renormalise": False}, [1 / 3, 3 / 13]),
        ({"score": "sigmoid", "scaling": 2.5}, [2.5 * 13 / 22, 2.5 * 9 / 22]),
    ],
)
def test_gates_by_hand(settings, gates):
    """Probabilities 0.2, 0.5, 0.3: the second and the third are taken."""
    routing = from_logits([PROBABILITIES], 2, **settings)
    assert routing.expert_BTK.tolist() == [[[1, 2]]]
    assert routing.gate_BTK[0, 0].tolist() == pytest.approx(gates, rel=1e-6)


def test_all_experts_are_a_soft_mixture():
    routing = from_logits([[0.3, -1.0, 2.0]], 3)
    expected = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(routing.gate_BTK[0, 0], expected.sort(descending=True).values)


def test_the_bias_chooses_and_does_not_weigh():
    made = router(3, 1, D=1, bias_rate=0.1, renormalise=False)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[0.2], [0.5], [0.3]]).log())
        made.selection_X.copy_(torch.tensor([0.35, 0.0, 0.0]))
    routing = made.route(torch.ones(1, 1, 1, dtype=torch.float64), None)
    assert routing.expert_BTK.item() == 0  # 0.55 against 0.5
    assert routing.gate_BTK.item() == pytest.approx(0.2)


def test_groups_are_judged_by_their_best_or_their_best_two():
    """Two groups of three: the best single expert is in the first, the best two are in the second."""
    logits = [[2.0, -3.0, -3.0, 1.5, 1.4, -3.0]]
    limits = {"num_groups": 2, "groups_per_token": 1}
    assert from_logits(logits, 2, **limits).expert_BTK[0, 0, 0] == 0
    assert from_logits(logits, 2, score="sigmoid", **limits).expert_BTK.tolist() == [[[3, 4]]]


def test_a_token_visits_no_more_groups_than_it_may():
    made = router(12, 4, num_groups=4, groups_per_token=2, score="sigmoid", bias_rate=0.1)
    made.selection_X.normal_(-3.0, 1.0)  # also where all biased scores are negative
    expert_BTK = made.route(tokens(3, 50, 6), None).expert_BTK
    visited = F.one_hot(expert_BTK // 3, 4).amax(-2).sum(-1)
    assert visited.max() == 2


def test_jitter_is_of_training_alone():
    made, x = router(4, 2, jitter=0.1), tokens(2, 9, 6)
    plain = router(4, 2).route(x, None).logits_BTX
    made.eval()
    assert torch.equal(made.route(made.noisy(x), None).logits_BTX, plain)
    made.train()
    noisy = made.route(made.noisy(x), None).logits_BTX
    bound = 0.1 * x.abs() @ made.weight.abs().T
    assert not torch.equal(noisy, plain)
    assert ((noisy - plain).abs() <= bound + 1e-12).all()


def one_expert(length: int, X: int) -> list[list[float]]:
    """Every token wants expert 0 most."""
    return [[5.0] + [0.0] * (X - 1) for _ in range(length)]


def test_earlier_tokens_fill_an_expert():
    """Six tokens, three experts: an even share is 2, and 1.5 times it 3."""
    routing = from_logits(one_expert(6, 3), 1, capacity_factor=1.5)
    assert routing.kept_BTK[0, :, 0].tolist() == [True] * 3 + [False] * 3
    assert from_logits(one_expert(6, 3), 1, capacity=2).kept_BTK.sum() == 2


def test_an_uneven_share_is_rounded_up():
    """Seven tokens, three experts: an even share is 2 and a third."""
    assert from_logits(one_expert(7, 3), 1, capacity_factor=1.0).kept_BTK.sum() == 3
    assert router(3, 1, choice="expert").route(tokens(1, 7, 6), None).kept_BTK.sum(1).tolist() == [[3] * 3]


def test_only_training_is_limited_by_the_factor():
    made, x = router(3, 1, capacity_factor=0.1), tokens(1, 9, 6)
    assert made.route(x, None).kept_BTK.sum() <= 3
    made.eval()
    assert made.route(x, None).kept_BTK is None
    always = router(3, 1, capacity=1).eval()
    assert always.route(x, None).kept_BTK.sum() == len(always.route(x, None).expert_BTK.unique())


@pytest.mark.parametrize("settings", [{"capacity": 2}, {"capacity_factor": 0.7}, {"choice": "expert"}])
def test_each_sequence_fills_experts_of_its_own_and_padding_takes_no_place(settings):
    made, x = router(4, 2, **settings), tokens(3, 11, 6)
    lengths = [11, 6, 1]
    kept = made.route(x, torch.arange(11) < torch.tensor(lengths)[:, None]).kept_BTK
    for row, length in enumerate(lengths):
        alone = made.route(x[row : row + 1, :length], None).kept_BTK
        assert torch.equal(kept[row, :length], alone[0])
        assert not kept[row, length:].any()


@pytest.mark.parametrize("settings", [{"capacity": 2}, {"capacity_factor": 0.7}])
def test_packed_documents_fill_experts_of_their_own(settings):
    made, x, sizes = router(4, 2, **settings), tokens(2, 14, 6), [6, 1, 4]
    documents_T = torch.repeat_interleave(torch.tensor([5, 2, 9, 9]), torch.tensor([*sizes, 3]))
    valid_BT = (torch.arange(14) < sum(sizes)).expand(2, -1)
    kept = made.route(x, valid_BT, documents_T.expand(2, -1)).kept_BTK
    for alone, together in zip(x.split([*sizes, 3], dim=1)[:3], kept.split([*sizes, 3], dim=1), strict=False):
        assert torch.equal(made.route(alone, None).kept_BTK, together)
    assert not kept[:, sum(sizes) :].any()


def test_what_comes_later_fills_no_place_of_what_comes_before():
    made, x = router(4, 2, capacity=3), tokens(1, 12, 6)
    changed = torch.cat([x[:, :7], tokens(1, 20, 6)[:, -5:]], dim=1)
    before, after = (made.route(each, None).kept_BTK for each in (x, changed))
    assert torch.equal(before[:, :7], after[:, :7])
    assert not before.all()


def test_experts_that_choose_take_their_best_tokens():
    """Six tokens, three experts, one expert a token: each takes its best two, a token may have any number."""
    made, x = router(3, 1, choice="expert"), tokens(2, 6, 6)
    routing = made.route(x, None)
    assert routing.kept_BTK.sum(1).tolist() == [[2, 2, 2]] * 2
    best = routing.score_BTX.topk(2, dim=1).indices
    assert routing.kept_BTK.gather(1, best).all()
    torch.testing.assert_close(routing.gate_BTK, routing.score_BTX)


def one_hot_experts(K: int, sharpness: float, **settings: Any) -> Experts:
    """Token x (a unit vector) prefers expert x, and expert x + 1 next."""
    layer = experts(4, K, D=4, **settings)
    with torch.no_grad():
        layer.router.weight.copy_(sharpness * (torch.eye(4) + 0.5 * torch.eye(4).roll(1, dims=0)))
    return layer


@pytest.mark.parametrize("balance", ["sequence", "batch"])
@pytest.mark.parametrize("K", [1, 2])
def test_balance_loss_at_balance_and_at_collapse(K, balance):
    """The coefficient where all experts are used alike, X / K of it where K of them are."""
    unit = torch.eye(4, dtype=torch.float64)
    even = one_hot_experts(K, 5.0, balance=balance)(unit.repeat(2, 1)[None].expand(3, -1, -1))
    assert even[1]["balance"].item() == pytest.approx(3 * 0.01, rel=1e-9)
    collapsed = one_hot_experts(K, 500.0, balance=balance)(unit[:1].expand(3, 8, 4))
    assert collapsed[1]["balance"].item() == pytest.approx(3 * 0.01 * 4 / K, rel=1e-9)


def test_layers_that_collapse_on_different_experts_do_not_make_up_for_each_other():
    """Four such layers have 4 each, where pooling them would find perfect balance, 1."""
    unit = torch.eye(4, dtype=torch.float64)
    values = [
        one_hot_experts(1, 500.0)(unit[index : index + 1].expand(2, 8, 4))[1]["balance"] for index in range(4)
    ]
    assert [v.item() / 2 / 0.01 for v in values] == pytest.approx([4.0] * 4)


def test_a_batch_can_be_balanced_where_its_sequences_are_not():
    """Four sequences, each on an expert of its own."""
    x = torch.eye(4, dtype=torch.float64)[:, None].expand(4, 8, 4)
    assert one_hot_experts(1, 500.0, balance="batch")(x)[1]["balance"].item() == pytest.approx(4 * 0.01)
    assert one_hot_experts(1, 500.0)(x)[1]["balance"].item() == pytest.approx(4 * 0.04)


def test_the_batch_form_is_that_of_switch():
    """Equations 4 to 6 of arXiv 2101.03961, over the valid tokens of the batch, for each sequence."""
    layer, x = experts(4, 1, balance="batch", balance_coefficient=0.3), tokens(3, 9, 6)
    valid = torch.arange(9) < torch.tensor([[9], [4], [1]])
    p = F.linear(x, layer.router.weight).softmax(-1)[valid]
    share = F.one_hot(p.argmax(-1), 4).double().mean(0)
    expected = 3 * 0.3 * 4 * (share * p.mean(0)).sum()
    torch.testing.assert_close(layer(x, padded(valid))[1]["balance"], expected, atol=1e-14, rtol=0)


def test_sigmoids_are_normalised_in_the_balance_loss():
    """At balance it is 1, which sums of sigmoids are not."""
    layer = one_hot_experts(2, 3.0, score="sigmoid")
    x = torch.eye(4, dtype=torch.float64).repeat(2, 1)[None]
    assert layer(x)[1]["balance"].item() == pytest.approx(0.01, rel=1e-9)


@pytest.mark.parametrize(("counts", "expected"), [("chosen", 3 * 0.35), ("affinity", 3 * 0.55)])
def test_a_bias_moves_the_choice_and_not_the_affinities_that_are_counted(counts, expected):
    """DeepSeek-V3, equations 17 to 20: both tokens choose expert 1 by its bias, and have most affinity to 0.

    The mean affinities are 0.55, 0.35 and 0.1, so the loss is 3 times 0.35, or by equation 18 3 times 0.55.
    """
    affinity = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]], dtype=torch.float64)
    settings = {"score": "sigmoid", "bias_rate": 0.1, "balance_counts": counts, "balance_coefficient": 1.0}
    made = router(3, 1, D=2, **settings)
    with torch.no_grad():
        made.weight.copy_(affinity.logit().T)
        made.selection_X.copy_(torch.tensor([-0.3, 0.3, 0.0]))
    routing = made.route(torch.eye(2, dtype=torch.float64)[None], None)
    assert routing.expert_BTK.flatten().tolist() == [1, 1]
    assert router_losses(routing, None, made.config)["balance"].item() == pytest.approx(expected, rel=1e-6)


def test_the_balance_counts_affinities_within_all_groups():
    """A token may visit the second group only, and has most affinity to an expert of the first."""
    affinity = torch.tensor([[0.6, 0.05, 0.4, 0.45]], dtype=torch.float64)
    losses = {}
    for counts in ("chosen", "affinity"):
        made = router(
            4, 1, D=1, score="sigmoid", num_groups=2, balance_counts=counts, balance_coefficient=1.0
        )
        with torch.no_grad():
            made.weight.copy_(affinity.logit().T)
        losses[counts] = router_losses(
            made.route(torch.ones(1, 1, 1, dtype=torch.float64), None), None, made.config
        )["balance"].item()
    assert losses == pytest.approx({"chosen": 4 * 0.45 / 1.5, "affinity": 4 * 0.6 / 1.5}, rel=1e-6)


def test_router_z_loss_by_hand():
    """Mean of the squared log-sum-exp over each sequence's valid tokens."""
    layer, x = experts(4, 2, z_coefficient=0.2), tokens(2, 5, 6)
    valid = torch.arange(5) < torch.tensor([[5], [2]])
    square = F.linear(x, layer.router.weight).logsumexp(-1) ** 2
    expected = 0.2 * (square[0].mean() + square[1, :2].mean())
    torch.testing.assert_close(layer(x, padded(valid))[1]["router_z"], expected, atol=1e-14, rtol=0)
    assert set(experts(4, 2)(x)[1]) == {"balance"}
    assert experts(4, 2, balance_coefficient=0.0)(x)[1] == {}


LOSSES = [{}, {"score": "sigmoid", "z_coefficient": 0.1, "bias_rate": 0.1}, {"capacity_factor": 1.0}]


@pytest.mark.parametrize("settings", LOSSES)
def test_losses_add_up_over_sequences_and_do_not_see_padding(settings):
    layer, x = experts(4, 2, **settings), tokens(6, 9, 6)
    lengths = torch.tensor([9, 4, 1, 9, 7, 2])
    valid = torch.arange(9) < lengths[:, None]
    whole = layer(x, padded(valid))[1]
    for name, value in whole.items():
        parts = [layer(x[a:b], padded(valid[a:b]))[1][name] for a, b in ((0, 1), (1, 4), (4, 6))]
        torch.testing.assert_close(sum(parts), value, atol=1e-14, rtol=0)
        alone = [layer(x[row : row + 1, :length])[1][name] for row, length in enumerate(lengths)]
        torch.testing.assert_close(sum(alone), value, atol=1e-14, rtol=0)
        assert abs(layer(x)[1][name] - value) > 1e-5


def test_the_router_learns_from_the_balance_loss():
    layer = experts(4, 2)
    (gradient,) = torch.autograd.grad(layer(tokens(1, 9, 6))[1]["balance"], layer.router.weight)
    assert (gradient.abs().amax(1) > 0).all()


def train(layer: Experts, x: Tensor, valid: Tensor | None = None) -> None:
    layer(x, None if valid is None else padded(valid))[0].sum().backward()


def test_the_bias_of_a_full_expert_falls():
    """Expert 0 gets most: it falls against the others by twice the rate, and the mean stays zero."""
    layer = experts(4, 1, D=4, bias_rate=0.1)
    with torch.no_grad():
        layer.router.weight.copy_(9 * torch.eye(4))
    x = torch.eye(4, dtype=torch.float64)[[0, 0, 0, 0, 1, 2, 3]][None]
    train(layer, x)
    layer.after_step()
    bias = layer.router.selection_X
    torch.testing.assert_close(bias[1:] - bias[0], torch.full((3,), 0.2, dtype=torch.float64))
    assert bias.sum().abs() < 1e-12


def test_the_bias_evens_the_load_out():
    layer = experts(8, 2, bias_rate=0.004)
    x = tokens(4, 64, 6) + 1.0  # a common part that sends most tokens to the same experts

    def load() -> Tensor:
        return torch.bincount(layer.router.route(x, None).expert_BTK.flatten(), minlength=8)

    before = load().max()
    for _ in range(200):
        train(layer, x)
        layer.after_step()
    assert before > 2 * 64
    assert load().max() < 1.3 * 64


def counted(layer: Experts) -> list[int]:
    assert layer.router.counts_X is not None
    return layer.router.counts_X.tolist()


def test_counts_add_up_over_micro_batches_and_leave_out_padding():
    x = tokens(4, 9, 6)
    valid = torch.arange(9) < torch.tensor([[9], [4], [1], [6]])
    whole, parts = experts(4, 2, bias_rate=0.1), experts(4, 2, bias_rate=0.1)
    train(whole, x, valid)
    for rows in (slice(0, 1), slice(1, 4)):
        train(parts, x[rows], valid[rows])
    assert counted(whole) == counted(parts)
    assert sum(counted(whole)) == 2 * (9 + 4 + 1 + 6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_once(reentrant):
    plain, recomputed = experts(4, 2, bias_rate=0.1), experts(4, 2, bias_rate=0.1)
    x = tokens(2, 9, 6).requires_grad_()
    train(plain, x)
    checkpoint(lambda x: recomputed(x)[0], x, use_reentrant=reentrant).sum().backward()
    assert counted(recomputed) == counted(plain)


def test_evaluation_is_not_counted():
    layer, x = experts(4, 2, bias_rate=0.1), tokens(2, 9, 6)
    layer.eval()
    train(layer, x)
    layer.train()
    with torch.no_grad():
        layer(x)
    layer.after_step()
    assert not layer.router.selection_X.any()


def test_the_bias_is_saved_and_the_counts_are_not():
    layer = experts(4, 2, bias_rate=0.1)
    train(layer, tokens(2, 9, 6))
    layer.after_step()
    other = experts(4, 2, bias_rate=0.1)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.router.selection_X, layer.router.selection_X)
    assert layer.router.selection_X.any()
    assert set(experts(4, 2).state_dict()) == {"router.weight", "gate_XFD", "up_XFD", "down_XDF"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"experts_per_token": 5},
        {"experts_per_token": 0},
        {"num_shared_experts": -1},
        {"d_ff": 0},
        {"score": "tanh"},
        {"choice": "both"},
        {"balance": "layer"},
        {"balance_counts": "all"},
        {"dispatch": "fast"},
        {"shared_gate": True},
        {"num_groups": 3},
        {"groups_per_token": 2},
        {"experts_per_token": 3, "num_groups": 2},
        {"capacity_factor": 0.0},
        {"capacity": 0},
        {"capacity": 2, "capacity_factor": 1.0},
        {"choice": "expert", "bias_rate": 0.1},
        {"choice": "expert", "capacity": 3},
        {"bias_rate": -0.1},
        {"jitter": 1.0},
        {"scaling": 0.0},
        {"z_coefficient": -1.0},
    ],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=rf"experts\.{next(iter(wrong))}="):
        ExpertsConfig(**wrong)
