import dataclasses
import math

import pytest
import torch

from archbench.experiments.objectives.language_modelling.prefix_lm import (
    CausalPrefixLM,
    PrefixLM,
    PrefixLMConfig,
    suffix_mask,
)
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

TASK = toys.Symbols(20)
PAD, SIZE = TASK.vocabulary.pad, TASK.vocabulary.size


def objective(form=PrefixLM, task=TASK, **settings):
    return form(PrefixLMConfig(**settings), task)


def test_the_cut_is_uniform_and_leaves_something_on_both_sides():
    noise = torch.rand(7000, generator=torch.Generator().manual_seed(0))
    suffix = suffix_mask(torch.ones(7000, 8, dtype=torch.bool), noise)
    counts = torch.bincount(suffix.sum(1), minlength=9)
    assert counts[0] == counts[8] == 0
    assert ((counts[1:8] - 1000.0) ** 2 / 1000).sum() < 22.5  # 6 degrees of freedom, p = 0.001
    assert (suffix[:, 1:] >= suffix[:, :-1]).all()
    extremes = suffix_mask(torch.ones(2, 8, dtype=torch.bool), torch.tensor([0.0, 1 - 2**-24]))
    assert extremes.sum(1).tolist() == [7, 1]


def test_source_and_target_are_the_text_cut_once():
    batch = toys.random_text(50, 16, 20)
    view = objective().view(batch, torch.Generator().manual_seed(0))
    lengths = view.source_valid_BS.sum(1)
    assert len(set(lengths.tolist())) > 8
    for row, length in enumerate(lengths.tolist()):
        text = batch.tokens_BT[row].tolist()
        assert view.source_BS[row, :length].tolist() == text[:length]
        assert view.target_BT[row, : 16 - length].tolist() == text[length:]
        assert view.tokens_BT[row, : 16 - length].tolist() == [PAD, *text[length:-1]]
    assert view.count_B.tolist() == (16 - lengths).tolist() == view.valid_BT.sum(1).tolist()


def test_a_causal_backbone_is_scored_on_the_same_tokens():
    batch = toys.random_text(50, 16, 20)
    two, one = (
        objective(form).view(batch, torch.Generator().manual_seed(0)) for form in (PrefixLM, CausalPrefixLM)
    )
    assert one.source_BS is None
    assert torch.equal(one.count_B, two.count_B)
    assert torch.equal(one.target_BT, batch.tokens_BT)
    assert torch.equal(one.tokens_BT[:, 1:], batch.tokens_BT[:, :-1])
    assert (one.weight_BT[:, 0] == 0).all()
    assert torch.equal(one.target_BT[one.weight_BT > 0], two.target_BT[two.weight_BT > 0])


@pytest.mark.parametrize(("form", "name"), [(PrefixLM, "encoder_decoder"), (CausalPrefixLM, "decoder")])
def test_the_likelihood_is_of_what_follows_the_cuts(form, name):
    batch, chosen = toys.random_text(3, 12, 20), objective(form, evaluation_samples=2)
    uniform = chosen.likelihood_score(toys.uniform_model(TASK.vocabulary), batch, toys.generators(3))
    torch.testing.assert_close(uniform.nats_B, uniform.bytes_B * math.log(SIZE))
    model = toys.build(name, SIZE)
    score = chosen.likelihood_score(model, batch, toys.generators(3))
    for row in range(3):
        draws, nats = toys.generators(3)[row], 0.0
        for _ in range(2):  # of which the score is the mean
            suffix = suffix_mask(torch.ones(1, 12, dtype=torch.bool), torch.rand(1, generator=draws))[0]
            text, cut = batch.tokens_BT[row], 12 - int(suffix.sum())
            opening = chosen.prefill_state(model, [text[:cut].tolist()], 12)
            logits = model.step(opening.unread_BT, opening.state)[0, -1]
            for token in text[cut:]:
                nats -= logits.log_softmax(-1)[token].item() / 2
                logits = model.step(token.view(1, 1), opening.state)[0, -1]
        assert score.nats_B[row].item() == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize(("form", "name"), [(PrefixLM, "encoder_decoder"), (CausalPrefixLM, "decoder")])
def test_of_a_window_with_context_just_the_rest_is_scored_given_the_context(form, name):
    batch, chosen = toys.random_text(3, 12, 20), objective(form)
    answer_BT = torch.arange(12).expand(3, -1) >= torch.tensor([[6], [6], [9]])
    windows = dataclasses.replace(batch, answer_BT=answer_BT)
    model = toys.build(name, SIZE)
    score = chosen.likelihood_score(model, windows, toys.generators(3))
    assert score.bytes_B.tolist() == [6, 6, 3]
    for row, cut in enumerate((6, 6, 9)):
        text, nats = batch.tokens_BT[row], 0.0
        opening = chosen.prefill_state(model, [text[:cut].tolist()], 12)
        logits = model.step(opening.unread_BT, opening.state)[0, -1]
        for token in text[cut:]:
            nats -= logits.log_softmax(-1)[token].item()
            logits = model.step(token.view(1, 1), opening.state)[0, -1]
        assert score.nats_B[row].item() == pytest.approx(nats, rel=1e-5)


def test_both_forms_are_of_one_class_and_never_of_that_of_whole_texts():
    two, one = objective().likelihood, objective(CausalPrefixLM).likelihood
    assert two == one
    assert two.kind == "conditional"


def test_of_a_probe_what_stands_before_the_first_answer_is_the_prefix():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 30)
    first = batch.answer_BT.int().argmax(1)
    view = objective(task=task).view(batch, torch.Generator())
    assert view.source_valid_BS is None or torch.equal(view.source_valid_BS.sum(1), first)
    assert view.count_B.tolist() == [4.0] * 30
    assert torch.equal(view.target_BT[view.weight_BT > 0], batch.tokens_BT[batch.answer_BT])
    fillers = view.tokens_BT[:, 1:][view.weight_BT[:, :-1] > 0]  # what is read behind an answer
    assert (fillers == 0).all()


def test_an_empty_prompt_is_refused():
    with pytest.raises(DataError, match="give a token"):
        objective().prefill_state(toys.build("encoder_decoder", SIZE), [[1], []], 4)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="evaluation_samples=0"):
        PrefixLMConfig(evaluation_samples=0)
