"""Capo: facts are random and fixed, epochs are exposures, and stored bits by hand and of models that know."""

import math

import numpy as np
import pytest
import torch

from archbench.architectures.backbone import Backbone, BackboneConfig, Capabilities, Flops, Output, Parameters
from archbench.experiments.evaluation.measure import measure, stored_bits
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.objective import Objective, Score
from archbench.experiments.tasks.recall.capo import Capo, CapoConfig
from archbench.experiments.tasks.task import Facts

SMALL = {"num_names": 50, "num_attributes": 3, "num_values": 16, "name_length": 2, "num_symbols": 10}


def facts(task: Capo, split: str, seed: int, start: int = 0) -> dict[tuple[int, ...], int]:
    """Name and attribute of each fact of an epoch, with its value."""
    length, table = task.config.name_length, {}
    for tokens in task.batch(split, seed, start, task.config.num_names).tokens_BT.tolist():
        for place in range(length, len(tokens), 2):
            table[(*tokens[:length], tokens[place])] = tokens[place + 1]
    return table


def test_every_epoch_and_every_split_has_each_fact_once() -> None:
    task = Capo(CapoConfig(**SMALL))
    table = facts(task, "train", 0)
    assert len(table) == 150
    for split, seed, start in (("train", 0, 50), ("train", 7, 100), ("validation", 0, 0), ("test", 1, 0)):
        assert facts(task, split, seed, start) == table
    assert task.num_examples("train") == task.num_examples("test") == 50
    other = facts(Capo(CapoConfig(**SMALL, facts_seed=1)), "train", 0)
    assert other.keys() != table.keys()


def test_orders_differ_between_exposures() -> None:
    task = Capo(CapoConfig(**SMALL))
    epochs = [task.batch("train", 0, 50 * epoch, 50).tokens_BT.tolist() for epoch in range(2)]
    assert [row[:2] for row in epochs[0]] != [row[:2] for row in epochs[1]]
    attributes = {tuple(row[2::2]) for row in epochs[0]}
    assert len(attributes) == 6


def test_values_are_uniform_and_names_differ() -> None:
    task = Capo(CapoConfig(num_names=4096))
    table = facts(task, "test", 0)
    assert len({name[:3] for name in table}) == 4096
    counts_V = np.bincount(np.array([*table.values()]) - task.first_value, minlength=64)
    expected = 4096 * 4 / 64
    assert (np.abs(counts_V - expected) < 4.5 * expected**0.5).all()


def test_stored_bits_by_hand() -> None:
    """Two names with two facts of 3 bits: 1 and 3 bits of cross-entropy, of 6 in all for each name."""
    nats_B = torch.tensor([1.0, 3.0]).double() * math.log(2)
    total, each = stored_bits([Score(nats_B=nats_B)], Facts(count=4, per_example=2, bits=3), 16, "test")
    assert (total.name, total.unit, total.direction) == ("stored_bits", "bits", "higher")
    assert total.value == pytest.approx(5 + 3)
    assert (each.name, each.unit) == ("stored_bits_per_parameter", "bits/parameter")
    assert each.value == pytest.approx(8 / 16)
    part, _ = stored_bits(
        [Score(nats_B=nats_B[:1].repeat(2))], Facts(count=40, per_example=2, bits=3), 1, "test"
    )
    assert part.value == pytest.approx(20 * 5)  # of all facts, from those that were scored


class Knows(Backbone):
    """Gives a share of the probability to the value, the rest to all values alike."""

    Config = BackboneConfig
    capabilities = Capabilities(causal=True, bidirectional=True)

    def __init__(self, task: Capo, share: float) -> None:
        super().__init__(BackboneConfig(), vocab_size=task.vocabulary.size, max_length=64)
        self.task, self.share = task, share
        self.scale = torch.nn.Parameter(torch.zeros(()))

    def parameters_by_part(self) -> Parameters:
        return Parameters(embedding=100, body=200, head=100)

    def compute(self, inputs):
        c = self.task.config
        first = self.task.first_value
        probability_BTV = torch.zeros(*inputs.tokens_BT.shape, self.vocab_size)
        probability_BTV[..., first : first + c.num_values] = (1 - self.share) / c.num_values
        table = facts(self.task, "train", 0)
        for row, tokens in enumerate(inputs.tokens_BT.tolist()):
            tokens = [token for token in tokens if token != self.task.vocabulary.bos]
            begin = inputs.tokens_BT.shape[1] - len(tokens)
            for place in range(c.name_length, len(tokens), 2):
                value = table[(*tokens[: c.name_length], tokens[place])]
                # A causal model answers where it reads the attribute, a bidirectional one at the answer.
                at = begin + place + (not begin)
                probability_BTV[row, at, value] += self.share
        logits_BTV = probability_BTV.log().clamp_min(-1e4)  # where nothing is known, no value has any
        return Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV)

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        return Flops()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_stored_bits_of_models_that_know_a_share(share: float, kind: str) -> None:
    task = Capo(CapoConfig(**SMALL))
    objective: Objective = CausalLM(CausalLMConfig(), task)
    if kind == "masked":
        objective = MaskedLM(MaskedLMConfig(), task)
    total, each, accuracy, _ = measure(
        Knows(task, share), objective, task, "test", examples=None, batch_size=16, precision="fp32"
    )
    expected = 150 * (4 + math.log2(share + (1 - share) / 16))
    assert total.value == pytest.approx(expected, abs=1e-3)
    assert each.value == pytest.approx(expected / 400, abs=1e-5)
    assert (total.items, total.scored) == (50, "whole split")
    assert accuracy.name == "answer_accuracy"
    assert accuracy.value == pytest.approx(1 if share else 1 / 16, abs=0.0 if share else 0.1)


def test_reference_lines_are_none_and_all_facts() -> None:
    lines = {line.name: line.value for line in Capo(CapoConfig()).references()}
    assert lines == {"chance": 0, "all facts": 1024 * 4 * 6}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_names": 40_000}, "give 32768 names; use at least num_names=40000"),
        ({"name_length": 30}, "at most 16777216"),
        ({"num_values": 1}, "num_values=1 must be at least 2"),
        ({"num_attributes": 0}, "num_attributes=0 must be above 0"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CapoConfig(**settings)


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert Capo(CapoConfig(**SMALL)).batch("train", 0, 0, 2).tokens_BT.tolist() == [
        [1, 1, 12, 28, 11, 23, 13, 28],
        [9, 6, 12, 29, 11, 23, 13, 18],
    ]  # fmt: skip
