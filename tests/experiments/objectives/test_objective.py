import math

import pytest
import torch

from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
)
from archbench.experiments.objectives.objective import View, weighted_cross_entropy
from archbench.experiments.tasks.task import Batch
from tests.experiments.objectives import toys

TASK = toys.Symbols(20, num_sentinels=8)
OBJECTIVES = {
    "causal_lm": CausalLM(CausalLMConfig(), TASK),
    "masked_lm": MaskedLM(MaskedLMConfig(), TASK),
    "masked_diffusion": MaskedDiffusion(MaskedDiffusionConfig(), TASK),
    "span_corruption": SpanCorruption(SpanCorruptionConfig(), TASK),
}


def test_cross_entropies_are_weighted_and_in_float32():
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]]))
    view = View(
        tokens_BT=torch.zeros(1, 2, dtype=torch.long),
        valid_BT=None,
        target_BT=torch.tensor([[1, 2]]),
        weight_BT=torch.tensor([[2.0, 0.0]]),
        count_B=torch.ones(1),
    )
    nats = weighted_cross_entropy(logits.bfloat16(), view)
    assert nats.dtype == torch.float32
    torch.testing.assert_close(nats, torch.tensor([[2 * math.log(4), 0.0]]), atol=0.02, rtol=0)
    torch.testing.assert_close(weighted_cross_entropy(logits, view)[0, 0].item(), 2 * math.log(4))


def test_a_micro_batch_is_rows_of_every_part():
    view = OBJECTIVES["span_corruption"].view(toys.random_text(6, 24, 20), torch.Generator().manual_seed(0))
    part = view.rows(2, 4)
    assert torch.equal(part.source_BS, view.source_BS[2:4])
    assert torch.equal(part.weight_BT, view.weight_BT[2:4])
    assert part.valid_BT is None
    assert part.source_length == view.source_BS.shape[1]
    assert OBJECTIVES["causal_lm"].answer_view(toys.random_text(1, 4, 20)).source_length == 0


def answers():
    """Two examples with answers at their last two positions."""
    tokens_BT = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    answer_BT = torch.tensor([[False, False, True, True]] * 2)
    return Batch(
        tokens_BT=tokens_BT,
        context_BT=tokens_BT.masked_fill(answer_BT, 0),
        answer_BT=answer_BT,
        valid_BT=torch.ones_like(answer_BT),
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_accuracy_is_the_share_of_answers_given(name):
    """A model that knows the first example's answers and one of the second's."""

    def rule(tokens_BT):
        guesses_BK = torch.tensor([[3, 4], [7, 9]])
        scored_BT = objective.answer_view(answers()).weight_BT > 0
        logits_BTV = torch.zeros(*tokens_BT.shape, TASK.vocabulary.size)
        logits_BTV[scored_BT] = (
            torch.nn.functional.one_hot(guesses_BK, TASK.vocabulary.size).float().flatten(0, 1)
        )
        return logits_BTV

    objective = OBJECTIVES[name]
    score = objective.evaluate(toys.Rule(TASK.vocabulary.size, rule), answers(), toys.generators(2))
    assert score.accuracy_B.tolist() == [1.0, 0.5]
    # A logit of 1 at the guess and 0 elsewhere: log(V - 1 + e) nats, and one less where the guess is right.
    choices = TASK.vocabulary.size - (name == "masked_diffusion")  # which never predicts the mask
    wrong = math.log(choices - 1 + math.e)
    assert score.answers_B.tolist() == [2, 2]
    assert score.nats_B.tolist() == pytest.approx([2 * wrong - 2, 2 * wrong - 1], rel=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_score_does_not_depend_on_the_other_sequences(name):
    """Two adjacent or distant neighbours, more or fewer: each sequence keeps its masks and its score."""
    objective, batch = OBJECTIVES[name], toys.random_text(6, 24, 20)
    model = toys.build({"causal_lm": "mamba", "span_corruption": "encoder_decoder"}.get(name, "encoder"), 32)
    together = objective.evaluate(model, batch, toys.generators(6)).nats_B
    for rows in ([0], [4, 1], [5, 3, 2]):
        part = toys.whole(batch.tokens_BT[rows])
        alone = objective.evaluate(model, part, [toys.generators(6)[row] for row in rows]).nats_B
        torch.testing.assert_close(alone, together[rows], rtol=1e-5, atol=1e-6)
