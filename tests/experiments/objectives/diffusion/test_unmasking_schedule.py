"""Samplers against the exact distribution of a model that knows all conditionals: 3 symbols, length 4."""

import itertools
import math

import pytest
import torch

from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig, draw
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.noise_schedules import NoiseConfig, time_grid
from archbench.experiments.objectives.diffusion.unmasking_schedule import (
    Unmasker,
    UnmaskingConfig,
    loop_grid,
    remasking_probabilities,
    sureness,
)
from archbench.experiments.runtime.errors import DataError
from tests.experiments.objectives import toys

JOINT = toys.Joint()
L, S = JOINT.LENGTH, JOINT.SYMBOLS
MASK = JOINT.task.vocabulary.mask
MODEL = JOINT.model(mask_logit=5.0)
TRUE_X = JOINT.probability.flatten()
ANY = SamplingConfig()


def objective(steps=4, task=JOINT.task, noise=None, **filling):
    config = MaskedDiffusionConfig(
        sampling_steps=steps, filling=UnmaskingConfig(**filling), noise=noise or NoiseConfig()
    )
    return MaskedDiffusion(config, task)


def counts(samples):
    """How often each of the 81 sequences was sampled."""
    weights = torch.tensor([S**place for place in reversed(range(L))])
    return torch.bincount(torch.tensor(samples) @ weights, minlength=S**L)


def sampled(count=5000, **settings):
    found = objective(**settings).sample(
        MODEL, [[]] * count, max_tokens=L, generators=toys.generators(count, seed=3), sampling=ANY
    )
    return counts(found)


def chi_square(found_X, p_X):
    expected_X = found_X.sum() * p_X
    return ((found_X - expected_X) ** 2 / expected_X).sum().item()


LARGE = 80 + 4 * math.sqrt(2 * 80)
"""Four standard deviations above the mean of chi square with 80 degrees of freedom."""


def ancestral_distribution(steps, noise):
    """The exact distribution (81,) of what ancestral sampling gives, by enumerating all partial texts."""
    states_ZT = torch.cartesian_prod(*[torch.tensor([0, 1, 2, MASK])] * L)
    masked_ZT1 = (states_ZT == MASK)[..., None]
    clean_ZT4 = torch.nn.functional.one_hot(states_ZT.clamp_max(S), S + 1).double()
    p_ZT3 = JOINT.conditionals(states_ZT)
    state_Z = torch.zeros(len(states_ZT), dtype=torch.float64)
    state_Z[-1] = 1  # all masked
    share_K = time_grid(steps, noise)
    for before, after in itertools.pairwise(share_K):
        stay = after / before
        opened_ZT4 = torch.cat([(1 - stay) * p_ZT3, torch.full_like(p_ZT3[..., :1], stay)], dim=-1)
        next_ZT4 = torch.where(masked_ZT1, opened_ZT4, clean_ZT4)
        moved = torch.einsum("z,za,zb,zc,zd->abcd", state_Z, *next_ZT4.unbind(1))
        state_Z = moved.flatten()
    return state_Z.view([S + 1] * L)[:S, :S, :S, :S].flatten()


def remasking_distribution(alphas, sigmas):
    """The same of ReMDM (arXiv 2503.00307), by alpha at each time and sigma of each step."""
    states_ZT = torch.cartesian_prod(*[torch.tensor([0, 1, 2, MASK])] * L)
    masked_ZT1 = (states_ZT == MASK)[..., None]
    clean_ZT4 = torch.nn.functional.one_hot(states_ZT.clamp_max(S), S + 1).double()
    never_ZT4 = torch.nn.functional.one_hot(torch.full_like(states_ZT, S), S + 1).double()
    p_ZT3 = JOINT.conditionals(states_ZT)
    state_Z = torch.zeros(len(states_ZT), dtype=torch.float64)
    state_Z[-1] = 1
    for (a_t, a_s), sigma in zip(itertools.pairwise(alphas), sigmas, strict=True):
        opened = (a_s - (1 - sigma) * a_t) / (1 - a_t)
        closed = (1 - a_s - sigma * a_t) / (1 - a_t)
        opened_ZT4 = torch.cat([opened * p_ZT3, torch.full_like(p_ZT3[..., :1], closed)], dim=-1)
        shown_ZT4 = (1 - sigma) * clean_ZT4 + sigma * never_ZT4
        next_ZT4 = torch.where(masked_ZT1, opened_ZT4, shown_ZT4)
        state_Z = torch.einsum("z,za,zb,zc,zd->abcd", state_Z, *next_ZT4.unbind(1)).flatten()
    assert state_Z.sum() == pytest.approx(1)
    return state_Z.view([S + 1] * L)[:S, :S, :S, :S].flatten()


