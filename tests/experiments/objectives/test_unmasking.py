import pytest
import torch
import toys

from experiments.objectives.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from experiments.objectives.masked_lm import MaskedLM, MaskedLMConfig
from experiments.objectives.unmasking import unmask

TASK = toys.Symbols(20)
MASK = TASK.vocabulary.mask


def confident_from_the_right(tokens_BT):
    """Position t wants symbol t, the more surely the further right; special tokens tempt everywhere."""
    length = tokens_BT.shape[1]
    logits_BTV = torch.zeros(*tokens_BT.shape, TASK.vocabulary.size)
    place_T = torch.arange(length)
    logits_BTV[:, place_T, place_T] = 1.0 + place_T.float()
    logits_BTV[..., MASK] = 100.0
    return logits_BTV


def fill(model, prompt, length, steps, temperature=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return unmask(model, prompt, length, TASK.vocabulary, generator, steps=steps, temperature=temperature)


@pytest.mark.parametrize(
    ("steps", "left"), [(1, [12]), (3, [12, 8, 4]), (5, [12, 9, 6, 4, 2]), (99, [*range(12, 0, -1)])]
)
def test_equal_numbers_are_committed_and_no_mask_is_left(steps, left):
    model = toys.Rule(TASK.vocabulary.size, confident_from_the_right)
    prompt = toys.random_text(5, 4, 20).tokens_BT
    filled = fill(model, prompt, 16, steps)
    assert [(shown == MASK).sum(1).tolist() for shown in model.shown] == [[n] * 5 for n in left]
    assert torch.equal(filled[:, :4], prompt)
    assert filled[:, 4:].tolist() == [list(range(4, 16))] * 5


def test_the_most_confident_are_committed_first():
    model = toys.Rule(TASK.vocabulary.size, confident_from_the_right)
    fill(model, toys.random_text(2, 4, 20).tokens_BT, 16, steps=4)
    for step, shown in enumerate(model.shown):
        assert shown[:, 16 - 3 * step :].tolist() == [list(range(16 - 3 * step, 16))] * 2
        assert (shown[:, 4 : 16 - 3 * step] == MASK).all()


def test_a_full_prompt_stays_as_it_is():
    prompt = toys.random_text(2, 8, 20).tokens_BT
    assert torch.equal(fill(toys.Rule(24, confident_from_the_right), prompt, 8, steps=4), prompt)


def test_an_empty_prompt_is_filled():
    filled = fill(
        toys.build("diffusion", 24), torch.zeros(3, 0, dtype=torch.long), 10, steps=4, temperature=1.0
    )
    assert filled.shape == (3, 10)
    assert filled.max() < 20


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLM(MaskedLMConfig(sampling_steps=3), TASK),
        MaskedDiffusion(MaskedDiffusionConfig(sampling_steps=3), TASK),
    ],
    ids=["masked_lm", "masked_diffusion"],
)
def test_samples_follow_their_generator_and_take_the_steps_set(objective):
    prompt, model = toys.random_text(2, 4, 20).tokens_BT, toys.build("encoder", 24)

    def sample(seed, temperature=1.0):
        generator = torch.Generator().manual_seed(seed)
        return objective.sample(model, prompt, 24, generator, temperature).tolist()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(1, 0.0) == sample(2, 0.0)
    assert all(token < 20 for row in sample(1) for token in row)
    watched = toys.Rule(24, confident_from_the_right)
    objective.sample(watched, prompt, 24, torch.Generator())
    assert len(watched.shown) == 3
