"""Lano: examples are texts of the grammar, and a model that knows the grammar has no excess bits."""

import numpy as np
import pytest
import torch

from archbench.architectures.backbone import Backbone, BackboneConfig, Capabilities, Flops, Output
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.tasks.formal.lano import Lano, LanoConfig

SMALL = {"depth": 2, "sequence_length": 20, "prompt_length": 2}


def sentences(tokens: list[int]) -> list[list[int]]:
    """The whole sentences of a text."""
    ends = [place for place, token in enumerate(tokens) if token == 0]
    return [tokens[begin + 1 : end] for begin, end in zip([-1, *ends], ends, strict=False)]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_examples_are_full_texts_of_the_language(split: str) -> None:
    task = Lano(LanoConfig())
    batch = task.batch(split, 0, 0, 40)
    for tokens in batch.tokens_BT.tolist():
        assert len(tokens) == task.sequence_length
        assert all(task.grammar.parses(sentence) for sentence in sentences(tokens))
        assert np.isfinite(task.grammar.log2_probability(np.array([tokens]))[0])
    assert (batch.true_nats_B is None) == (split == "train")
    assert batch.whole
    assert batch.valid_BT.all()


def test_an_example_is_a_function_of_split_seed_and_number() -> None:
    task = Lano(LanoConfig())
    together = task.batch("test", 3, 100, 12)
    single = task.batch("test", 3, 105, 1)
    assert torch.equal(single.tokens_BT[0], together.tokens_BT[5])
    assert single.true_nats_B is not None
    assert together.true_nats_B is not None
    assert single.true_nats_B[0] == pytest.approx(float(together.true_nats_B[5]))


class Truth(Backbone):
    """The next-token distribution of the grammar."""

    Config = BackboneConfig
    capabilities = Capabilities(causal=True)

    def __init__(self, task: Lano) -> None:
        super().__init__(BackboneConfig(), vocab_size=task.vocabulary.size, max_length=64)
        self.task, self.scale = task, torch.nn.Parameter(torch.zeros(()))

    def compute(self, inputs):
        texts = inputs.tokens_BT[:, 1:].numpy()  # without the begin token
        options = np.arange(1 + self.task.config.num_symbols)
        logits_BTV = torch.full((*inputs.tokens_BT.shape, self.vocab_size), -torch.inf)
        for position in range(inputs.tokens_BT.shape[1]):
            prefix = np.repeat(texts[:, :position], len(options), axis=0)
            ends = np.tile(options, len(texts))[:, None]
            log2_N = self.task.grammar.log2_probability(np.concatenate([prefix, ends], axis=1))
            nats = torch.from_numpy(log2_N.reshape(len(texts), -1) * np.log(2))
            logits_BTV[:, position, : len(options)] = (nats - nats.logsumexp(1, keepdim=True)).float()
        return Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV)

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        return Flops()


class Uniform(Truth):
    """All terminals and the end equally likely."""

    def compute(self, inputs):
        logits_BTV = torch.full((*inputs.tokens_BT.shape, self.vocab_size), -torch.inf)
        logits_BTV[..., : 1 + self.task.config.num_symbols] = 0
        return Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV)


def metrics(model: Backbone, task: Lano):
    objective = CausalLM(CausalLMConfig(), task)
    return measure(model, objective, task, "test", examples=60, batch_size=50, precision="fp32")


def test_the_grammar_has_no_excess_bits_and_completes_every_sentence() -> None:
    task = Lano(LanoConfig(**SMALL))
    excess, valid = metrics(Truth(task), task)
    assert (excess.name, excess.unit, excess.direction) == ("excess_bits", "bits/token", "lower")
    assert excess.value == pytest.approx(0, abs=1e-5)
    assert excess.standard_error == pytest.approx(0, abs=1e-5)
    assert excess.likelihood == "exact"
    assert (valid.name, valid.direction, valid.value) == ("valid_continuations", "higher", 1)
    assert valid.items == 200


def test_a_model_without_knowledge_has_the_excess_of_the_uniform_code() -> None:
    task = Lano(LanoConfig(**SMALL))
    excess, valid = metrics(Uniform(task), task)
    nats = task.batch("test", 0, 0, 60).true_nats_B
    assert nats is not None
    assert excess.value == pytest.approx(2 - float(nats.sum()) / np.log(2) / 60 / 20, rel=1e-5)
    assert valid.value < 0.3


def test_validation_and_training_do_not_generate() -> None:
    task = Lano(LanoConfig(**SMALL))
    objective = CausalLM(CausalLMConfig(), task)
    settings = {"examples": 20, "batch_size": 20, "precision": "fp32"}
    assert len(measure(Uniform(task), objective, task, "validation", **settings)) == 1  # type: ignore[arg-type]


def test_reference_lines() -> None:
    lines = {line.name: line.value for line in Lano(LanoConfig()).references()}
    assert list(lines) == ["uniform", "unigram", "shallow: 8-gram", "grammar"]
    assert lines["grammar"] == 0
    assert lines["unigram"] > lines["shallow: 8-gram"] > 0.1  # neighbouring tokens are not enough


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_deeper_grammars_need_longer_contexts(depth: int) -> None:
    """The shallow baseline of the ladder: only two levels are within reach of an n-gram."""
    settings = {2: (32, 2), 3: (64, 4), 4: (128, 8)}[depth]
    task = Lano(LanoConfig(depth=depth, sequence_length=settings[0], prompt_length=settings[1]))
    best = task.references()[2].value
    assert best < 0.02 if depth == 2 else best > 0.15


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ([2, 2, 3, 2, 2, 2, 2, 0], True),
        ([2, 2, 3, 2, 2, 2, 2, 0, 3, 0], True),
        ([2, 2, 3, 2, 2, 2, 2], False),
        ([2, 2, 0], False),
        ([0], False),
    ],
)
def test_a_text_is_valid_if_its_first_sentence_is_of_the_language(text: list[int], valid: bool) -> None:
    assert Lano(LanoConfig(**SMALL)).is_valid(text) == valid


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 24}, "the longest sentence and its end need 25 or more"),
        ({"prompt_length": 10}, "below the 10 tokens of the shortest sentence"),
        ({"depth": 0}, "depth=0 must be in 1 to 7"),
        ({"min_rules": 5}, "min_rules=5 and max_rules=4 must rise from 1 to at most 12"),
        ({"max_rules": 13}, "at most 12: 3 symbols have 36 different right-hand sides"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lano(LanoConfig(**settings))


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert Lano(LanoConfig(**SMALL)).batch("train", 0, 0, 1).tokens_BT[0].tolist() == [
        2, 2, 2, 1, 2, 2, 2, 1, 0, 2, 2, 1, 3, 1, 1, 1, 0, 2, 2, 2,
    ]  # fmt: skip
