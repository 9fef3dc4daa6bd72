import itertools
import math

import pytest
import torch

from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.noise_schedules import (
    SCHEDULES,
    NoiseConfig,
    draw_times,
    inverse_weight,
    masked_fraction,
    time_grid,
)
from tests.experiments.objectives import toys

JOINT = toys.Joint()
L = JOINT.LENGTH
CONFIGS = [NoiseConfig(schedule=name) for name in SCHEDULES] + [NoiseConfig(schedule="polynomial", power=0.5)]


def names(config):
    return f"{config.schedule}-{config.power}"


@pytest.mark.parametrize("config", CONFIGS, ids=names)
def test_the_weight_is_the_relative_slope_of_the_masked_fraction(config):
    time_N = torch.linspace(0.01, 0.99, 99, dtype=torch.float64, requires_grad=True)
    share_N = masked_fraction(time_N, config)
    (slope_N,) = torch.autograd.grad(share_N.sum(), time_N)
    torch.testing.assert_close(inverse_weight(time_N, config), share_N / slope_N)
    assert (share_N.diff() > 0).all()


def test_shares_by_hand():
    half = torch.tensor(0.5, dtype=torch.float64)
    expected = {
        "linear": 0.5,
        "polynomial": 0.25,
        "cosine": math.cos(math.pi / 4),
        "geometric": 1 - math.exp(-math.sqrt(1e-5 * 20)),
        "mdlm_cosine": 1 - math.cos(math.pi / 4),
        "mdlm_cosine_squared": 0.5,
        "bd3lm_log": math.log(1.5) / math.log(2),
    }
    assert set(expected) == set(SCHEDULES)
    for name, share in expected.items():
        assert masked_fraction(half, NoiseConfig(schedule=name)).item() == pytest.approx(share)


@pytest.mark.parametrize("config", CONFIGS, ids=names)
def test_the_bound_is_the_likelihood_whatever_the_schedule(config):
    """With the true conditionals, integrated over t by quadrature, for all 81 sequences."""
    masks_MT = torch.cartesian_prod(*[torch.tensor([False, True])] * L)
    target = JOINT.sequences_NT.repeat_interleave(len(masks_MT), 0)
    shown = target.masked_fill(masks_MT.repeat(len(JOINT.sequences_NT), 1), JOINT.task.vocabulary.mask)
    log_p = JOINT.conditionals(shown).gather(-1, target[..., None]).squeeze(-1).log()
    nats_NM = -(log_p.view(-1, len(masks_MT), L) * masks_MT).sum(-1)

    # Midpoints of intervals that grow from time 0, where some weights are steep.
    edge_Q = torch.linspace(0, 1, 20001, dtype=torch.float64) ** 4
    time_Q, width_Q = (edge_Q[1:] + edge_Q[:-1]) / 2, edge_Q.diff()
    share_Q1 = masked_fraction(time_Q, config)[:, None]
    count_M = masks_MT.sum(1)
    mask_QM = share_Q1**count_M * (1 - share_Q1) ** (L - count_M)
    weight_M = (width_Q / inverse_weight(time_Q, config)) @ mask_QM
    # The geometric schedule never masks less than a hundred-thousandth.
    torch.testing.assert_close(nats_NM @ weight_M, JOINT.nats_N, atol=4e-4, rtol=0)


TIMES = ["shared_offset", "antithetic", "independent", "shared_offset", "antithetic"]


@pytest.mark.parametrize(("config", "times"), list(zip(CONFIGS, itertools.cycle(TIMES))), ids=str)
def test_both_estimators_and_the_training_loss_are_unbiased(config, times):
    noise = NoiseConfig(schedule=config.schedule, power=config.power, times=times)
    model, batch = JOINT.model(), toys.whole(JOINT.sequences_NT.repeat(20, 1))
    for estimator in ("fixed_count", "time"):
        objective = MaskedDiffusion(
            MaskedDiffusionConfig(noise=noise, estimator=estimator, evaluation_samples=3), JOINT.task
        )
        nats_BS = objective.estimates(model, batch, toys.generators(len(batch.tokens_BT), seed=7))
        toys.assert_unbiased(nats_BS.mean(1), JOINT.nats_N.repeat(20))
    trained = MaskedDiffusion(MaskedDiffusionConfig(noise=noise, min_time=1e-6), JOINT.task)
    losses = []
    for seed in range(20):
        view = trained.view(batch, torch.Generator().manual_seed(seed))
        losses.append(trained.loss(view.run(model), view)[0] / batch.tokens_BT.numel())
    toys.assert_unbiased(torch.stack(losses).double(), JOINT.nats_N.mean() / L)


def test_the_fixed_count_estimate_varies_less_than_that_over_times():
    model, batch = JOINT.model(), toys.whole(JOINT.sequences_NT.repeat(40, 1))
    spread = {}
    for estimator in ("fixed_count", "time"):
        config = MaskedDiffusionConfig(estimator=estimator, evaluation_samples=1)
        nats_B1 = MaskedDiffusion(config, JOINT.task).estimates(
            model, batch, toys.generators(len(batch.tokens_BT))
        )
        spread[estimator] = (nats_B1[:, 0] - JOINT.nats_N.repeat(40)).std()
    assert spread["fixed_count"] < 0.5 * spread["time"]


def test_the_stated_error_is_that_of_repeated_estimates():
    """Sequences drawn anew many times: the spread of the means is at most what a single evaluation says."""
    config = MaskedDiffusionConfig(evaluation_samples=4)
    objective, batch = MaskedDiffusion(config, JOINT.task), toys.whole(JOINT.sequences_NT)
    model, means, stated = JOINT.model(), [], []
    for seed in range(60):
        score = objective.likelihood_score(model, batch, toys.generators(81, seed=seed))
        means.append(score.nats_B.sum())
        stated.append(objective.summarise(score.records, "test")[0].value * math.log(2) * 81 * L)
    spread = torch.stack(means).std()
    assert 0.3 * torch.tensor(stated).mean() < spread < 1.3 * torch.tensor(stated).mean()


def test_times_are_spread_and_bounded():
    generator = torch.Generator().manual_seed(0)
    for times in ("shared_offset", "antithetic"):
        time_N = draw_times(50, 0.2, NoiseConfig(times=times, max_time=0.7), generator)
        assert sorted(((time_N - 0.2) / 0.5 * 50).double().sub(1e-6).floor().int().tolist()) == list(
            range(50)
        ), times
    time_N = draw_times(20_000, 0.2, NoiseConfig(times="independent", max_time=0.7), generator)
    assert 0.2 <= time_N.min() < 0.201
    assert 0.699 < time_N.max() <= 0.7
    assert abs(time_N.mean() - 0.45) < 4 * 0.5 / math.sqrt(12 * 20_000)


@pytest.mark.parametrize("config", CONFIGS, ids=names)
def test_the_grid_runs_from_everything_to_nothing(config):
    share_K = time_grid(7, config)
    assert (share_K[0], share_K[-1]) == (1, 0)
    assert (share_K.diff() < 0).all()
    torch.testing.assert_close(share_K[3], masked_fraction(torch.tensor(4 / 7, dtype=torch.float64), config))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"times": "uniform"}, "noise.times='uniform'"),
        ({"power": 0.0}, "noise.power=0.0"),
        ({"sigma_min": 30.0}, "noise.sigma_min=30.0"),
        ({"max_time": 1.5}, "noise.max_time=1.5"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NoiseConfig(**settings)
