"""Uniform-state diffusion against bounds and samplers that are enumerated with transition matrices.

Two positions, two symbols and three special tokens that noise can also become: 25 noisy states.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig
from archbench.experiments.objectives.diffusion.noise_schedules import (
    NoiseConfig,
    inverse_weight,
    masked_fraction,
)
from archbench.experiments.objectives.diffusion.uniform_diffusion import (
    UniformDiffusion,
    UniformDiffusionConfig,
)
from archbench.experiments.objectives.diffusion.unmasking_schedule import UnmaskingConfig
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

TASK = toys.Symbols(2)
MASK, V = TASK.vocabulary.mask, TASK.vocabulary.size
STATES = [token for token in range(V) if token != MASK]
N = len(STATES)
TEXTS_X2 = torch.cartesian_prod(torch.arange(2), torch.arange(2))
NOISY_Z2 = torch.cartesian_prod(torch.tensor(STATES), torch.tensor(STATES))
P_X = torch.tensor([0.4, 0.05, 0.15, 0.4], dtype=torch.float64)
NOISE = NoiseConfig(schedule="cosine")


class Timed(toys.Rule):
    """A rule that also reads the noised fraction."""

    takes_time = True

    def compute(self, inputs):
        self.time_B = inputs.time_B.double()
        return super().compute(inputs)


def kernel(alpha):
    """Transition matrix (N, N) of noise that keeps a token with probability alpha, and else draws one."""
    return alpha * torch.eye(N, dtype=torch.float64) + (1 - alpha) / N


def exact_model():
    """p(x_i | the other noisy tokens): with it the reverse process is exact."""

    def rule(tokens_BT):
        alpha_B = 1 - model.time_B
        kernel_B55 = alpha_B[:, None, None] * torch.eye(N) + (1 - alpha_B[:, None, None]) / N
        index_BT = torch.tensor([STATES.index(t) for t in tokens_BT.flatten().tolist()]).view_as(tokens_BT)
        noisy_BT2 = torch.stack(
            [kernel_B55[torch.arange(len(index_BT)), :2, index_BT[:, t]] for t in range(2)], dim=1
        )
        joint_22 = P_X.view(2, 2)
        first_B2 = noisy_BT2[:, 1] @ joint_22.T
        second_B2 = noisy_BT2[:, 0] @ joint_22
        p_BT2 = torch.stack([first_B2, second_B2], dim=1)
        logits_BTV = torch.full((*tokens_BT.shape, V), -1e4, dtype=torch.float64)
        logits_BTV[..., :2] = (p_BT2 / p_BT2.sum(-1, keepdim=True)).log()
        logits_BTV[..., MASK] = 5.0  # must never count
        return logits_BTV

    model = Timed(V, rule)
    return model


def wrong_model():
    """Any predictions, that change with the noisy tokens and the time; special tokens are unlikely."""
    table_25 = torch.randn(V, V, 2, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def rule(tokens_BT):
        logits_BTV = table_25[tokens_BT[:, 0], tokens_BT[:, 1]] * (0.5 + model.time_B[:, None, None])
        logits_BTV[..., 2:] -= 2.0
        logits_BTV[..., MASK] = 5.0  # must never count
        return logits_BTV

    model = Timed(V, rule)
    return model


def objective(task=TASK, noise=NOISE, **settings):
    return UniformDiffusion(UniformDiffusionConfig(noise=noise, **settings), task)


def predictions(model, fraction):
    """p (25, 2, N) of clean tokens for each noisy text."""
    time_Z = torch.full((len(NOISY_Z2),), fraction, dtype=torch.float64)
    with torch.no_grad():
        logits_ZTV = model(NOISY_Z2, time_B=time_Z).logits_BTV
    return logits_ZTV[..., STATES].softmax(-1)


def noisy_probabilities(alpha):
    """q(z | x), (4, 25)."""
    q_X2N = kernel(alpha)[TEXTS_X2]
    return torch.einsum("xa,xb->xab", q_X2N[:, 0], q_X2N[:, 1]).flatten(1)


def reverse_kernel(p_ZTN, alpha_t, alpha_s):
    """p(z_s | z_t) at each position, (25, 2, N), by Bayes' rule for a clean token drawn from p."""
    step_NN, clean_NN = kernel(alpha_t / alpha_s), kernel(alpha_s)
    index_Z2 = torch.tensor([[STATES.index(t) for t in row] for row in NOISY_Z2.tolist()])
    joint_Z2N = step_NN[:, index_Z2].permute(1, 2, 0) * (p_ZTN @ clean_NN)
    return joint_Z2N / (p_ZTN @ kernel(alpha_t)).gather(-1, index_Z2[..., None])


