import pytest
import torch

from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments.objectives import toys

TASK = toys.Symbols(20)
MASK = TASK.vocabulary.mask
ANY = SamplingConfig()


def confident_from_the_right(tokens_BT):
    """Position t wants symbol t, the more surely the further right; special tokens tempt everywhere."""
    length = tokens_BT.shape[1]
    logits_BTV = torch.zeros(*tokens_BT.shape, TASK.vocabulary.size)
    place_T = torch.arange(length)
    logits_BTV[:, place_T, place_T] = 1.0 + place_T.float()
    logits_BTV[..., MASK] = 100.0
    return logits_BTV


def fill(model, prompts, max_tokens, steps, sampling=GREEDY, **settings):
    return MaskedDiffusion(MaskedDiffusionConfig(sampling_steps=steps), TASK).generate(
        model,
        prompts,
        max_tokens=max_tokens,
        generators=toys.generators(len(prompts)),
        sampling=sampling,
        **settings,
    )


def prompts(count, length):
    return toys.random_text(count, length, 20).tokens_BT.tolist()


@pytest.mark.parametrize(
    ("steps", "left"), [(1, [12]), (3, [12, 8, 4]), (5, [12, 9, 6, 4, 2]), (99, [*range(12, 0, -1)])]
)
def test_equal_numbers_are_committed_and_no_mask_is_left(steps, left):
    model = toys.Rule(TASK.vocabulary.size, confident_from_the_right)
    given = prompts(5, 4)
    assert fill(model, given, 12, steps) == [list(range(4, 16))] * 5
    assert [(shown == MASK).sum(1).tolist() for shown in model.shown] == [[n] * 5 for n in left]
    assert all(shown[:, :4].tolist() == given for shown in model.shown)


def test_the_most_confident_are_committed_first():
    model = toys.Rule(TASK.vocabulary.size, confident_from_the_right)
    fill(model, prompts(2, 4), 12, steps=4)
    for step, shown in enumerate(model.shown):
        assert shown[:, 16 - 3 * step :].tolist() == [list(range(16 - 3 * step, 16))] * 2
        assert (shown[:, 4 : 16 - 3 * step] == MASK).all()


def test_nothing_to_fill_in_is_nothing():
    model = toys.Rule(24, confident_from_the_right)
    assert fill(model, prompts(2, 8), 0, steps=4) == [[], []]
    assert fill(model, [], 5, steps=4) == []
    assert model.shown == []


def test_an_empty_prompt_is_filled():
    filled = fill(toys.build("masked_diffusion", 24), [[], [], []], 10, steps=4, sampling=SamplingConfig())
    assert [len(row) for row in filled] == [10] * 3
    assert max(token for row in filled for token in row) < 20


def test_a_text_ends_at_the_first_stop_token_and_only_stop_tokens_may_be_special():
    model = toys.Rule(TASK.vocabulary.size, confident_from_the_right)
    assert fill(model, prompts(1, 4), 12, 3, stop={9, 12}) == [[4, 5, 6, 7, 8, 9]]
    assert fill(model, prompts(1, 4), 12, 3, stop={MASK}) == [[MASK]]


def test_a_repetition_penalty_is_refused():
    model = toys.Rule(TASK.vocabulary.size, confident_from_the_right)
    with pytest.raises(ConfigError, match=r"repetition_penalty=1.2: .* leave it at 1"):
        fill(model, prompts(1, 4), 12, 3, sampling=SamplingConfig(repetition_penalty=1.2))


@pytest.mark.parametrize("name", ["encoder", "masked_diffusion", *toys.RECURRENT_BOTH_WAYS])
def test_a_sample_does_not_depend_on_its_neighbours(name):
    model = toys.build(name, 24)
    given = [[1, 2, 3], [], [4, 5, 6, 7, 8, 9, 10]]
    sampling = SamplingConfig(temperature=0.7, top_k=12, min_p=0.01)

    def sample(rows):
        generators = [toys.generators(3)[row] for row in rows]
        return MaskedDiffusion(MaskedDiffusionConfig(sampling_steps=4), TASK).generate(
            model,
            [given[row] for row in rows],
            max_tokens=9,
            generators=generators,
            sampling=sampling,
        )

    assert sample([0, 1, 2]) == [sample([row])[0] for row in range(3)]


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLM(MaskedLMConfig(sampling_steps=3), TASK),
        MaskedDiffusion(MaskedDiffusionConfig(sampling_steps=3), TASK),
    ],
    ids=["masked_lm", "masked_diffusion"],
)
def test_samples_follow_their_generator_and_take_the_steps_set(objective):
    def sample(seed, sampling=ANY, model=None):
        return objective.sample(
            model or toys.build("encoder", 24),
            prompts(2, 4),
            max_tokens=20,
            generators=toys.generators(2, seed),
            sampling=sampling,
        )

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(1, GREEDY) == sample(2, GREEDY)
    assert all(token < 20 for row in sample(1) for token in row)
    watched = toys.Rule(24, confident_from_the_right)
    sample(1, model=watched)
    assert len(watched.shown) == 3
