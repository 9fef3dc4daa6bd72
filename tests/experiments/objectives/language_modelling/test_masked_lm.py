import math
from dataclasses import replace

import pytest
import torch

from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

JOINT = toys.Joint()
TASK = toys.Symbols(20)
MASK = TASK.vocabulary.mask


def objective(task=TASK, **settings):
    return MaskedLM(MaskedLMConfig(**settings), task)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_the_rounded_share_of_every_sequence_is_predicted(rate):
    for length in range(1, 130):
        view = objective(mask_probability=rate).view(toys.random_text(3, length, 20), generator(length))
        expected = max(1, round(rate * length))
        assert view.weight_BT.sum(1).tolist() == view.count_B.tolist() == [expected] * 3


def test_of_the_chosen_tokens_80_percent_are_masked_and_10_random():
    batch = toys.random_text(2500, 400, 20)
    view = objective(mask_probability=0.15).view(batch, generator())
    chosen = view.weight_BT > 0
    shown, true = view.tokens_BT[chosen], view.target_BT[chosen]
    n = len(shown)
    assert n == 2500 * 60
    shares = {
        0.8: (shown == MASK),
        0.1 * 19 / 20: (shown != MASK) & (shown != true),
        0.1 + 0.1 / 20: (shown == true),
    }
    for share, found in shares.items():
        assert abs(found.float().mean() - share) < 3 * math.sqrt(share * (1 - share) / n)
    assert torch.equal(view.tokens_BT[~chosen], batch.tokens_BT[~chosen])
    assert torch.equal(view.target_BT, batch.tokens_BT)


def test_random_tokens_are_symbols_all_equally_likely():
    batch = toys.random_text(500, 400, 20)
    view = objective(mask_replace_probability=0.0, random_replace_probability=1.0).view(batch, generator())
    counts = torch.bincount(view.tokens_BT[view.weight_BT > 0], minlength=TASK.vocabulary.size)
    assert (counts[20:] == 0).all()
    expected = counts.sum() / 20
    assert (
        (counts[:20] - expected) ** 2 / expected
    ).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_positions_are_chosen_evenly_and_anew():
    batch = toys.random_text(4000, 20, 20)
    first, again, other = (
        objective(mask_probability=0.15).view(batch, generator(seed)).weight_BT for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert (first * other).sum() < 0.3 * first.sum()  # 3 of 20: they share 15% by chance
    expected = 4000 * 3 / 20
    assert (first.sum(0) - expected).abs().max() < 4 * math.sqrt(expected)


def test_padding_is_never_chosen():
    lengths = [40, 20, 6, 1]
    batch = toys.padded_text(lengths, TASK.vocabulary)
    for seed in range(20):
        view = objective(mask_probability=0.15).view(batch, generator(seed))
        assert view.count_B.tolist() == view.weight_BT.sum(1).tolist() == [6, 3, 1, 1]
        assert not (view.weight_BT.bool() & ~batch.valid_BT).any()
        assert (view.tokens_BT[~batch.valid_BT] == TASK.vocabulary.pad).all()
        assert torch.equal(view.valid_BT, batch.valid_BT)


@pytest.mark.parametrize(
    ("rate", "length", "expected"), [(0.15, 128, 19), (0.15, 512, 77), (0.3, 5, 2), (0.15, 3, 1)]
)
def test_the_counts_of_bert(rate, length, expected):
    """max(1, round(rate * length)), as google-research/bert makes its data; 19 of 128 and 77 of 512."""
    view = objective(mask_probability=rate).view(toys.random_text(200, length, 20), generator())
    assert (view.count_B == expected).all()
    assert torch.equal(view.weight_BT.sum(1), view.count_B)


def ended_text(lengths):
    """Documents with an end token after each, begin tokens before: as BERT frames its texts."""
    v = TASK.vocabulary
    batch = toys.padded_text(lengths, v)
    tokens_BT = batch.tokens_BT.clone()
    tokens_BT[:, 0], tokens_BT[:, 7] = v.bos, v.eos
    return toys.whole(tokens_BT, batch.valid_BT)


def test_special_tokens_are_never_chosen_never_drawn_and_do_not_count():
    batch = ended_text([40, 40, 24, 12])
    special = batch.valid_BT & (batch.tokens_BT >= 20)
    assert special.sum() == 8
    masked = objective(mask_probability=0.5, mask_replace_probability=0.0, random_replace_probability=1.0)
    for seed in range(50):
        view = masked.view(batch, generator(seed))
        assert view.count_B.tolist() == [19, 19, 11, 5]
        assert not (view.weight_BT.bool() & (special | ~batch.valid_BT)).any()
        assert (view.tokens_BT[view.weight_BT > 0] < 20).all()
    everything = objective(mask_probability=1.0).view(batch, generator())
    assert torch.equal(everything.weight_BT > 0, batch.valid_BT & ~special)


def test_special_tokens_are_shown_and_not_scored():
    batch, model = ended_text([40, 40, 24, 12]), toys.uniform_model(TASK.vocabulary)
    score = objective(evaluation_positions=None).likelihood_score(model, batch, toys.generators(4))
    nats = torch.tensor([38, 38, 22, 10]).double() * math.log(TASK.vocabulary.size)
    torch.testing.assert_close(score.nats_B, nats)
    assert score.bytes_B.tolist() == [38, 38, 22, 10]
    assert all((shown[:, 0] == TASK.vocabulary.bos).all() for shown in model.shown)


def test_of_a_probe_all_answers_are_hidden_and_nothing_else():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 50)
    view = objective(task).view(batch, generator())
    assert torch.equal(view.tokens_BT == task.vocabulary.mask, batch.answer_BT)
    assert torch.equal(view.tokens_BT[~batch.answer_BT], batch.context_BT[~batch.answer_BT])
    assert torch.equal(view.weight_BT, batch.answer_BT.float())
    assert torch.equal(view.target_BT[batch.answer_BT], batch.tokens_BT[batch.answer_BT])


