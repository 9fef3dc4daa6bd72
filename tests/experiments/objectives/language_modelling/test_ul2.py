from collections import Counter

import pytest
import torch

from archbench.experiments.objectives.language_modelling.prefix_lm import PrefixLM, PrefixLMConfig
from archbench.experiments.objectives.language_modelling.span_corruption import noise_mask, span_counts
from archbench.experiments.objectives.language_modelling.ul2 import (
    DENOISERS,
    UL2,
    Denoiser,
    UL2Config,
    cut_mask,
)
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys


class Windows(toys.Symbols):
    sequence_length = 64


TASK = Windows(20, num_sentinels=20)
EOS, PAD, SIZE = TASK.vocabulary.eos, TASK.vocabulary.pad, TASK.vocabulary.size
R, S, X = SIZE - 20, SIZE - 19, SIZE - 18
"""Mode tokens: the lowest sentinel ids."""


def objective(task=TASK, **settings):
    return UL2(UL2Config(**settings), task)


def only(index):
    """Rates that draw one denoiser."""
    return [float(i == index) for i in range(7)]


def test_the_seven_denoisers_are_those_of_the_paper():
    """Tay et al. 2022, table 1: (mean span, share) of R, S and X."""
    assert [(d.mode, d.mean_span, d.density) for d in DENOISERS if d.mode != "S"] == [
        ("R", 3, 0.15), ("R", 8, 0.15), ("X", 3, 0.5), ("X", 8, 0.5), ("X", 64, 0.15), ("X", 64, 0.5),
    ]  # fmt: skip
    assert cut_mask(64, DENOISERS[2], torch.Generator()).tolist() == [False] * 48 + [True] * 16


@pytest.mark.parametrize("index", [0, 1, 3, 4, 5, 6])
def test_spans_are_cut_as_by_span_corruption_behind_a_mode_token(index):
    denoiser, batch = DENOISERS[index], toys.random_text(6, 64, 20)
    view = objective(mixture_weights=only(index)).view(batch, torch.Generator().manual_seed(0))
    noise, spans = span_counts(64, denoiser.density, denoiser.mean_span)
    assert view.source_BS.shape == (6, 1 + 64 - noise + spans + 1)
    assert view.target_BT.shape == (6, noise + spans + 1)
    assert view.source_BS[:, 0].tolist() == [{"R": R, "X": X}[denoiser.mode]] * 6
    assert view.target_BT[:, 0].tolist() == [SIZE - 1] * 6
    assert (view.source_BS[:, -1] == EOS).all()
    assert (view.target_BT[:, -1] == EOS).all()
    marks = [token for token in view.source_BS[0, 1:].tolist() if token > EOS + 1]
    assert marks == list(range(SIZE - 1, SIZE - 1 - spans, -1))
    assert (view.weight_BT == 1).all()


def test_the_s_denoiser_cuts_off_the_last_quarter_without_sentinels():
    batch = toys.random_text(3, 64, 20)
    view = objective(mixture_weights=only(2)).view(batch, torch.Generator())
    for row in range(3):
        text = batch.tokens_BT[row].tolist()
        assert view.source_BS[row].tolist() == [S, *text[:48], EOS]
        assert view.target_BT[row].tolist() == [*text[48:], EOS]


def test_each_example_draws_its_denoiser_by_the_rates():
    rates = [3.0, 0.0, 2.0, 0.0, 1.0, 0.0, 0.0]
    batch = toys.random_text(1200, 64, 20)
    view = objective(mixture_weights=rates).view(batch, torch.Generator().manual_seed(0))
    modes = Counter(view.source_BS[:, 0].tolist())
    expected = {R: 600, S: 400, X: 200}
    assert set(modes) == set(expected)
    assert sum((modes[m] - e) ** 2 / e for m, e in expected.items()) < 13.9  # 2 d.f., p = 0.001
    # Rows of different lengths share the batch; each is whole and ends with the end token.
    for row in (0, 1, 2, 3, 4):
        target = view.target_BT[row][view.valid_BT[row]].tolist()
        source = view.source_BS[row][view.source_valid_BS[row]].tolist()
        assert target[-1] == source[-1] == EOS
        symbols = [token for token in source + target if token < 20]
        assert Counter(symbols) == Counter(batch.tokens_BT[row].tolist())
    again = objective(mixture_weights=rates).view(batch, torch.Generator().manual_seed(0))
    assert torch.equal(view.source_BS, again.source_BS)


def test_the_likelihood_is_that_of_the_prefix_lm_in_mode_s():
    """Same class and estimator, the same tokens scored: uniform models score alike, mode S is shown."""
    batch, model = toys.random_text(4, 64, 20), toys.uniform_model(TASK.vocabulary)
    ul2, prefix = objective(), PrefixLM(PrefixLMConfig(), TASK)
    assert ul2.likelihood == prefix.likelihood
    scores = [o.likelihood_score(model, batch, toys.generators(4)) for o in (ul2, prefix)]
    assert torch.equal(scores[0].bytes_B, scores[1].bytes_B)
    torch.testing.assert_close(scores[0].nats_B, scores[1].nats_B)
    view = ul2.answer_view(Recall(RecallConfig()).batch("train", 0, 0, 2))
    assert view.source_BS[:, 0].tolist() == [S, S]
    assert view.count_B.tolist() == [4, 4]  # neither the end token nor anything but answers


def test_a_prompt_is_read_in_mode_s():
    model = toys.build("encoder_decoder", SIZE)
    shown = []
    model.start = lambda size, length, **source: shown.append(source)
    objective().prefill_state(model, [[1, 2, 3], [4]], 5)
    assert shown[0]["source_BS"].tolist() == [[S, 1, 2, 3, EOS], [S, 4, EOS, PAD, PAD]]


def test_too_few_sentinels_are_refused_before_anything_is_drawn():
    few = Windows(20, num_sentinels=10)
    with pytest.raises(ConfigError, match=r"11 spans out of 64 tokens and needs 14 sentinels .* has 10"):
        objective(few)
    objective(few, mixture_weights=[1, 1, 1, 0, 1, 1, 1])  # without X 3/50% seven are enough
    objective(Windows(20, num_sentinels=14))


@pytest.mark.parametrize("rates", [[1.0], [0.0] * 7, [-1.0] + [1.0] * 6])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(ValueError, match=r"mixture_weights=.*7 numbers"):
        UL2Config(mixture_weights=rates)


def test_long_spans_in_short_windows_are_one_span():
    mask = cut_mask(40, Denoiser("X", 64, 0.5), torch.Generator().manual_seed(0))
    assert mask.sum() == 20
    assert torch.equal(mask, noise_mask(40, 0.5, 64, 1, torch.Generator().manual_seed(0))[0])
    assert mask.tolist() == [False] * 20 + [True] * 20
