import math
from collections import Counter

import pytest
import torch

from archbench.experiments.objectives.decoding.beam_search import BeamConfig, beam_search
from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
    full_window,
    noise_mask,
    random_parts,
    span_counts,
)
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

TASK = toys.Symbols(20, num_sentinels=100)
EOS, PAD, SIZE = TASK.vocabulary.eos, TASK.vocabulary.pad, TASK.vocabulary.size


def objective(task=TASK, **settings):
    return SpanCorruption(SpanCorruptionConfig(**settings), task)


def view_of(length, rows=4, seed=0, task=TASK, **settings):
    batch = toys.random_text(rows, length, 20, seed)
    return batch, objective(task, **settings).view(batch, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("raw", "density", "mean_span", "source", "target"),
    [
        (141, 0.15, 3, 128, 29),
        (284, 0.15, 3, 256, 58),
        (568, 0.15, 3, 512, 114),
        (1137, 0.15, 3, 1024, 229),
        (588, 0.15, 8, 512, 100),
        (766, 0.5, 3, 512, 512),
        (1006, 0.5, 64, 512, 512),
    ],
)
def test_lengths_are_the_published_ones(raw, density, mean_span, source, target):
    task = toys.Symbols(20, num_sentinels=200)
    _, view = view_of(raw, noise_density=density, mean_noise_span_length=mean_span, task=task)
    assert view.source_BS.shape == (4, source)
    assert view.tokens_BT.shape == view.target_BT.shape == (4, target)


@pytest.mark.parametrize(
    ("source", "density", "mean_span", "expected"),
    [
        (128, 0.15, 3, (141, 29)),
        (256, 0.15, 3, (284, 58)),
        (512, 0.15, 3, (568, 114)),
        (1024, 0.15, 3, (1137, 229)),
        (512, 0.15, 8, (588, 100)),
        (512, 0.5, 3, (766, 512)),  # 767 would give 513
        (512, 0.5, 64, (1006, 512)),
    ],
)
def test_the_window_that_fills_a_source_is_the_published_one(source, density, mean_span, expected):
    """The values of ``random_spans_helper`` in T5's code."""
    assert full_window(source, density, mean_span) == expected


def test_a_window_that_does_not_fill_the_source_is_refused_and_the_right_one_named():
    class Window(toys.Symbols):
        sequence_length = 568

    assert objective(Window(20, num_sentinels=100), source_length=512).config.source_length == 512
    with pytest.raises(ConfigError, match=r"source_length=128 is filled by .*141.* task.sequence_length=141"):
        objective(Window(20, num_sentinels=100), source_length=128)


def test_counts_computed_by_hand():
    assert span_counts(512, 0.15, 3) == (77, 26)  # 76.8 tokens, 25.7 spans
    assert span_counts(11, 0.3, 1.5) == (3, 2)  # figure 2 of the paper: three words in two spans
    assert span_counts(10, 0.15, 3) == (2, 1)  # 1.5 rounds to even
    assert span_counts(2, 0.15, 3) == (1, 1)  # never nothing, never everything


@pytest.mark.parametrize(("total", "parts"), [(6, 3), (5, 1), (4, 4), (7, 2)])
def test_compositions_are_uniform(total, parts):
    """``total`` is the sum of ``parts`` positive numbers in (total - 1 choose parts - 1) ways."""
    draws = random_parts(total, parts, 6000, torch.Generator().manual_seed(0))
    counts, ways = Counter(tuple(row) for row in draws.tolist()), math.comb(total - 1, parts - 1)
    assert all(min(way) >= 1 and sum(way) == total for way in counts)
    assert len(counts) == ways
    chi_square = sum((count - 6000 / ways) ** 2 / (6000 / ways) for count in counts.values())
    assert chi_square < 27.9  # at most 9 degrees of freedom, p = 0.001


