import math

import pytest
import torch
import torch.nn.functional as F
import toys

from architectures.backbone import DecodingState
from experiments.objectives.causal_lm import CausalLM, CausalLMConfig
from experiments.tasks.recall import Recall, RecallConfig

TASK = toys.Symbols(20)
BOS = TASK.vocabulary.bos


def objective(task=TASK):
    return CausalLM(CausalLMConfig(), task)


def test_each_token_is_predicted_from_those_before_it():
    batch = toys.whole(torch.tensor([[3, 1, 4, 1]]))
    view = objective().view(batch, torch.Generator())
    assert view.tokens_BT.tolist() == [[BOS, 3, 1, 4]]
    assert view.target_BT.tolist() == [[3, 1, 4, 1]]
    assert view.weight_BT.tolist() == [[1, 1, 1, 1]]
    assert view.count_B.tolist() == [4]


def test_only_answers_are_scored_and_none_is_shown():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 50)
    view = objective(task).view(batch, torch.Generator())
    assert torch.equal(view.weight_BT, batch.answer_BT.float())
    assert (view.count_B == task.config.num_pairs).all()
    assert torch.equal(view.tokens_BT[:, 1:], batch.context_BT[:, :-1])
    answers = view.target_BT[batch.answer_BT].view(50, -1)
    shown_later = view.tokens_BT[:, 2 * task.config.num_pairs + 1 :]  # after the pairs
    assert not (shown_later[:, :, None] == answers[:, None]).any()


def test_padding_is_not_scored():
    lengths = [6, 2, 4]
    batch = toys.padded_text(lengths, TASK.vocabulary)
    view = objective().view(batch, torch.Generator())
    assert torch.equal(view.weight_BT.bool(), batch.valid_BT)
    assert view.count_B.tolist() == lengths
    score = objective().likelihood_score(toys.uniform_model(TASK.vocabulary), batch, toys.generators(3))
    expected = torch.tensor(lengths).double() * math.log(TASK.vocabulary.size)
    torch.testing.assert_close(score.nats_B, expected)
    assert score.bytes_B.tolist() == lengths


def test_a_uniform_model_pays_the_log_of_the_vocabulary():
    model, batch = toys.uniform_model(TASK.vocabulary), toys.random_text(5, 12, 20)
    view = objective().view(batch, torch.Generator())
    total, count = objective().loss(view.run(model), view)
    assert count == 60
    assert total / count == pytest.approx(math.log(TASK.vocabulary.size))


@pytest.mark.parametrize("name", toys.CAUSAL)
def test_the_likelihood_is_the_chain_rule_step_by_step(name):
    model, batch = toys.build(name, TASK.vocabulary.size), toys.random_text(3, 9, 20)
    score = objective().likelihood_score(model, batch, toys.generators(3))
    state = model.start(3, 9)
    nats_B, previous_B = torch.zeros(3, dtype=torch.float64), torch.full((3,), BOS)
    for token_B in batch.tokens_BT.unbind(1):
        logits_BV = model.step(previous_B[:, None], state)[:, 0]
        nats_B += F.cross_entropy(logits_BV, token_B, reduction="none")
        previous_B = token_B
    torch.testing.assert_close(score.nats_B.detach(), nats_B, atol=1e-5, rtol=1e-6)
    assert (score.nats_B > 9 * 0.5).all()


@pytest.mark.parametrize("name", toys.CAUSAL)
def test_sampling_at_temperature_zero_takes_the_most_likely_symbol(name):
    model = toys.build(name, TASK.vocabulary.size)
    prompt = toys.random_text(3, 4, 20).tokens_BT
    sample = objective().sample(model, prompt, 12, torch.Generator(), temperature=0)
    tokens = torch.cat([torch.full((3, 1), BOS), prompt], dim=1)
    for _ in range(8):
        guess = model(tokens).logits_BTV[:, -1, :20].argmax(-1)
        tokens = torch.cat([tokens, guess[:, None]], dim=1)
    assert sample.tolist() == tokens[:, 1:].tolist()
    assert len({tuple(row) for row in sample[:, 4:].tolist()}) > 1


def test_samples_follow_their_generator():
    model = toys.build("decoder", TASK.vocabulary.size)
    prompt = toys.random_text(2, 3, 20).tokens_BT

    def sample(seed):
        return objective().sample(model, prompt, 20, torch.Generator().manual_seed(seed)).tolist()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert [row[:3] for row in sample(1)] == prompt.tolist()


def test_an_empty_prompt_begins_with_the_begin_token():
    model = toys.build("decoder", TASK.vocabulary.size)
    empty = torch.zeros(2, 0, dtype=torch.long)
    sample = objective().sample(model, empty, 5, torch.Generator(), temperature=0)
    assert sample.shape == (2, 5)
    assert sample[0, 0] == model(torch.tensor([[BOS]])).logits_BTV[0, -1, :20].argmax()


class Loaded(toys.Rule):
    """Favours symbol 0 and, above all, a special token, whatever it has read."""

    def __init__(self):
        logits_V = torch.zeros(TASK.vocabulary.size)
        logits_V[0], logits_V[BOS] = math.log(19), 50.0
        super().__init__(TASK.vocabulary.size, lambda tokens_BT: logits_V.expand(*tokens_BT.shape, -1))

    def start(self, batch_size, max_length, **source):
        return DecodingState(length=0, layers=[])

    def step(self, tokens_BT, state):
        return self.rule(tokens_BT)


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 19 / 38), (0.5, 361 / 380), (1e9, 1 / 20)])
def test_symbols_are_drawn_with_their_probability_and_special_tokens_never(temperature, share):
    prompt = torch.zeros(400, 1, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    drawn = objective().sample(Loaded(), prompt, 26, generator, temperature)[:, 1:]
    assert drawn.max() < 20
    error = (drawn == 0).float().mean().item() - share
    assert abs(error) < 4 * math.sqrt(share * (1 - share) / 10_000)