def pseudo_nats():
    """Sum over positions of -log p(token | all others), from the joint distribution itself."""
    total_N = torch.zeros(81, dtype=torch.float64)
    for axis in range(4):
        conditional = JOINT.probability / JOINT.probability.sum(axis, keepdim=True)
        total_N -= conditional.flatten().log()
    return total_N


@pytest.mark.parametrize("positions", [4, 9])
def test_with_all_positions_the_pseudo_likelihood_is_exact(positions):
    batch = toys.whole(JOINT.sequences_NT)
    masked = objective(JOINT.task, evaluation_positions=positions)
    score = masked.likelihood_score(JOINT.model(), batch, toys.generators(81))
    torch.testing.assert_close(score.nats_B, pseudo_nats(), atol=1e-5, rtol=0)
    assert (-score.nats_B).exp().sum() > 1.5  # no distribution: why it is labelled "pseudo"
    assert masked.likelihood.kind == "pseudo"


def test_with_some_positions_it_is_unbiased():
    batch, model = toys.whole(JOINT.sequences_NT.repeat(30, 1)), JOINT.model()
    masked = objective(JOINT.task, evaluation_positions=2)
    score = masked.likelihood_score(model, batch, toys.generators(81 * 30))
    toys.assert_unbiased(score.nats_B, pseudo_nats().repeat(30))
    hidden = torch.stack([shown == JOINT.task.vocabulary.mask for shown in model.shown])
    assert (hidden.sum(-1) == 1).all()
    assert (hidden.sum(0) <= 1).all()  # without replacement


def test_every_position_is_the_brute_force_sum_over_one_mask_at_a_time():
    encoder = toys.build("encoder", TASK.vocabulary.size).eval()
    lengths = [13, 4, 9]
    batch = toys.padded_text(lengths, TASK.vocabulary)
    masked = objective(evaluation_positions=None)
    assert masked.likelihood.samples == 1
    assert "every position" in masked.likelihood.estimator
    score = masked.likelihood_score(encoder, batch, toys.generators(3))
    total = 0.0
    for row, length in enumerate(lengths):
        tokens = batch.tokens_BT[row, :length]
        nats = 0.0
        for position in range(length):
            hidden = tokens.clone()
            hidden[position] = MASK
            log_p = encoder(hidden[None]).logits_BTV[0, position].log_softmax(-1)
            nats -= log_p[tokens[position]].item()
        assert score.nats_B[row].item() == pytest.approx(nats, rel=1e-5)
        total += nats
    (metric,) = masked.summarise(score.records, "test")
    assert metric.value == pytest.approx(math.exp(total / sum(lengths)), rel=1e-5)
    assert (metric.name, metric.likelihood, metric.items) == ("pseudo_perplexity", "pseudo", 3)


def test_a_uniform_model_pays_the_log_of_the_vocabulary_for_each_real_token():
    lengths = [12, 5, 3]
    batch = toys.padded_text(lengths, TASK.vocabulary)
    score = objective().likelihood_score(toys.uniform_model(TASK.vocabulary), batch, toys.generators(3))
    expected = torch.tensor(lengths).double() * math.log(TASK.vocabulary.size)
    torch.testing.assert_close(score.nats_B, expected)
    assert score.bytes_B.tolist() == lengths


@pytest.mark.parametrize(
    "settings",
    [
        {"mask_probability": 0.0},
        {"mask_probability": 1.1},
        {"mask_replace_probability": -0.1},
        {"random_replace_probability": 0.3},
        {"evaluation_positions": 0},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        MaskedLMConfig(**settings)


def test_the_loss_of_the_scored_positions_alone_is_that_of_all():
    model = Encoder(EncoderConfig(d_model=16, num_layers=1), vocab_size=TASK.vocabulary.size, max_length=40)
    view = objective().view(toys.random_text(3, 40, 20), generator())
    asking = objective().with_scored_positions(view)
    assert torch.equal(asking.scored_BT, view.weight_BT > 0)
    found = []
    for each in (view, asking):
        total, count = objective().loss(each.run(model), each)
        found.append((total.detach(), *torch.autograd.grad(total / count, list(model.parameters()))))
    for whole, alone in zip(*found, strict=True):
        torch.testing.assert_close(alone, whole, rtol=1e-4, atol=1e-6)
    everything = replace(view, weight_BT=torch.ones_like(view.weight_BT))
    assert objective().with_scored_positions(everything) is everything
