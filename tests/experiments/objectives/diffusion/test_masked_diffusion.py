import dataclasses
import itertools
import math

import pytest
import torch

from archbench.architectures.backbone import Output
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.noise_schedules import NoiseConfig
from archbench.experiments.objectives.objective import View
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

JOINT = toys.Joint()
L = JOINT.LENGTH
MODEL = JOINT.model(mask_logit=5.0)  # which must never count


def objective(task=JOINT.task, **settings):
    return MaskedDiffusion(MaskedDiffusionConfig(**settings), task)


def test_with_the_true_conditionals_the_bound_is_the_likelihood():
    """Enumerates every mask of every sequence: the bound of the fixed-count form is tight."""
    masks_MT = torch.cartesian_prod(*[torch.tensor([False, True])] * L)[1:]
    count_M1 = masks_MT.sum(1, keepdim=True)
    target = JOINT.sequences_NT.repeat_interleave(len(masks_MT), 0)
    masked = masks_MT.repeat(len(JOINT.sequences_NT), 1)
    shown = target.masked_fill(masked, JOINT.task.vocabulary.mask)
    ways_M = torch.tensor([math.comb(L, int(count)) for count in count_M1])
    probability_M = 1 / (L * ways_M.double())

    log_p = JOINT.conditionals(shown).gather(-1, target[..., None]).squeeze(-1).log()
    terms_NM = -(log_p * masked).sum(1).view(-1, len(masks_MT)) * (L / count_M1.double()).T
    torch.testing.assert_close(terms_NM @ probability_M, JOINT.nats_N, atol=1e-10, rtol=0)

    weight = (masks_MT * L / count_M1).repeat(len(JOINT.sequences_NT), 1)
    view = View(
        tokens_BT=shown,
        valid_BT=None,
        target_BT=target,
        weight_BT=weight,
        count_B=torch.full((len(shown),), 4.0),
    )
    nats_NM = objective().nats(view.run(MODEL), view).double().sum(1).view(-1, len(masks_MT))
    torch.testing.assert_close(nats_NM @ probability_M, JOINT.nats_N, atol=1e-5, rtol=0)


@pytest.mark.parametrize("samples", [1, 3, 8])
def test_the_estimate_is_unbiased_for_every_number_of_samples(samples):
    batch = toys.whole(JOINT.sequences_NT.repeat(30, 1))
    generators = toys.generators(len(batch.tokens_BT), seed=samples)
    score = objective(evaluation_samples=samples).likelihood_score(MODEL, batch, generators)
    toys.assert_unbiased(score.nats_B, JOINT.nats_N.repeat(30))
    assert (score.bytes_B == L).all()


def bound_and_likelihood(model):
    """Nats of every sequence, by all orders of opening its tokens: the bound, and -log p itself."""
    masks_MT = torch.cartesian_prod(*[torch.tensor([False, True])] * L)
    target = JOINT.sequences_NT.repeat_interleave(len(masks_MT), 0)
    shown = target.masked_fill(masks_MT.repeat(len(JOINT.sequences_NT), 1), JOINT.task.vocabulary.mask)
    view = View(
        tokens_BT=shown,
        valid_BT=None,
        target_BT=target,
        weight_BT=torch.ones(shown.shape),
        count_B=torch.ones(len(shown)),
    )
    with torch.no_grad():
        log_p_NMT = -objective().nats(view.run(model), view).double().view(-1, len(masks_MT), L)
    number = {tuple(mask): index for index, mask in enumerate(masks_MT.tolist())}
    orders = []
    for order in itertools.permutations(range(L)):
        states = [number[tuple(place in order[step:] for place in range(L))] for step in range(L)]
        orders.append(sum(log_p_NMT[:, state, place] for state, place in zip(states, order, strict=True)))
    log_p_NO = torch.stack(orders, dim=1)
    return -log_p_NO.mean(1), -(log_p_NO.logsumexp(1) - math.log(len(orders)))


def calm(name):
    """A backbone that finds no symbol impossible."""
    model = toys.build(name, JOINT.task.vocabulary.size)
    with torch.no_grad():
        model.head.weight.div_(20 if name == "mamba_bidirectional" else 10)
    return model