def discrete_bound(model, steps):
    """The bound (4,) of a sampler of so many steps: the sum of its KL divergences, by enumeration."""
    fraction_K = masked_fraction(torch.linspace(0, 1, steps + 1, dtype=torch.float64), NOISE)
    one_hot_XTN = torch.nn.functional.one_hot(TEXTS_X2, N).double()
    total_X = torch.zeros(len(TEXTS_X2), dtype=torch.float64)
    for before, after in itertools.pairwise((1 - fraction_K).tolist()):  # alpha(s) > alpha(t)
        model_Z2N = reverse_kernel(predictions(model, 1 - after), after, before)
        q_XZ = noisy_probabilities(after)
        for x in range(len(TEXTS_X2)):
            true_Z2N = reverse_kernel(one_hot_XTN[x].expand(len(NOISY_Z2), -1, -1), after, before)
            kl_Z = torch.special.xlogy(true_Z2N, true_Z2N / model_Z2N).sum((1, 2))
            total_X[x] += (q_XZ[x] * kl_Z).sum()
    return total_X


def integrand(model, time):
    """The expected nats (4,) of the objective at a time, by enumeration of the noisy texts."""
    time_1 = torch.tensor([time], dtype=torch.float64)
    fraction = masked_fraction(time_1, NOISE)
    nats_X = torch.zeros(len(TEXTS_X2), dtype=torch.float64)
    q_XZ = noisy_probabilities(1 - fraction.item())
    for x, text in enumerate(TEXTS_X2):
        batch = toys.whole(text.expand(len(NOISY_Z2), -1))
        view = objective()._uniform_view(
            batch, time_1.expand(len(NOISY_Z2)), torch.rand(25, 2), torch.rand(25, 2)
        )
        view = dataclasses.replace(view, tokens_BT=NOISY_Z2)
        nats_X[x] = (q_XZ[x] * objective().nats(view.run(model), view).double().sum(1)).sum()
    return nats_X


def continuous_bound(model, nodes=40):
    """The integral of the integrand over time, (4,): Gauss-Legendre in u, t = u^2, for the logarithm at 0."""
    node_K, weight_K = np.polynomial.legendre.leggauss(nodes)
    u_K = (node_K + 1) / 2
    parts = [w * u * integrand(model, u * u) for u, w in zip(u_K.tolist(), weight_K.tolist(), strict=True)]
    return torch.stack(parts).sum(0)


def test_with_exact_predictions_the_bound_is_the_likelihood():
    torch.testing.assert_close(continuous_bound(exact_model()), -P_X.log(), atol=2e-4, rtol=0)


def test_the_bound_is_the_limit_of_those_of_many_steps():
    bounds = [discrete_bound(wrong_model(), steps) for steps in (100, 200, 400)]
    limit_X = (
        bounds[0] - 6 * bounds[1] + 8 * bounds[2]
    ) / 3  # Richardson, errors of 1 / steps and its square
    assert (bounds[2] - limit_X).abs().max() > 1e-3
    torch.testing.assert_close(continuous_bound(wrong_model()), limit_X, atol=5e-4, rtol=0)


