"""The exact likelihood of samplers with one path: 81 sequences, under a model whose orders disagree."""

import dataclasses
import itertools
import math

import pytest
import torch

from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.path_likelihood import PathLikelihood
from archbench.experiments.objectives.diffusion.unmasking_schedule import (
    DETERMINISTIC_ORDERS,
    UnmaskingConfig,
)
from tests.experiments.objectives import toys

JOINT = toys.Joint()
L, S = JOINT.LENGTH, JOINT.SYMBOLS
VOCABULARY = JOINT.task.vocabulary
TEXTS = toys.whole(JOINT.sequences_NT)


MODEL = toys.Rule(VOCABULARY.size, JOINT.sharpened)


def trained(steps=L, **filling):
    config = MaskedDiffusionConfig(sampling_steps=steps, filling=UnmaskingConfig(**filling))
    return MaskedDiffusion(config, JOINT.task)


def path_nats(model=MODEL, batch=TEXTS, **settings):
    path = PathLikelihood(trained(**settings))
    return path.evaluate(model, batch, toys.generators(len(batch.tokens_BT))).nats_B


def entropy_path(text, steps):
    """-log p of a text, one position after the other, written out for the order by entropy."""
    shown, nats = torch.full((1, L), VOCABULARY.mask), 0.0
    for remaining in range(steps, 0, -1):
        p_TV = JOINT.sharpened(shown)[0, :, :S].softmax(-1)
        masked = [t for t in range(L) if shown[0, t] == VOCABULARY.mask]
        entropy_T = -(p_TV * p_TV.log()).sum(-1)
        count = math.ceil(len(masked) / remaining)
        for t in sorted(masked, key=lambda t: entropy_T[t].item())[:count]:
            nats -= p_TV[t, text[t]].log().item()
            shown[0, t] = text[t]
    return nats


WAYS = [
    *({"order": order, "steps": steps} for order in DETERMINISTIC_ORDERS for steps in (1, 2, 4)),
    {"order": "entropy", "steps": 2, "block_length": 2},
    {"order": "largest_probability", "threshold": 0.5},
    {"order": "margin", "steps": 3, "guidance": 0.5},
]


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_the_probabilities_of_all_texts_add_up_to_one(how):
    assert (-path_nats(**how)).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_orders_and_numbers_of_steps_define_different_distributions():
    nats_HN = torch.stack([path_nats(**how) for how in WAYS[:12]])
    for one, other in [*itertools.combinations(range(3), 2), (7, 8), (10, 11), (7, 10), (8, 11)]:
        assert (nats_HN[one] - nats_HN[other]).abs().max() > 0.05
    for one in (3, 6, 9):
        torch.testing.assert_close(nats_HN[one], nats_HN[0])  # everything at once: no order


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_the_path_by_entropy_is_that_of_a_loop(steps):
    expected_N = torch.tensor([entropy_path(text, steps) for text in JOINT.sequences_NT.tolist()])
    torch.testing.assert_close(
        path_nats(order="entropy", steps=steps), expected_N.double(), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("how", [WAYS[2], WAYS[4], *WAYS[12:14]], ids=str)
def test_samples_have_exactly_this_distribution(how):
    count = 4000
    found = trained(**how).sample(
        MODEL,
        [[]] * count,
        max_tokens=L,
        generators=toys.generators(count, seed=3),
        sampling=SamplingConfig(),
    )
    weights = torch.tensor([S**place for place in reversed(range(L))])
    found_N = torch.bincount(torch.tensor(found) @ weights, minlength=S**L)
    expected_N = count * (-path_nats(**how)).exp()
    rare_N = expected_N < 5
    pairs = [(found_N[~rare_N], expected_N[~rare_N]), (found_N[rare_N].sum(), expected_N[rare_N].sum())]
    chi_square = sum(((found - expected) ** 2 / expected).sum().item() for found, expected in pairs)
    freedom = int((~rare_N).sum())
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("order", DETERMINISTIC_ORDERS)
def test_with_the_true_conditionals_every_order_gives_the_likelihood(order):
    model = JOINT.model(mask_logit=5.0)
    torch.testing.assert_close(path_nats(model, order=order), JOINT.nats_N, atol=1e-5, rtol=0)
    together_N = path_nats(model, order=order, steps=2)
    assert (together_N - JOINT.nats_N).abs().max() > 0.05  # tokens of one step are independent
    assert (JOINT.probability.flatten() * (together_N - JOINT.nats_N)).sum() > 0


def test_left_to_right_is_the_chain_rule_and_says_where_the_nats_are():
    path = PathLikelihood(trained(order="left_to_right"))
    score = path.evaluate(MODEL, TEXTS, toys.generators(S**L))
    for t in range(L):
        shown = JOINT.sequences_NT.clone()
        shown[:, t:] = VOCABULARY.mask
        p_N = JOINT.sharpened(shown)[:, t, :S].softmax(-1).gather(1, JOINT.sequences_NT[:, t : t + 1])[:, 0]
        torch.testing.assert_close(score.by_token.nats_BT[:, t], -p_N.log(), atol=1e-4, rtol=0)
    torch.testing.assert_close(score.by_token.nats_BT.sum(1), score.nats_B)
    assert (score.by_token.tokens_BT == 1).all()
    assert score.bytes_B.eq(L).all()
    assert path.likelihood.kind == "exact"
    assert path.likelihood.estimator == "along the path of a sampler (left_to_right, 4 steps)"


def test_the_context_of_a_window_stays_and_rows_may_score_different_counts():
    tokens = JOINT.sequences_NT
    answer = torch.ones_like(tokens, dtype=torch.bool)
    answer[::2, 0] = False
    answer[::3, 2] = False
    nats_N = path_nats(JOINT.model(), dataclasses.replace(TEXTS, answer_BT=answer), order="margin")
    for row, (text, scored) in enumerate(zip(tokens.tolist(), answer.tolist(), strict=True)):
        given = tuple(slice(None) if s else t for s, t in zip(scored, text, strict=True))
        expected = JOINT.nats_N[row] + JOINT.probability[given].sum().log()
        assert nats_N[row].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("filling", "message"),
    [
        ({}, "filling.order=low_confidence"),
        ({"order": "random"}, "filling.order=random"),
        ({"method": "ancestral"}, "filling.method=ancestral"),
        ({"order": "entropy", "threshold": 0.5}, "filling.threshold=0.5 with filling.order=entropy"),
    ],
)
def test_samplers_with_many_paths_are_refused(filling, message):
    with pytest.raises(ValueError, match=message):
        PathLikelihood(trained(**filling))
