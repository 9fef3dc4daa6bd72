import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from archbench.architectures.backbone import Capabilities
from archbench.architectures.decoding_state import DecodingState
from archbench.experiments.objectives.decoding.beam_search import BeamConfig, beam_search
from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig, allowed_tokens
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

TASK = toys.Symbols(20)
BOS = TASK.vocabulary.bos


def objective(task=TASK):
    return CausalLM(CausalLMConfig(), task)


def test_documents_of_one_window_are_told_apart():
    """An end token opens the next document: what it predicts is that document's first token."""
    eos = TASK.vocabulary.eos
    batch = toys.whole(torch.tensor([[3, eos, 4, 1, eos, 2]]))
    apart = CausalLM(CausalLMConfig(separate_documents=True), TASK).view(batch, torch.Generator())
    assert apart.tokens_BT.tolist() == [[BOS, 3, eos, 4, 1, eos]]
    assert apart.documents_BT.tolist() == [[0, 0, 1, 1, 1, 2]]
    assert objective().view(batch, torch.Generator()).documents_BT is None
    model = toys.build("decoder", TASK.vocabulary.size)
    with torch.no_grad():
        together = apart.run(model).logits_BTV[0]
        alone = model(torch.tensor([[eos, 4, 1]])).logits_BTV[0]
    torch.testing.assert_close(together[2:5], alone)


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


def test_training_may_score_every_token():
    """All but padding; held-out scores stay those of the answers."""
    every = CausalLM(CausalLMConfig(every_token=True), TASK)
    batch = toys.whole(torch.tensor([[3, 1, 4, 1]]))
    batch = replace(
        batch,
        answer_BT=torch.tensor([[False, True, False, False]]),
        valid_BT=torch.tensor([[True, True, True, False]]),
    )
    view = every.view(batch, torch.Generator())
    assert view.weight_BT.tolist() == [[1, 1, 1, 0]]
    assert view.count_B.tolist() == [3]
    assert every.answer_view(batch).weight_BT.tolist() == [[0, 1, 0, 0]]
    assert objective().view(batch, torch.Generator()).weight_BT.tolist() == [[0, 1, 0, 0]]


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


def test_a_first_token_behind_no_begin_token_is_not_scored(monkeypatch):
    """Tokenizers of some folders have no begin token: nats and bytes of the first token do not count."""
    monkeypatch.setattr(CausalLM, "begin", ())
    batch = replace(toys.whole(torch.tensor([[3, 1, 4, 1]])), bytes_BT=torch.tensor([[5, 1, 2, 3]]))
    model = toys.uniform_model(TASK.vocabulary)
    score = objective().likelihood_score(model, batch, toys.generators(1))
    assert score.nats_B.item() == pytest.approx(3 * math.log(TASK.vocabulary.size))
    assert score.bytes_B.tolist() == [1 + 2 + 3]


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
    prompts = toys.random_text(3, 4, 20).tokens_BT
    written = objective().sample(
        model, prompts.tolist(), max_tokens=8, generators=toys.generators(3), sampling=GREEDY
    )
    tokens = torch.cat([torch.full((3, 1), BOS), prompts], dim=1)
    for _ in range(8):
        guess = model(tokens).logits_BTV[:, -1, :20].argmax(-1)
        tokens = torch.cat([tokens, guess[:, None]], dim=1)
    assert written == tokens[:, 5:].tolist()
    assert len({tuple(row) for row in written}) > 1


@pytest.mark.parametrize("name", toys.CAUSAL)
def test_a_sample_does_not_depend_on_its_neighbours(name):
    model = toys.build(name, TASK.vocabulary.size)
    prompts = [toys.random_text(1, length, 20, seed=length).tokens_BT[0].tolist() for length in (3, 11, 1, 7)]
    settings = SamplingConfig(temperature=0.8, top_p=0.95, repetition_penalty=1.3)
    stop = {4, 7, 9, 11, TASK.vocabulary.eos}

    def sample(rows):
        return objective().sample(
            model,
            [prompts[row] for row in rows],
            max_tokens=12,
            generators=[toys.generators(4)[row] for row in rows],
            sampling=settings,
            stop=stop,
        )

    together = sample([0, 1, 2, 3])
    assert together == [sample([row])[0] for row in range(4)]
    assert len({len(row) for row in together}) > 1  # some have stopped before others
    assert all(token not in stop for row in together for token in row[:-1])
    assert all(len(row) == 12 or row[-1] in stop for row in together)