@pytest.mark.parametrize("name", ["encoder", *toys.RECURRENT_BOTH_WAYS])
def test_the_bound_of_any_backbone_is_above_what_it_assigns(name):
    model = calm(name)
    bound_N, nats_N = bound_and_likelihood(model)
    assert (bound_N > nats_N + 1e-4).all()
    assert (-nats_N).exp().sum() < 1  # the rest is on special tokens
    batch = toys.whole(JOINT.sequences_NT.repeat(10, 1))
    found = objective().likelihood_score(model, batch, toys.generators(len(batch.tokens_BT), seed=3))
    toys.assert_unbiased(found.nats_B, bound_N.repeat(10))


def test_training_brings_the_bound_of_a_state_space_model_down_to_the_entropy():
    """Of palindromes: tokens taken one by one cost twice as much, and the far side may be the later one."""
    model = calm("mamba_bidirectional").float()
    palindrome_N = (JOINT.sequences_NT == JOINT.sequences_NT.flip(1)).all(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator, entropy = torch.Generator().manual_seed(0), 2 * math.log(3)
    gaps = [bound_and_likelihood(model)[0][palindrome_N].mean() - entropy]
    for _ in range(150):
        drawn = torch.multinomial(palindrome_N.double(), 64, replacement=True, generator=generator)
        view = objective().view(toys.whole(JOINT.sequences_NT[drawn]), generator)
        total, count = objective().loss(view.run(model), view)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    gaps.append(bound_and_likelihood(model)[0][palindrome_N].mean() - entropy)
    assert 0 < gaps[1] < 0.4 < entropy < gaps[0]


def test_the_training_loss_has_the_same_mean():
    batch, trained = toys.whole(JOINT.sequences_NT.repeat(40, 1)), objective(min_time=1e-5)
    losses = []
    for seed in range(40):
        view = trained.view(batch, torch.Generator().manual_seed(seed))
        total, count = trained.loss(view.run(MODEL), view)
        assert count == batch.tokens_BT.numel()
        losses.append(total / count)
    toys.assert_unbiased(torch.stack(losses).double(), JOINT.nats_N.mean() / L)


def test_a_uniform_model_pays_the_log_of_the_vocabulary_without_the_mask_token():
    task = toys.Symbols(20)
    model, batch = toys.uniform_model(task.vocabulary), toys.random_text(16, 12, 20)
    score = objective(task).likelihood_score(model, batch, toys.generators(16))
    nats = math.log(task.vocabulary.size - 1)
    torch.testing.assert_close(score.nats_B, torch.full((16,), 12 * nats, dtype=torch.float64))
    views = [objective(task).view(batch, torch.Generator().manual_seed(seed)) for seed in range(400)]
    losses = torch.stack([objective(task).loss(view.run(model), view)[0] / (16 * 12) for view in views])
    toys.assert_unbiased(losses.double(), nats)


def test_only_masked_positions_are_scored_with_the_inverse_of_their_time():
    task = toys.Symbols(20)
    batch = toys.random_text(64, 50, 20)
    view = objective(task, min_time=0.25).view(batch, torch.Generator().manual_seed(0))
    masked_BT = view.tokens_BT == task.vocabulary.mask
    assert torch.equal(view.weight_BT > 0, masked_BT)
    assert torch.equal(view.tokens_BT[~masked_BT], batch.tokens_BT[~masked_BT])
    time_B = 1 / view.weight_BT.max(1).values
    torch.testing.assert_close(view.weight_BT, masked_BT / time_B[:, None])
    share_B = masked_BT.float().mean(1)
    assert ((share_B - time_B).abs() < 5 * (time_B * (1 - time_B) / 50).sqrt() + 0.01).all()
    assert (view.count_B == 50).all()

    logits = torch.randn(64, 50, task.vocabulary.size, requires_grad=True)
    objective(task).loss(Output(logits_BTV=logits, hidden_BTD=logits), view)[0].backward()
    assert torch.equal(logits.grad.abs().sum(-1) > 0, masked_BT)


def test_times_are_spread_evenly_and_differ_between_draws():
    task, low = toys.Symbols(20), 0.3
    batch, firsts = toys.random_text(32, 64, 20), set()
    for seed in range(5):
        view = objective(task, min_time=low).view(batch, torch.Generator().manual_seed(seed))
        place_B = (1 / view.weight_BT.max(1).values.double() - low) / (1 - low) * 32
        assert sorted(place_B.floor().int().tolist()) == list(range(32))
        firsts.add(round(place_B[0].item(), 4))
    assert len(firsts) == 5


def test_the_number_of_masks_is_uniform():
    """Rounding a grid of 8 to 12 counts would give some counts twice the share of others."""
    task, samples = toys.Symbols(5), 8
    model = toys.uniform_model(task.vocabulary)
    objective(task, evaluation_samples=samples).likelihood_score(
        model, toys.random_text(3000, 12, 5), toys.generators(3000)
    )
    masks_NB = torch.stack([(shown == task.vocabulary.mask).sum(1) for shown in model.shown])
    counts = torch.bincount(masks_NB.flatten(), minlength=13)
    assert counts[0] == 0
    assert (counts[1:] - 2000).abs().max() < 5 * math.sqrt(2000)
    assert (masks_NB.diff(dim=0) >= 0).all()  # stratified: each sample draws from its own part of 1 .. 12


def test_the_mask_token_is_never_predicted():
    output = MODEL(torch.full((2, L), JOINT.task.vocabulary.mask))
    view = objective().view(toys.whole(JOINT.sequences_NT[:2]), torch.Generator().manual_seed(0))
    p_BTV = objective().logits(output, view).float().softmax(-1)
    assert output.logits_BTV.argmax(-1).eq(JOINT.task.vocabulary.mask).all()
    assert (p_BTV[..., JOINT.task.vocabulary.mask] == 0).all()
    torch.testing.assert_close(p_BTV[..., :3].sum(-1), torch.ones(2, L))


def test_padding_is_neither_masked_nor_counted():
    task, lengths = toys.Symbols(20), [12, 5, 8]
    batch = toys.padded_text(lengths, task.vocabulary)
    for seed in range(20):
        view = objective(task).view(batch, torch.Generator().manual_seed(seed))
        assert not (view.weight_BT.bool() & ~batch.valid_BT).any()
        assert view.count_B.tolist() == lengths
        assert torch.equal(view.valid_BT, batch.valid_BT)
    score = objective(task).likelihood_score(toys.uniform_model(task.vocabulary), batch, toys.generators(3))
    expected = torch.tensor(lengths).double() * math.log(task.vocabulary.size - 1)
    torch.testing.assert_close(score.nats_B, expected)
    assert score.bytes_B.tolist() == lengths


def test_llada_is_fine_tuned_on_the_mean_of_the_means_of_its_answers():
    """Its guidelines: sum the cross-entropies over p, divide each by its answer's length, take the mean."""
    task, lengths = toys.Symbols(20), [2, 5, 10, 18]
    batch = toys.padded_text(lengths, task.vocabulary)
    generator = torch.Generator().manual_seed(3)
    logits_BTV = torch.randn(4, 18, task.vocabulary.size, dtype=torch.float64, generator=generator)
    output, losses = Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV), {}
    for average in ("tokens", "sequences"):
        trained = objective(task, average=average)
        view = trained.view(batch, torch.Generator().manual_seed(1))
        total, count = trained.loss(output, view)
        losses[average] = (total / count).item()
        parts = [
            trained.loss(Output(logits_BTV=logits_BTV[[i]], hidden_BTD=logits_BTV), view.rows(i, i + 1))
            for i in range(4)
        ]
        assert sum(part[0] for part in parts) / sum(part[1] for part in parts) == pytest.approx(total / count)
    time_B1 = (
        1 / objective(task).view(batch, torch.Generator().manual_seed(1)).weight_BT.max(1).values[:, None]
    )
    log_p_BTV = logits_BTV.masked_fill(
        torch.arange(task.vocabulary.size) == task.vocabulary.mask, -torch.inf
    ).log_softmax(-1)
    nats_BT = -log_p_BTV.gather(-1, batch.tokens_BT[..., None])[..., 0]
    masked_BT = view.weight_BT > 0
    sums_B = (nats_BT * masked_BT / time_B1).nan_to_num(0.0).sum(1)
    lengths_B = torch.tensor(lengths)
    assert losses["sequences"] == pytest.approx((sums_B / lengths_B).mean().item(), rel=1e-5)
    assert losses["tokens"] == pytest.approx((sums_B.sum() / 35).item(), rel=1e-5)
    assert abs(losses["sequences"] - losses["tokens"]) > 0.01