@pytest.mark.parametrize("length", [2, 3, 10, 64, 141])
def test_source_and_target_together_are_the_text(length):
    for seed in range(20):
        batch, view = view_of(length, seed=seed)
        for row in range(4):
            source, target = view.source_BS[row].tolist(), view.target_BT[row].tolist()
            assert source.pop() == target.pop() == EOS
            sentinels = [token for token in source if token >= SIZE - 100]
            assert sentinels == [token for token in target if token >= SIZE - 100]
            assert sentinels == list(range(SIZE - 1, SIZE - 1 - len(sentinels), -1))
            assert source[0] < 20  # the text begins with a kept token
            assert target[0] == SIZE - 1
            places = [target.index(sentinel) for sentinel in sentinels] + [len(target)]
            text = []
            for token in source:
                if token in sentinels:
                    which = sentinels.index(token)
                    span = target[places[which] + 1 : places[which + 1]]
                    assert span
                    text += span
                else:
                    text.append(token)
            assert text == batch.tokens_BT[row].tolist()


def test_the_decoder_reads_the_target_one_step_late_behind_padding():
    _, view = view_of(64)
    assert (view.tokens_BT[:, 0] == PAD).all()
    assert torch.equal(view.tokens_BT[:, 1:], view.target_BT[:, :-1])
    assert (view.weight_BT == 1).all()
    assert (view.count_B == view.target_BT.shape[1]).all()


def test_every_way_to_cut_is_equally_likely():
    """Nine tokens, four cut, in two spans: 5 kept in 2 parts (4 ways) times 4 cut in 2 parts (3 ways)."""
    assert span_counts(9, 0.45, 2.0) == (4, 2)
    masks = noise_mask(9, 0.45, 2.0, 12_000, torch.Generator().manual_seed(0))
    counts = Counter(tuple(mask) for mask in masks.int().tolist())
    assert len(counts) == 12
    assert all(mask[0] == 0 and mask[-1] == 1 and sum(mask) == 4 for mask in counts)
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_square < 31.3  # 11 degrees of freedom, p = 0.001


def test_the_number_of_tokens_and_spans_follows_the_settings():
    for length in range(2, 200):
        noise, spans = span_counts(length, 0.15, 3.0)
        assert noise == min(max(round(0.15 * length), 1), length - 1)
        mask = noise_mask(length, 0.15, 3.0, 5, torch.Generator().manual_seed(length))
        assert mask.sum(1).tolist() == [noise] * 5
        starts = mask[:, 1:] & ~mask[:, :-1]
        assert starts.sum(1).tolist() == [spans] * 5
        assert not mask[:, 0].any()
    assert span_counts(10, 0.9, 1.0) == (9, 1)  # no more spans than kept tokens to stand between them


def test_masks_follow_their_generator():
    first, again, other = (view_of(64, rows=8)[1], view_of(64, rows=8)[1], view_of(64, rows=8, seed=1)[1])
    assert torch.equal(first.source_BS, again.source_BS)
    assert not torch.equal(first.source_BS >= 20, other.source_BS >= 20)
    assert len({tuple(row) for row in (first.source_BS >= 20).tolist()}) > 1  # rows are cut differently


def test_of_a_probe_the_answers_are_the_spans_and_only_they_are_scored():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 50)
    first = task.vocabulary.size - 1
    sentinels = [first - pair for pair in range(4)]
    for view in (objective(task).view(batch, torch.Generator()), objective(task).answer_view(batch)):
        scored = view.weight_BT > 0
        answers = batch.tokens_BT[batch.answer_BT].view(50, 4)
        assert torch.equal(view.target_BT[scored].view(50, 4), answers)
        assert view.count_B.tolist() == [4] * 50
        assert view.source_BS.shape == (50, 33)
        assert torch.equal(view.source_BS[:, :-1][~batch.answer_BT], batch.context_BT[~batch.answer_BT])
        assert view.source_BS[:, :-1][batch.answer_BT].view(50, 4).tolist() == [sentinels] * 50
        # pad, then each sentinel and what the context shows of its answer: the filler
        expected = [task.vocabulary.pad, *(token for s in sentinels for token in (s, 0))]
        assert view.tokens_BT.tolist() == [expected] * 50


def test_the_likelihood_is_of_the_cut_tokens_alone():
    batch, model = toys.random_text(6, 40, 20), toys.uniform_model(TASK.vocabulary)
    score = objective(evaluation_samples=3).likelihood_score(model, batch, toys.generators(6))
    assert score.bytes_B.tolist() == [3 * 6] * 6
    torch.testing.assert_close(score.nats_B, torch.full((6,), 18 * math.log(SIZE), dtype=torch.float64))


