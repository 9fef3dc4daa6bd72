"""Likelihoods and samplers of trained models, whose conditionals are of no joint distribution.

Four tokens of three symbols, from a Markov chain of 81 texts with 2.58 nats; for uniform noise two tokens of
two symbols with 1.17 nats.
"""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones import masked_diffusion as backbone
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.diffusion.any_order import AnyOrder, AnyOrderConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.path_likelihood import PathLikelihood
from archbench.experiments.objectives.diffusion.unmasking_schedule import (
    DETERMINISTIC_ORDERS,
    UnmaskingConfig,
)
from tests.experiments.objectives import toys
from tests.experiments.objectives.diffusion import test_uniform_diffusion as uniform

pytestmark = pytest.mark.full

L, S = 4, 3
TASK = toys.Symbols(S)
MASK, VOCABULARY = TASK.vocabulary.mask, TASK.vocabulary.size
TEXTS_NT = torch.cartesian_prod(*[torch.arange(S)] * L)
FIRST_S = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
NEXT_SS = torch.tensor([[0.85, 0.1, 0.05], [0.05, 0.85, 0.1], [0.1, 0.05, 0.85]], dtype=torch.float64)
P_N = torch.einsum("a,ab,bc,cd->abcd", FIRST_S, NEXT_SS, NEXT_SS, NEXT_SS).flatten()
ENTROPY = -(P_N * P_N.log()).sum().item()
OBJECTIVES = {
    "masked_diffusion": MaskedDiffusion(MaskedDiffusionConfig(), TASK),
    "any_order": AnyOrder(AnyOrderConfig(), TASK),
}


def train(objective: MaskedDiffusion, texts_NT: Tensor, p_N: Tensor, steps: int, **settings: Any) -> Backbone:
    """Train a model on texts drawn with probabilities ``p_N``."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    config = backbone.MaskedDiffusionConfig(d_model=32, **settings)
    model = backbone.MaskedDiffusion(config, vocab_size=objective.vocabulary.size, max_length=L)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(steps):
        rows = torch.multinomial(p_N, 128, replacement=True, generator=generator)
        view = objective.view(toys.whole(texts_NT[rows]), generator)
        total, count = objective.loss(view.run(model), view)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@functools.cache
def trained(name: str) -> Backbone:
    return train(OBJECTIVES[name], TEXTS_NT, P_N, steps=150)


@torch.no_grad()
def bound(model: Backbone) -> float:
    """The mean over texts of the bound: over all numbers l of masks, all masks of l tokens weigh L / l."""
    total = 0.0
    for masked in itertools.product([False, True], repeat=L):
        if masks := sum(masked):
            shown_NT = TEXTS_NT.masked_fill(torch.tensor(masked), MASK)
            logits_NTV = model(shown_NT).logits_BTV.double()
            logits_NTV[..., MASK] = -torch.inf
            nats_NT = -logits_NTV.log_softmax(-1).gather(-1, TEXTS_NT[..., None])[..., 0]
            mean = (P_N @ nats_NT)[torch.tensor(masked)].sum().item() / math.comb(L, masks)
            total += mean / masks
    return total


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_exact_likelihood_of_a_path_is_better_than_the_bound(name: str) -> None:
    model = trained(name)
    tokens = [token for token in range(VOCABULARY) if token != MASK]
    everything = torch.cartesian_prod(*[torch.tensor(tokens)] * L)
    assert ENTROPY < bound(model) < ENTROPY + 0.15
    for order in DETERMINISTIC_ORDERS:
        filling = UnmaskingConfig(order=order)
        path = PathLikelihood(MaskedDiffusion(MaskedDiffusionConfig(sampling_steps=L, filling=filling), TASK))

        def nats(texts_NT: Tensor, path: PathLikelihood = path) -> Tensor:
            score = path.evaluate(model, toys.whole(texts_NT), toys.generators(len(texts_NT)))
            assert score.nats_B is not None
            return score.nats_B

        assert (-nats(everything)).exp().sum().item() == pytest.approx(1, abs=1e-4)
        assert ENTROPY < (P_N @ nats(TEXTS_NT)).item() < bound(model)


def sampled(rate: float) -> tuple[float, float]:
    """Of samples of a loop that masks tokens again at a rate: distance to the truth, and their mean nats."""
    count, loop = 1500, [0.9, 0.1, 0.75]
    filling = UnmaskingConfig(
        method="ancestral", remasking="capped", remasking_rate=rate, remasking_loop=loop
    )
    texts = MaskedDiffusion(MaskedDiffusionConfig(sampling_steps=24, filling=filling), TASK).sample(
        trained("masked_diffusion"),
        [[]] * count,
        max_tokens=L,
        generators=toys.generators(count, seed=3),
        sampling=SamplingConfig(),
    )
    symbols = torch.tensor([text for text in texts if max(text) < S])
    assert len(symbols) > 0.98 * count
    weights = torch.tensor([S**place for place in reversed(range(L))])
    found_N = torch.bincount(symbols @ weights, minlength=S**L) / len(symbols)
    return (found_N - P_N).abs().sum().item() / 2, -(found_N * P_N.log()).sum().item()


def test_remasking_corrects_tokens_that_were_drawn_together() -> None:
    (distance, nats), (kept_distance, kept_nats) = sampled(rate=0.3), sampled(rate=1e-6)
    assert distance < 0.75 * kept_distance
    assert ENTROPY - 0.1 < nats < kept_nats - 0.3


def test_the_bound_of_uniform_diffusion_approaches_the_entropy_from_above() -> None:
    entropy = -(uniform.P_X * uniform.P_X.log()).sum().item()
    excess = []
    for steps in (20, 250):
        model = train(
            uniform.objective(), uniform.TEXTS_X2, uniform.P_X, steps, num_layers=1, time_embedding=True
        )
        with torch.no_grad():
            excess.append((uniform.continuous_bound(model, nodes=20) @ uniform.P_X).item() - entropy)
    assert excess[0] > 0.15
    assert 0 < excess[1] < 0.06