def test_samples_follow_their_generator():
    model = toys.build("decoder", TASK.vocabulary.size)

    def sample(seed):
        return objective().sample(
            model, [[1, 2, 3]], max_tokens=17, generators=toys.generators(1, seed), sampling=SamplingConfig()
        )

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_an_empty_prompt_begins_with_the_begin_token():
    model = toys.build("decoder", TASK.vocabulary.size)
    written = objective().sample(
        model, [[], []], max_tokens=5, generators=toys.generators(2), sampling=GREEDY
    )
    assert [len(row) for row in written] == [5, 5]
    assert written[0][0] == model(torch.tensor([[BOS]])).logits_BTV[0, -1, :20].argmax()


class Loaded(toys.Rule):
    """Favours symbol 0 and, above all, a special token, whatever it has read."""

    def __init__(self):
        logits_V = torch.zeros(TASK.vocabulary.size)
        logits_V[0], logits_V[BOS] = math.log(19), 50.0
        super().__init__(TASK.vocabulary.size, lambda tokens_BT: logits_V.expand(*tokens_BT.shape, -1))

    def start(self, batch_size, max_length, **source):
        return DecodingState(lengths=[0] * batch_size, layers=[])

    def step(self, tokens_BT, state, valid_BT=None):
        return self.rule(tokens_BT)


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 19 / 38), (0.5, 361 / 380), (1e9, 1 / 20)])
def test_symbols_are_drawn_with_their_probability_and_special_tokens_never(temperature, share):
    written = objective().sample(
        Loaded(),
        [[0]] * 400,
        max_tokens=25,
        generators=toys.generators(400),
        sampling=SamplingConfig(temperature=temperature),
    )
    drawn = torch.tensor(written)
    assert drawn.max() < 20
    error = (drawn == 0).float().mean().item() - share
    assert abs(error) < 4 * math.sqrt(share * (1 - share) / 10_000)


@pytest.mark.parametrize("name", toys.CAUSAL)
def test_a_beam_search_moves_the_state_with_its_beams(name):
    """Each hypothesis has the likelihood that one forward pass gives it, whatever its neighbours."""
    model, v = toys.build(name, TASK.vocabulary.size), TASK.vocabulary
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]

    def search(rows):
        opening = objective().prefill_state(model, rows, 8)
        return beam_search(model, opening, v, BeamConfig(num_beams=3), max_tokens=8, stop={v.eos})

    found = search(prompts)
    assert [[h.tokens for h in row] for row in found] == [
        [h.tokens for h in search([prompt])[0]] for prompt in prompts
    ]
    allowed_V = allowed_tokens(v, {v.eos}, torch.device("cpu"))
    for prompt, hypotheses in zip(prompts, found, strict=True):
        for hypothesis in hypotheses:
            written = hypothesis.tokens
            read = torch.tensor([[BOS, *prompt, *written[:-1]]])
            logits_TV = model(read).logits_BTV[0, len(prompt) :].masked_fill(~allowed_V, -torch.inf)
            log_p = logits_TV.log_softmax(-1)[torch.arange(len(written)), written].sum().item()
            assert hypothesis.log_p == pytest.approx(log_p, abs=1e-4)


def test_a_backbone_without_decoding_generates_by_full_passes():
    """The same text as by steps, from prompts of different lengths."""
    model = toys.build("decoder", TASK.vocabulary.size)

    class WithoutDecoding(type(model)):
        capabilities = Capabilities(causal=True)

    plain = WithoutDecoding(model.config, vocab_size=model.vocab_size, max_length=model.max_length).eval()
    plain.to(next(model.parameters()).dtype).load_state_dict(model.eval().state_dict())
    tokens_BT = torch.tensor([[3, 1, 4, 1], [2, 5, 0, 0]])
    valid_BT = torch.tensor([[True] * 4, [True, True, False, False]])
    logits = []
    for each in (model, plain):
        state = each.start(2, 8)
        first = each.step(tokens_BT, state, valid_BT)[valid_BT]
        state.select([1, 0, 1])
        logits.append(torch.cat([first, each.step(torch.tensor([[6], [7], [1]]), state)[:, 0]]))
        assert state.lengths == [3, 5, 3]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    prompts = [[3, 1, 4, 1], [2, 5]]
    for sampling in (GREEDY, SamplingConfig(temperature=1.0)):
        texts = [
            objective().sample(each, prompts, max_tokens=6, generators=toys.generators(2), sampling=sampling)
            for each in (model, plain)
        ]
        assert texts[0] == texts[1]