def total_variation(p_X):
    return (p_X - TRUE_X).abs().sum().item() / 2


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_error_of_ancestral_sampling_halves_as_steps_double(schedule):
    noise = NoiseConfig(schedule=schedule)
    distances = [total_variation(ancestral_distribution(steps, noise)) for steps in (8, 16, 32, 64, 128)]
    assert distances[0] > 0.01
    for coarse, fine in itertools.pairwise(distances):
        assert 1.8 < coarse / fine < 2.1


@pytest.mark.parametrize(("steps", "schedule"), [(1, "linear"), (2, "linear"), (2, "cosine"), (5, "linear")])
def test_ancestral_samples_have_exactly_the_distribution_of_their_steps(steps, schedule):
    noise = NoiseConfig(schedule=schedule)
    found_X = sampled(steps=steps, noise=noise, method="ancestral")
    assert chi_square(found_X, ancestral_distribution(steps, noise)) < LARGE
    assert chi_square(found_X, TRUE_X) > 1.5 * LARGE


def test_ancestral_samples_of_many_steps_are_the_models_own():
    assert chi_square(sampled(steps=200, method="ancestral", count=1500), TRUE_X) < LARGE


EVEN = [step / 8 for step in range(9)]
LARGEST = [min(1, (1 - a_s) / a_t) if a_t else 1 for a_t, a_s in itertools.pairwise(EVEN)]
LOOP = [0.75, 0.25, 0.6]  # two steps up to 0.6 (the time 0.75 is the loop's), four in the loop, two up to 1
REMASKINGS = {
    "none": ({}, EVEN, [0] * 8),
    "capped": ({"remasking": "capped", "remasking_rate": 0.2}, EVEN, [min(0.2, s) for s in LARGEST]),
    "rescaled": ({"remasking": "rescaled", "remasking_rate": 0.3}, EVEN, [0.3 * s for s in LARGEST]),
    "loop": (
        {"remasking": "capped", "remasking_rate": 0.2, "remasking_loop": LOOP},
        [0, 0.3, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 1],
        [0, 0, 0.2, 0.2, 0.2, 0.2, 0, 0],
    ),
}


@pytest.mark.parametrize("name", REMASKINGS)
def test_remasking_samples_have_exactly_the_distribution_of_their_steps(name):
    settings, alphas, sigmas = REMASKINGS[name]
    expected_X = remasking_distribution(alphas, sigmas)
    assert chi_square(sampled(steps=8, method="ancestral", count=8000, **settings), expected_X) < LARGE
    if name == "none":
        torch.testing.assert_close(expected_X, ancestral_distribution(8, NoiseConfig()))


def remasking_error(steps, **settings):
    """Total variation to the true distribution, with the probabilities of the sampler itself."""
    config = UnmaskingConfig(method="ancestral", **settings)
    loop = config.remasking_loop
    share_K = time_grid(steps, NoiseConfig()) if loop is None else loop_grid(steps, loop)
    sigma_K = remasking_probabilities(share_K, config)
    return total_variation(remasking_distribution((1 - share_K).tolist(), sigma_K.tolist()))


def test_a_remasking_loop_corrects_what_few_steps_got_wrong():
    """Two steps to 75%, and two at the end: 0.112, whatever happens to no token between them."""
    loop = {"remasking": "capped", "remasking_loop": [0.95, 0.05, 0.75]}
    errors = [remasking_error(40, remasking_rate=rate, **loop) for rate in (1e-9, 0.02, 0.05)]
    assert errors[0] > 2.5 * errors[1] > 2.5 * 1.3 * errors[2]


def test_the_error_of_remasking_halves_as_steps_double_and_the_rate_halves():
    errors = [remasking_error(n, remasking="rescaled", remasking_rate=2 / n) for n in (8, 16, 32, 64)]
    for coarse, fine in itertools.pairwise(errors):
        assert 1.8 < coarse / fine < 2.1