def test_the_likelihood_reads_earlier_spans():
    """It is the sum that the decoder's own steps give, sentinels and the end left out."""
    batch, model = toys.random_text(2, 40, 20), toys.build("encoder_decoder", SIZE)
    corrupt = objective(evaluation_samples=1)
    score = corrupt.likelihood_score(model, batch, toys.generators(2))
    for row in range(2):
        one = toys.whole(batch.tokens_BT[row : row + 1])
        view = corrupt.view(one, toys.generators(2)[row])
        state = model.start(1, view.tokens_BT.shape[1], source_BS=view.source_BS)
        nats = 0.0
        for token, target in zip(view.tokens_BT[0], view.target_BT[0], strict=True):
            log_p = model.step(token.view(1, 1), state)[0, 0].log_softmax(-1)
            nats -= log_p[target].item() if target < 20 else 0.0
        assert score.nats_B[row].item() == pytest.approx(nats, rel=1e-5)


def test_sampling_at_temperature_zero_takes_the_most_likely_symbol():
    model = toys.build("encoder_decoder", SIZE)
    prompts = toys.random_text(3, 6, 20).tokens_BT

    def sample(rows, sampling, seed=0):
        generators = toys.generators(len(rows), seed)
        return objective().sample(model, rows, max_tokens=8, generators=generators, sampling=sampling)

    source = torch.cat([prompts, torch.tensor([[SIZE - 1, EOS]]).expand(3, 2)], dim=1)
    written = torch.tensor([[PAD, SIZE - 1]]).expand(3, 2)
    for _ in range(8):
        guess = model(written, source_BS=source).logits_BTV[:, -1, :20].argmax(-1)
        written = torch.cat([written, guess[:, None]], dim=1)
    assert sample(prompts.tolist(), GREEDY) == written[:, 2:].tolist()
    drawn = [sample(prompts.tolist(), SamplingConfig(), seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_sample_does_not_depend_on_sources_of_other_lengths():
    model = toys.build("encoder_decoder", SIZE)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12]]

    def sample(rows):
        return objective().sample(
            model,
            [prompts[row] for row in rows],
            max_tokens=9,
            generators=[toys.generators(3)[row] for row in rows],
            sampling=SamplingConfig(),
            stop={EOS, 3},
        )

    assert sample([0, 1, 2]) == [sample([row])[0] for row in range(3)]


def test_too_few_sentinels_are_refused_with_a_remedy():
    with pytest.raises(
        DataError, match=r"10 spans .* has 9 sentinels .* raise task.num_sentinels to 10, or lower"
    ):
        view_of(200, task=toys.Symbols(20, num_sentinels=9))


def test_padded_text_is_refused():
    batch = toys.padded_text([20, 12], TASK.vocabulary)
    with pytest.raises(DataError, match="full windows"):
        objective().view(batch, torch.Generator())
    with pytest.raises(DataError, match="full windows"):
        objective().likelihood_score(toys.uniform_model(TASK.vocabulary), batch, toys.generators(2))


@pytest.mark.parametrize(
    "settings",
    [
        {"noise_density": 0.0},
        {"noise_density": 1.0},
        {"mean_noise_span_length": 0.5},
        {"evaluation_samples": 0},
        {"source_length": 2},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        SpanCorruptionConfig(**settings)


def test_a_beam_search_keeps_each_source_with_its_beams():
    model, v = toys.build("encoder_decoder", SIZE), toys.Symbols(20, num_sentinels=SIZE - 24).vocabulary
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]

    def search(rows):
        opening = objective().prefill_state(model, rows, 8)
        return beam_search(model, opening, v, BeamConfig(num_beams=3), max_tokens=8, stop={EOS})

    apart = [search([prompt])[0] for prompt in prompts]
    assert [[h.tokens for h in row] for row in search(prompts)] == [[h.tokens for h in row] for row in apart]
    assert len({tuple(row[0].tokens) for row in apart}) > 1