def chain(model, steps, allowed=tuple(range(2))):
    """The distribution (4,) of what the sampler gives, and of all noisy states."""
    fraction_K = masked_fraction(torch.linspace(1, 0, steps + 1, dtype=torch.float64), NOISE)
    state_Z = torch.full((len(NOISY_Z2),), 1 / len(NOISY_Z2), dtype=torch.float64)
    for before, after in itertools.pairwise(fraction_K.tolist()):
        p_ZTN = predictions(model, before)
        keep_N = torch.tensor([float(token in allowed) for token in STATES])
        p_ZTN = p_ZTN * keep_N / (p_ZTN * keep_N).sum(-1, keepdim=True)
        q_ZTN = reverse_kernel(p_ZTN, 1 - before, 1 - after)
        state_Z = torch.einsum("z,za,zb->ab", state_Z, q_ZTN[:, 0], q_ZTN[:, 1]).flatten()
    return state_Z.view(N, N)[:2, :2].flatten()


def total_variation(p_X):
    return (p_X - P_X).abs().sum().item() / 2


def test_the_error_of_the_sampler_halves_as_steps_double():
    distances = [total_variation(chain(exact_model(), steps)) for steps in (8, 16, 32, 64)]
    assert distances[0] > 0.01
    for coarse, fine in itertools.pairwise(distances):
        assert 1.8 < coarse / fine < 2.3


@pytest.mark.parametrize(("model", "steps"), [(exact_model, 2), (exact_model, 6), (wrong_model, 5)])
def test_samples_have_exactly_the_distribution_of_their_steps(model, steps):
    count = 8000
    found = objective(sampling_steps=steps).sample(
        model(), [[]] * count, max_tokens=2, generators=toys.generators(count), sampling=SamplingConfig()
    )
    found_X = torch.bincount(torch.tensor(found) @ torch.tensor([2, 1]), minlength=4)
    expected_X = count * chain(model(), steps)
    assert expected_X.sum().item() == pytest.approx(count)
    assert ((found_X - expected_X) ** 2 / expected_X).sum() < 3 + 4 * math.sqrt(6)
    if model is exact_model and steps == 2:
        assert ((found_X - count * P_X) ** 2 / (count * P_X)).sum() > 30


def test_the_bound_is_above_what_the_sampler_assigns():
    bound_X = discrete_bound(wrong_model(), 50)
    nats_X = -chain(wrong_model(), 50, allowed=STATES).log()
    assert (bound_X > nats_X + 0.01).all()


@pytest.mark.parametrize("samples", [1, 3])
def test_the_estimate_is_unbiased(samples):
    batch = toys.whole(TEXTS_X2.repeat(1500, 1))
    given = toys.generators(len(batch.tokens_BT), seed=samples)
    score = objective(evaluation_samples=samples).likelihood_score(wrong_model(), batch, given)
    toys.assert_unbiased(score.nats_B, continuous_bound(wrong_model()).repeat(1500))
    torch.testing.assert_close(score.by_token.nats_BT.sum(1), score.nats_B)
    assert (score.bytes_B == 2).all()
    assert objective().likelihood.kind == "bound"
    assert objective().likelihood.estimator.endswith("uniform noise")


def test_the_training_loss_has_the_same_mean():
    batch, losses = toys.whole(TEXTS_X2.repeat(50, 1)), []
    trained = objective(min_time=1e-5)
    for seed in range(60):
        view = trained.view(batch, torch.Generator().manual_seed(seed))
        total, count = trained.loss(view.run(wrong_model()), view)
        assert count == batch.tokens_BT.numel()
        losses.append(total / count)
    toys.assert_unbiased(torch.stack(losses).double(), continuous_bound(wrong_model()).mean() / 2)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "polynomial"])