@pytest.mark.parametrize("name", ["capped", "rescaled", "loop"])
def test_remasking_keeps_the_masked_fraction_of_every_time(name):
    """The marginals of ReMDM are those of masked diffusion."""
    settings, alphas, _ = REMASKINGS[name]
    rows, count = 10, 10_000
    logits_RTV = torch.zeros(rows, count, 3)
    filler = Unmasker(
        predict=lambda tokens_BT, rows_R, fraction_R: logits_RTV[rows_R],
        tokens_BT=torch.full((rows, count), 2),
        place_BN=torch.arange(count).expand(rows, -1),
        masked_BN=torch.ones(rows, count, dtype=torch.bool),
        size_B=torch.full((rows,), count),
        unmasking=UnmaskingConfig(method="ancestral", **settings),
        noise=NoiseConfig(),
        sampling=ANY,
        generators=toys.generators(rows),
        forbidden_V=torch.tensor([False, False, True]),
        mask=2,
    )
    block, counts = slice(0, count), []
    for opened_RN, closed_RN in filler._ancestral(block, range(rows), 8):
        filler._commit(block, range(rows), opened_RN, torch.zeros(rows, count, dtype=torch.long))
        filler._mask_again(block, range(rows), closed_RN)
        assert torch.equal(filler.tokens_BT == 2, filler.masked_BN)
        counts.append(int(filler.masked_BN.sum()))
    for found, alpha in zip(counts, alphas[1:], strict=True):
        expected = rows * count * (1 - alpha)
        assert abs(found - expected) <= 4 * math.sqrt(expected * alpha)


def test_remasking_leaves_the_given_tokens_and_finished_blocks():
    text = [MASK, 2, MASK, 0]
    how = objective(method="ancestral", remasking="rescaled", remasking_rate=1.0, steps=20)
    found = how.infill(MODEL, [text] * 200, generators=toys.generators(200), sampling=ANY)
    assert all((row[1], row[3]) == (2, 0) and max(row) < S for row in found)
    model = toys.Rule(TASK.vocabulary.size, sure_of)
    objective(
        task=TASK, method="ancestral", remasking="capped", remasking_rate=0.5, steps=60, block_length=5
    ).sample(model, [[7]], max_tokens=10, generators=toys.generators(1), sampling=ANY)
    second = [shown[0] for shown in model.shown if (shown[0, 1:6] != TASK.vocabulary.mask).all()]
    assert len(second) > 5
    assert all(torch.equal(shown[:6], second[0][:6]) for shown in second)


@pytest.mark.parametrize("block_length", [None, 1, 2])
def test_first_hitting_is_exact(block_length):
    assert chi_square(sampled(method="first_hitting", block_length=block_length), TRUE_X) < LARGE


def test_random_positions_one_at_a_time_are_exact_and_several_are_not():
    assert chi_square(sampled(method="confidence", order="random", steps=4), TRUE_X) < LARGE
    assert chi_square(sampled(method="confidence", order="random", steps=2), TRUE_X) > 1.5 * LARGE


def test_low_confidence_seeks_the_mode_even_one_token_at_a_time():
    found_X = sampled(steps=4)
    assert total_variation(found_X / found_X.sum()) > 0.2
    entropy = [-(p * p.clamp_min(1e-12).log()).sum() for p in (found_X / found_X.sum(), TRUE_X)]
    assert entropy[0] < entropy[1] - 0.2


def test_infilling_draws_from_the_conditional_distribution():
    count, text = 20_000, [MASK, 2, MASK, 0]
    found = objective(method="first_hitting").infill(
        MODEL, [text] * count, generators=toys.generators(count), sampling=ANY
    )
    assert all((row[1], row[3]) == (2, 0) for row in found)
    found_99 = torch.bincount(torch.tensor([S * row[0] + row[2] for row in found]), minlength=9)
    p_99 = JOINT.probability[:, 2, :, 0].flatten()
    assert chi_square(found_99, p_99 / p_99.sum()) < 8 + 4 * 4


TASK = toys.Symbols(20)


def test_blanks_anywhere_are_filled_and_nothing_else_changes():
    mask, model = TASK.vocabulary.mask, toys.build("masked_diffusion", 24)
    texts = [[mask, 3, 4, mask], [5, mask, 6], [7, mask, mask, 8, 9, mask]]
    how = objective(task=TASK, steps=2)

    def filled(rows):
        given = [toys.generators(3)[row] for row in rows]
        return how.infill(model, [texts[row] for row in rows], generators=given, sampling=ANY)

    found = filled([0, 1, 2])
    for text, row in zip(texts, found, strict=True):
        assert len(row) == len(text)
        assert all(new < 20 if old == mask else new == old for old, new in zip(text, row, strict=True))
    assert found == [filled([row])[0] for row in range(3)]
    with pytest.raises(DataError, match="no blank"):
        how.infill(model, [[1, 2]], generators=toys.generators(1), sampling=ANY)


