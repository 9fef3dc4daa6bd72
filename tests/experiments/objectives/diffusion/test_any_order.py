"""Any-order autoregression against all 24 orders of four tokens of three symbols."""

import itertools
import math

import pytest
import torch

from archbench.experiments.objectives.diffusion.any_order import AnyOrder, AnyOrderConfig
from archbench.experiments.objectives.diffusion.block_diffusion import BlockDiffusionConfig
from archbench.experiments.objectives.diffusion.noise_schedules import NoiseConfig
from tests.experiments.objectives import toys

JOINT = toys.Joint()
L, S = JOINT.LENGTH, JOINT.SYMBOLS
VOCABULARY = JOINT.task.vocabulary
TEXTS = toys.whole(JOINT.sequences_NT)


MODEL = toys.Rule(VOCABULARY.size, JOINT.sharpened)


def objective(task=JOINT.task, **settings):
    return AnyOrder(AnyOrderConfig(**settings), task)


def order_nats(order):
    """-log p (81,) of every text by the chain rule in one order."""
    shown, nats_N = torch.full_like(JOINT.sequences_NT, VOCABULARY.mask), 0.0
    for t in order:
        log_p_N = (
            JOINT.sharpened(shown)[:, t, :S].log_softmax(-1).gather(1, JOINT.sequences_NT[:, t : t + 1])[:, 0]
        )
        nats_N = nats_N - log_p_N
        shown[:, t] = JOINT.sequences_NT[:, t]
    return nats_N


NATS_NO = torch.stack([order_nats(order) for order in itertools.permutations(range(L))], dim=1)
BOUND_N = NATS_NO.mean(1)


def scores(estimator, samples, repeats, seed=0, model=MODEL):
    batch = toys.whole(JOINT.sequences_NT.repeat(repeats, 1))
    given = toys.generators(len(batch.tokens_BT), seed=seed)
    return objective(estimator=estimator, evaluation_samples=samples).likelihood_score(model, batch, given)


def test_each_order_is_a_distribution_and_the_bound_is_above_their_mixture():
    torch.testing.assert_close((-NATS_NO).exp().sum(0), torch.ones(24, dtype=torch.float64))
    mixture_N = -(NATS_NO.neg().logsumexp(1) - math.log(24))
    assert (mixture_N <= BOUND_N).all()
    assert (BOUND_N - mixture_N).max() > 0.1


def test_a_permutation_scores_the_likelihood_of_one_order():
    nats_B = scores("permutation", 1, repeats=40).nats_B
    nearest_B = (NATS_NO.repeat(40, 1) - nats_B[:, None]).abs().argmin(1)
    chosen_B = NATS_NO.repeat(40, 1).gather(1, nearest_B[:, None])[:, 0]
    torch.testing.assert_close(nats_B, chosen_B, atol=1e-4, rtol=0)
    assert nats_B.view(40, -1).round(decimals=3)[:, 0].unique().numel() > 10


@pytest.mark.parametrize(
    ("estimator", "samples"), [("permutation", 1), ("permutation", 2), ("fixed_count", 2)]
)
def test_the_mean_over_permutations_is_the_bound_of_masked_diffusion(estimator, samples):
    score = scores(estimator, samples, repeats=40, seed=5)
    toys.assert_unbiased(score.nats_B, BOUND_N.repeat(40))
    toys.assert_unbiased(score.by_token.nats_BT.sum(1), BOUND_N.repeat(40))


def test_permutations_vary_less_than_counts_of_masks():
    deviations = [
        (scores(estimator, 1, repeats=40).nats_B - BOUND_N.repeat(40)).std()
        for estimator in ("permutation", "fixed_count", "time")
    ]
    assert 2 * deviations[0] < deviations[1] < deviations[2]


def test_with_the_true_conditionals_every_permutation_is_the_likelihood():
    score = scores("permutation", 2, repeats=1, model=JOINT.model(mask_logit=5.0))
    torch.testing.assert_close(score.nats_B, JOINT.nats_N, atol=1e-5, rtol=0)
    assert objective(estimator="permutation").likelihood.kind == "bound"


def test_the_training_loss_has_the_mean_of_all_orders():
    batch, losses = toys.whole(JOINT.sequences_NT.repeat(4, 1)), []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        shuffled = toys.whole(batch.tokens_BT[torch.randperm(len(batch.tokens_BT), generator=generator)])
        view = objective().view(shuffled, generator)
        total, count = objective().loss(view.run(MODEL), view)
        assert count == batch.tokens_BT.numel()
        losses.append(total / count)
    toys.assert_unbiased(torch.stack(losses).double(), BOUND_N.mean() / L)


def test_counts_of_masks_are_spread_over_the_batch():
    task = toys.Symbols(20)
    batch = toys.random_text(12, 12, 20)
    view = objective(task).view(batch, torch.Generator().manual_seed(0))
    masks_B = (view.tokens_BT == task.vocabulary.mask).sum(1)
    assert masks_B.tolist() == list(range(1, 13))
    torch.testing.assert_close(view.weight_BT.sum(1), torch.full((12,), 12.0))
    torch.testing.assert_close(view.time_B, masks_B / 12)
    other = objective(task).view(batch, torch.Generator().manual_seed(1))
    assert not torch.equal(other.tokens_BT, view.tokens_BT)


@pytest.mark.parametrize(
    "settings",
    [
        {"min_time": 0.1},
        {"noise": NoiseConfig(max_time=0.5)},
        {"noise": NoiseConfig(times="independent")},
    ],
)
def test_settings_of_times_are_refused(settings):
    with pytest.raises(ValueError, match="draws numbers of masks, not times"):
        AnyOrderConfig(**settings)
    AnyOrderConfig(noise=NoiseConfig(schedule="cosine"))


def test_blocks_have_no_permutations():
    with pytest.raises(ValueError, match="estimator=permutation"):
        BlockDiffusionConfig(estimator="permutation")