def test_rounding_a_grid_of_counts_prefers_even_ones():
    """LLaDA's estimator: 8 copies of 12 tokens take counts 1.5 apart, and halves are rounded to even numbers.

    Over all its starts an even count comes 1.5 times as often as it should, and an odd one half as often.
    """
    starts = torch.arange(1.0, 13.0)[:, None]
    counts = ((starts + 1.5 * torch.arange(8)).round() - 1) % 12 + 1
    share = torch.bincount(counts.flatten().long(), minlength=13)[1:] / 8
    assert share.tolist() == [0.5, 1.5] * 6


def test_of_a_probe_only_answers_are_masked():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 64)
    view = objective(task).view(batch, torch.Generator().manual_seed(0))
    masked_BT = view.tokens_BT == task.vocabulary.mask
    assert masked_BT.any()
    assert not (masked_BT & ~batch.answer_BT).any()
    assert torch.equal(view.tokens_BT[~masked_BT], batch.tokens_BT[~masked_BT])
    assert (view.count_B == 4).all()
    shown = objective(task).answer_view(batch)
    assert torch.equal(shown.tokens_BT == task.vocabulary.mask, batch.answer_BT)
    assert torch.equal(shown.weight_BT, batch.answer_BT.float())


@pytest.mark.parametrize(
    "settings",
    [
        {"min_time": 0.0},
        {"min_time": 1.0},
        {"evaluation_samples": 0},
        {"sampling_steps": 0},
        {"average": "documents"},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        MaskedDiffusionConfig(**settings)


@pytest.mark.parametrize("estimator", ["fixed_count", "time"])
def test_the_bound_of_an_answer_is_its_likelihood_given_the_prompt(estimator):
    """Positions 1 and 3 are the answer to what stands at 0 and 2."""
    tokens = JOINT.sequences_NT.repeat(30, 1)
    answer = torch.tensor([False, True, False, True]).expand_as(tokens)
    batch = dataclasses.replace(toys.whole(tokens), answer_BT=answer, whole=False)
    prompt_p = JOINT.probability.sum((1, 3), keepdim=True).expand_as(JOINT.probability).flatten()
    exact_N = -(JOINT.probability.flatten() / prompt_p).log().repeat(30)
    score = objective(estimator=estimator, evaluation_samples=2).likelihood_score(
        MODEL, batch, toys.generators(len(tokens), seed=5)
    )
    toys.assert_unbiased(score.nats_B, exact_N)
    assert (score.bytes_B == 2).all()


def test_one_answer_token_needs_one_sample_and_is_exact():
    tokens = JOINT.sequences_NT
    answer = torch.tensor([False, False, False, True]).expand_as(tokens)
    batch = dataclasses.replace(toys.whole(tokens), answer_BT=answer, whole=False)
    score = objective(evaluation_samples=1).likelihood_score(MODEL, batch, toys.generators(len(tokens)))
    exact = JOINT.probability / JOINT.probability.sum(3, keepdim=True)
    torch.testing.assert_close(score.nats_B, -exact.flatten().log(), atol=1e-5, rtol=0)
    assert score.records == []


def test_a_model_that_takes_a_time_is_told_the_share_that_is_masked():
    task, told = toys.Symbols(20), []

    class Timed(toys.Rule):
        takes_time = True

        def compute(self, inputs):
            told.append(((inputs.tokens_BT == task.vocabulary.mask).float().mean(1), inputs.time_B))
            return super().compute(inputs)

    model = Timed(task.vocabulary.size, toys.uniform_model(task.vocabulary).rule)
    batch = toys.random_text(5, 12, 20)
    objective(task).likelihood_score(model, batch, toys.generators(5))
    sampled = objective(task, sampling_steps=3)
    sampled.sample(
        model, [[1, 2, 3]] * 2, max_tokens=9, generators=toys.generators(2), sampling=SamplingConfig()
    )
    assert len(told) == 2 + 3
    for share_B, time_B in told:
        torch.testing.assert_close(time_B, share_B)
    noise = NoiseConfig(schedule="cosine")
    view = objective(task, noise=noise).view(batch, torch.Generator().manual_seed(0))
    inverse_B = 1 / view.weight_BT.max(1).values
    time_B = torch.atan(inverse_B * math.pi / 2) * 2 / math.pi
    torch.testing.assert_close(view.time_B, torch.sin(math.pi / 2 * time_B), atol=1e-5, rtol=1e-4)