@pytest.mark.parametrize("method", ["ancestral", "first_hitting", "confidence"])
def test_a_sample_does_not_depend_on_its_neighbours(method):
    given, model = [[1, 2, 3], [], [4, 5, 6, 7]], toys.build("masked_diffusion", 24)
    threshold = 0.3 if method == "confidence" else None
    how = objective(task=TASK, steps=5, method=method, threshold=threshold, block_length=4, guidance=0.5)

    def sample(rows):
        own = [toys.generators(3)[row] for row in rows]
        prompts = [given[row] for row in rows]
        return how.sample(model, prompts, max_tokens=9, generators=own, sampling=ANY, stop={3, 8})

    assert sample([0, 1, 2]) == [sample([row])[0] for row in range(3)]


def test_a_step_that_opens_nothing_asks_nothing():
    model = toys.uniform_model(TASK.vocabulary)
    objective(task=TASK, steps=1000, method="ancestral").sample(
        model, [[]], max_tokens=6, generators=toys.generators(1), sampling=ANY
    )
    assert 1 < len(model.shown) <= 6


def test_tokens_open_at_the_analytic_rate():
    """One step of 10 000: each of four million blanks opens with probability 1e-4.

    Gumbel noise in float32, the way this is often drawn, opens a quarter of them.
    """
    rows, count, draws = 20, 10_000, 20
    filler = Unmasker(
        predict=None,
        tokens_BT=torch.zeros(rows, count, dtype=torch.long),
        place_BN=torch.arange(count).expand(rows, -1),
        masked_BN=torch.ones(rows, count, dtype=torch.bool),
        size_B=torch.full((rows,), count),
        unmasking=UnmaskingConfig(method="ancestral"),
        noise=NoiseConfig(),
        sampling=ANY,
        generators=toys.generators(rows),
        forbidden_V=torch.zeros(1, dtype=torch.bool),
        mask=1,
    )
    opened = 0
    for _ in range(draws):
        opened += int(next(filler._ancestral(slice(0, count), range(rows), 10_000))[0].sum())
    expected = rows * count * draws * 1e-4
    assert abs(opened - expected) < 4 * math.sqrt(expected)


def test_gumbel_noise_reaches_what_float32_cuts_off(monkeypatch):
    """A uniform number so near 1 that float32 has no room for it beats a gap of 30 nats."""
    near_one = 1 - torch.tensor([0.5, 1e-14], dtype=torch.float64)
    asked = []

    def rand(shape, *, generator, dtype):
        asked.append(dtype)
        return near_one.to(dtype).expand(shape)

    monkeypatch.setattr(torch, "rand", rand)
    assert draw(torch.tensor([[30.0, 0.0]]), ANY, toys.generators(1)).item() == 1
    assert asked == [torch.float64]
    assert near_one.float()[1] == 1


def sure_of(tokens_BT):
    """Position t wants symbol t; positions 4, 5 and 6 with probability above 0.9, the others less."""
    logits_BTV = torch.full((*tokens_BT.shape, TASK.vocabulary.size), -1e4)
    logits_BTV[..., :20] = 0.0
    place_T = torch.arange(tokens_BT.shape[1])
    logits_BTV[:, place_T, place_T] = 2.0 + 0.1 * place_T
    for place in (4, 5, 6):
        logits_BTV[:, place, place] = 8.0
    return logits_BTV


def shown_masks(how, max_tokens=12, stop=()):
    model = toys.Rule(TASK.vocabulary.size, sure_of)
    found = how.sample(
        model, [[]], max_tokens=max_tokens, generators=toys.generators(1), sampling=GREEDY, stop=stop
    )
    return found, [(shown == TASK.vocabulary.mask).sum().item() for shown in model.shown]