def test_a_uniform_model_pays_the_log_of_the_vocabulary_without_the_mask_token(schedule):
    task = toys.Symbols(20)
    model, batch = toys.uniform_model(task.vocabulary), toys.random_text(256, 64, 20)
    how = objective(task, noise=NoiseConfig(schedule=schedule), evaluation_samples=8)
    score = how.likelihood_score(model, batch, toys.generators(256))
    nats = math.log(task.vocabulary.size - 1)
    toys.assert_unbiased(score.nats_B / 64, nats)


def test_tokens_are_replaced_by_all_but_the_mask_token_and_the_model_is_told_how_many():
    task = toys.Symbols(20)
    batch = toys.random_text(64, 200, 20)
    view = objective(task).view(batch, torch.Generator().manual_seed(0))
    assert set(view.tokens_BT.unique().tolist()) == set(range(task.vocabulary.size)) - {task.vocabulary.mask}
    changed_B = (view.tokens_BT != batch.tokens_BT).float().mean(1)
    expected_B = view.time_B * (1 - 1 / (task.vocabulary.size - 1))
    assert ((changed_B - expected_B).abs() < 5 * (expected_B * (1 - expected_B) / 200).sqrt() + 0.01).all()
    time_B = torch.asin(view.time_B.double()) * 2 / math.pi
    rate_B = masked_fraction(time_B, NOISE) / inverse_weight(time_B, NOISE)
    torch.testing.assert_close(view.weight_BT[:, 0].double(), rate_B, rtol=1e-3, atol=1e-3)


def test_of_a_probe_only_answers_are_noised():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 64)
    how = objective(task)
    view = how.view(batch, torch.Generator().manual_seed(0))
    assert not ((view.tokens_BT != batch.tokens_BT) & ~batch.answer_BT).any()
    assert (view.tokens_BT != batch.tokens_BT).any()
    assert (view.count_B == 4).all()
    assert how.with_scored_positions(view).scored_BT is None
    shown = how.answer_view(batch)
    assert torch.equal(shown.weight_BT, batch.answer_BT.float())
    assert not ((shown.tokens_BT != batch.context_BT) & ~batch.answer_BT).any()
    alone = how.answer_view(task.batch("train", 0, 5, 1))
    assert torch.equal(alone.tokens_BT[0], shown.tokens_BT[5])


def test_samples_keep_their_prompts_and_depend_on_their_generator_alone():
    task, model = toys.Symbols(20), toys.build("masked_diffusion", 24)
    given, how = [[1, 2, 3], [], [4, 5, 6, 7]], objective(task, sampling_steps=5)

    def sample(rows, sampling):
        own = [toys.generators(3)[row] for row in rows]
        return how.sample(
            model, [given[row] for row in rows], max_tokens=9, generators=own, sampling=sampling, stop={3}
        )

    for sampling in (SamplingConfig(), SamplingConfig(temperature=0.5, top_k=3), GREEDY):
        found = sample([0, 1, 2], sampling)
        assert found == [sample([row], sampling)[0] for row in range(3)]
        assert all(token < 20 for row in found for token in row)
    blanks = [[task.vocabulary.mask, 3, 4, task.vocabulary.mask], [5, task.vocabulary.mask]]
    filled = how.infill(model, blanks, generators=toys.generators(2), sampling=SamplingConfig())
    assert (filled[0][1:3], filled[1][0]) == ([3, 4], 5)
    assert all(token < 20 for row in filled for token in row)
    with pytest.raises(ConfigError, match="repetition_penalty"):
        sample([0], SamplingConfig(repetition_penalty=1.2))


def test_settings_of_masks_are_refused():
    with pytest.raises(ValueError, match="only estimator=time"):
        UniformDiffusionConfig(estimator="fixed_count")
    with pytest.raises(ValueError, match="leave out filling"):
        UniformDiffusionConfig(filling=UnmaskingConfig(method="ancestral"))
    how = objective()
    how.override_unmasking(steps=7)
    assert how.steps == 7
    with pytest.raises(ValueError, match=r"filling.order: .* only filling.steps"):
        how.override_unmasking(order="random")
