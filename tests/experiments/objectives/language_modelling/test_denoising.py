import math
from collections import Counter

import pytest
import torch

from archbench.experiments.objectives.language_modelling.denoising import (
    Denoising,
    DenoisingConfig,
    infill,
    shuffled,
    span_lengths,
)
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

TASK = toys.Symbols(20)
EOS, PAD, MASK, SIZE = (
    TASK.vocabulary.eos,
    TASK.vocabulary.pad,
    TASK.vocabulary.mask,
    TASK.vocabulary.size,
)


def objective(task=TASK, **settings):
    return Denoising(DenoisingConfig(**settings), task)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("total", "mean"), [(1, 3.0), (2, 1.0), (30, 3.0), (77, 3.5), (300, 1.0)])
def test_span_lengths_add_up_and_leave_no_more_spans_than_tokens(total, mean):
    for seed in range(200):
        spans = span_lengths(total, mean, generator(seed))
        assert spans.sum() == total
        assert spans.min() >= 0
        assert len(spans) <= total


def test_span_lengths_are_poisson():
    """All but the last, which is trimmed; 20,000 tokens are about 6,700 spans of mean 3."""
    spans = span_lengths(20_000, 3.0, generator())[:-1]
    counts = torch.bincount(spans.clamp_max(8), minlength=9).double()
    p = torch.tensor([math.exp(-3) * 3**k / math.factorial(k) for k in range(8)], dtype=torch.float64)
    expected = len(spans) * torch.cat([p, 1 - p.sum(0, keepdim=True)])
    assert ((counts - expected) ** 2 / expected).sum() < 26.1  # 8 degrees of freedom, p = 0.001


@pytest.mark.parametrize("length", [1, 2, 5, 40, 111])
def test_a_source_is_the_text_with_spans_replaced_by_one_mask_each(length):
    for seed in range(50):
        begin, mask = infill(length, 0.3, 3.0, generator(seed))
        end = torch.cat([begin[1:], torch.tensor([length])])
        widths = end - begin  # of text behind each item
        assert begin[0] == 0
        assert (widths[~mask] == 1).all()
        assert widths[mask].sum() == max(round(0.3 * length), 1)
        assert len(begin) <= length


def test_masks_of_no_token_are_inserted():
    """A twentieth of the spans (e^-3) stands for nothing, so the source still holds all around it."""
    begin, mask = infill(2000, 0.3, 3.0, generator())
    end = torch.cat([begin[1:], torch.tensor([2000])])
    empty = (mask & (end == begin)).sum().item()
    assert 0.02 < empty / mask.sum().item() < 0.09


def test_every_order_of_kept_tokens_and_spans_is_equally_likely():
    """Five tokens, one masked: its mask stands at one of five places (spans of length 0 left aside)."""
    places = Counter()
    for seed in range(3000):
        _, mask = infill(5, 0.2, 3.0, generator(seed))
        if mask.sum() == 1:
            places[int(mask.int().argmax())] += 1
    total = sum(places.values())
    assert len(places) == 5
    assert (
        sum((count - total / 5) ** 2 / (total / 5) for count in places.values()) < 18.5
    )  # 4 d.f., p = 0.001


def test_pieces_are_shuffled_whole():
    orders = Counter(tuple(shuffled(4, 2, generator(seed)).tolist()) for seed in range(1200))
    swapped = {(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)}
    assert set(orders) == swapped | {(0, 1, 2, 3)}
    assert 500 < orders[0, 1, 2, 3] < 700  # half of the draws leave two pieces in order
    assert sorted(shuffled(50, 7, generator()).tolist()) == list(range(50))
    assert shuffled(5, 1, generator()).tolist() == [0, 1, 2, 3, 4]
    assert sorted(shuffled(2, 9, generator()).tolist()) == [0, 1]  # no more pieces than tokens


@pytest.mark.parametrize("pieces", [1, 4])
def test_the_decoder_writes_the_whole_text_behind_the_end_token(pieces):
    batch = toys.random_text(5, 40, 20)
    view = objective(pieces=pieces).view(batch, generator())
    ends = torch.full((5, 1), EOS)
    assert torch.equal(view.target_BT, torch.cat([batch.tokens_BT, ends], dim=1))
    assert torch.equal(view.tokens_BT, torch.cat([ends, batch.tokens_BT], dim=1))
    assert (view.weight_BT == 1).all()
    for source, text, valid in zip(view.source_BS, batch.tokens_BT, view.source_valid_BS, strict=True):
        read = source[valid].tolist()
        assert read.pop() == EOS
        kept = [token for token in read if token != MASK]
        assert len(kept) == 28
        assert not Counter(kept) - Counter(text.tolist())
        if pieces == 1:
            rest = iter(text.tolist())
            assert all(token in rest for token in kept)  # in the order of the text


def test_padded_texts_keep_their_lengths():
    batch = toys.padded_text([12, 5, 1], TASK.vocabulary)
    view = objective().view(batch, generator())
    assert view.valid_BT.sum(1).tolist() == view.count_B.tolist() == [13, 6, 2]
    assert [row[valid][-1].item() for row, valid in zip(view.target_BT, view.valid_BT, strict=True)] == [
        EOS
    ] * 3
    last = [row[valid][-1].item() for row, valid in zip(view.source_BS, view.source_valid_BS, strict=True)]
    assert last == [EOS] * 3
    assert (view.source_BS[~view.source_valid_BS] == PAD).all()


def test_corruption_follows_the_generator():
    batch = toys.random_text(3, 40, 20)
    first, again, other = (objective().view(batch, generator(seed)).source_BS for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()


def test_of_a_probe_the_answers_are_masked_and_only_they_are_scored():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 20)
    view = objective(task).view(batch, generator())
    assert torch.equal(view.weight_BT[:, :-1] > 0, batch.answer_BT)
    assert view.weight_BT[:, -1].sum() == 0
    assert torch.equal(view.target_BT[:, :-1], batch.tokens_BT)
    assert torch.equal(view.tokens_BT[:, 1:], batch.context_BT)
    masked = batch.context_BT.masked_fill(batch.answer_BT, task.vocabulary.mask)
    assert torch.equal(view.source_BS[:, :-1], masked)


def test_the_likelihood_is_the_cost_of_restoring_a_masked_byte():
    batch, model = toys.random_text(4, 40, 20), toys.uniform_model(TASK.vocabulary)
    score = objective(evaluation_samples=3).likelihood_score(model, batch, toys.generators(4))
    assert score.bytes_B.tolist() == [3 * 12] * 4  # 30% of 40
    torch.testing.assert_close(score.nats_B, torch.full((4,), 120 * math.log(SIZE), dtype=torch.float64))
    assert objective().likelihood.kind == "pseudo"


@pytest.mark.parametrize(
    "settings", [{"mask_probability": 0.0}, {"mask_probability": 1.0}, {"poisson_lambda": 0.5}, {"pieces": 0}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        DenoisingConfig(**settings)