def test_a_threshold_commits_all_that_is_sure_and_at_least_one():
    found, masks = shown_masks(objective(task=TASK, steps=12, threshold=0.9))
    assert found == [list(range(12))]
    assert masks == [12, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert shown_masks(objective(task=TASK, steps=12, threshold=1e-6))[1] == [12]


def test_blocks_are_filled_from_left_to_right_with_their_share_of_the_steps():
    found, masks = shown_masks(objective(task=TASK, steps=6, block_length=4))
    assert found == [list(range(12))]
    assert masks == [12, 10, 8, 6, 4, 2]
    model = toys.Rule(TASK.vocabulary.size, sure_of)
    objective(task=TASK, steps=3, block_length=5).sample(
        model, [[]], max_tokens=12, generators=toys.generators(1), sampling=GREEDY
    )
    for shown, start in zip(model.shown, (0, 5, 10), strict=True):
        assert shown[0, :start].tolist() == list(range(start))
        assert (shown[0, start:] == TASK.vocabulary.mask).all()


def test_a_text_that_has_ended_gets_no_more_blocks():
    found, masks = shown_masks(objective(task=TASK, steps=12, block_length=4), stop={2})
    assert found == [[0, 1, 2]]
    assert masks == [12, 11, 10, 9]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("low_confidence", [1, 0, 2]),
        ("largest_probability", [1, 0, 2]),
        ("margin", [0, 2, 1]),
        ("entropy", [2, 1, 0]),
        ("left_to_right", [0, 1, 2]),
    ],
)
def test_orders_by_hand(order, expected):
    p_1NV = torch.tensor([[[0.6, 0.1, 0.1, 0.1, 0.1], [0.65, 0.35, 0, 0, 0], [0.58, 0.42 / 3, 0.28, 0, 0]]])
    p_1NV[0, 2] = torch.tensor([0.55, 0.45 - 0.3, 0.3, 0, 0])
    likely_1N = p_1NV.max(-1).values if order != "largest_probability" else torch.zeros(1, 3)
    if order == "margin":
        p_1NV[0, 1] = torch.tensor([0.55, 0.45, 0, 0, 0])
    if order == "entropy":
        p_1NV[0, 1] = torch.tensor([0.5, 0.25, 0.25, 0, 0])
        p_1NV[0, 2] = torch.tensor([0.5, 0.5, 0, 0, 0])
    assert sureness(p_1NV, likely_1N, order)[0].argsort(descending=True).tolist() == expected


def test_a_new_method_drops_the_threshold_of_the_old_one():
    how = objective(task=TASK, threshold=0.9)
    how.override_unmasking(method="ancestral", steps=7)
    assert (how.unmasking.method, how.unmasking.threshold, how.steps) == ("ancestral", None, 7)
    how.override_unmasking(remasking="capped", remasking_rate=0.1)
    assert how.unmasking.description == "ancestral (capped remasking 0.1)"
    how.override_unmasking(method="first_hitting")
    assert how.unmasking.description == "first_hitting"
    with pytest.raises(ValueError, match="belongs to"):
        how.override_unmasking(threshold=0.5)


def test_guidance_adds_what_the_prompt_changes():
    """The prompt raises the logit of symbol 1 by 0.7 over 0: with guidance s the odds are e^(0.7 (1 + s))."""

    def rule(tokens_BT):
        logits_BTV = torch.zeros(*tokens_BT.shape, TASK.vocabulary.size)
        logits_BTV[..., 2:] = -1e4
        logits_BTV[..., 1] = torch.where(tokens_BT[:, :1] == 5, 0.7, 0.0)
        return logits_BTV

    for guidance in (0.0, 1.5):
        model = toys.Rule(TASK.vocabulary.size, rule)
        found = objective(task=TASK, method="first_hitting", guidance=guidance).sample(
            model, [[5]] * 4000, max_tokens=1, generators=toys.generators(4000), sampling=ANY
        )
        share = sum(row[0] for row in found) / 4000
        expected = 1 / (1 + math.exp(-0.7 * (1 + guidance)))
        assert abs(share - expected) < 4 * math.sqrt(0.25 / 4000)
        assert len(model.shown) == (1 if guidance == 0 else 2)
        if guidance:
            assert (model.shown[1] == TASK.vocabulary.mask).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "ancestrall"}, "did you mean 'ancestral'"),
        ({"order": "sure"}, "filling.order='sure'"),
        ({"threshold": 0.0}, "filling.threshold=0.0 must be positive"),
        ({"block_length": 0}, "filling.block_length=0 must be positive"),
        ({"method": "ancestral", "threshold": 0.9}, "belongs to filling.method=confidence"),
        ({"guidance": -1.0}, "filling.guidance=-1.0"),
        ({"method": "ancestral", "remasking": "caped"}, "did you mean 'capped'"),
        ({"remasking": "capped", "remasking_rate": 0.1}, "belongs to filling.method=ancestral"),
        ({"method": "ancestral", "remasking": "capped"}, r"filling.remasking_rate=None must be in \(0, 1\]"),
        ({"method": "ancestral", "remasking_rate": 0.1}, "filling.remasking_rate=0.1 needs"),
        (
            {"method": "ancestral", **REMASKINGS["loop"][0], "remasking_loop": [0.2, 0.4, 0.9]},
            "1 > t_on > t_off > 0",
        ),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        UnmaskingConfig(**settings)
