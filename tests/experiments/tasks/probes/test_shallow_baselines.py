"""Shallow baselines find the shortcut that they look for, and nothing if it is missing."""

from dataclasses import dataclass

import numpy as np
import pytest

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.formal.base import LanguageConfig
from archbench.experiments.tasks.formal.context_free import ReverseString
from archbench.experiments.tasks.formal.regular import EvenPairs, ParityCheck
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.probes.shallow_baselines import Answers, best_reference, shallow_scores
from archbench.experiments.tasks.recall.memorization import Memorization, MemorizationConfig
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig


@dataclass(frozen=True, kw_only=True)
class PlantedConfig(GeneratedConfig):
    """Which shortcut is planted."""

    shortcut: str


class Planted(Probe):
    """Nine random symbols of 1 to 5, then two answers that a shortcut gives away, or none."""

    generator = "planted-1"

    def __init__(self, config: PlantedConfig) -> None:
        self.config, self.sequence_length = config, 11
        self.vocabulary = Vocabulary(num_symbols=6, num_sentinels=1)

    def examples(self, split: str, seed: int, index_B: np.ndarray):
        rng, count = ExampleRNG(seed=seed, split=split, index_B=index_B), len(index_B)
        shown_BN = 1 + rng.integers("shown", 9, 5)
        free_B2 = 1 + rng.integers("free", 2, 5)
        rare_B2 = np.where(rng.uniform("rare", 2) < 0.7, 3, free_B2)
        answer_B2 = {
            "none": free_B2,
            "majority": rare_B2,
            "number of the answer": np.broadcast_to([2, 4], (count, 2)),
            # Only the first answer follows them: the other one is behind a filler.
            "last 2 tokens": np.stack([shown_BN[:, -2], free_B2[:, 0]], axis=1),
            "first token": np.repeat(6 - shown_BN[:, :1], 2, axis=1),
            "token at a distance": shown_BN[:, [3, 6]],
            "same bag of tokens": np.repeat(1 + shown_BN.sum(1, keepdims=True) % 2, 2, axis=1),
        }[self.config.shortcut]
        tokens_BT = np.concatenate([shown_BN, answer_B2], axis=1)
        answer_BT = np.arange(11) >= np.full((count, 1), 9)
        return batch_of(tokens_BT, np.where(answer_BT, 0, tokens_BT), answer_BT)

    def solve(self, shown, asked):
        raise AssertionError("nobody asks")


@pytest.mark.parametrize(
    ("shortcut", "at_least"),
    [
        ("majority", 0.72),
        ("number of the answer", 1.0),
        ("last 2 tokens", 0.58),
        ("first token", 1.0),
        ("token at a distance", 1.0),
        ("same bag of tokens", 0.85),
    ],
)
def test_a_planted_shortcut_is_found(shortcut: str, at_least: float) -> None:
    scores = shallow_scores(Planted(PlantedConfig(shortcut=shortcut)))
    assert scores[shortcut] >= at_least
    line = best_reference(scores, "answer_accuracy", 2000)
    assert line.items == 2000
    assert line.value == max(scores.values())
    assert line.name == f"shallow: {max(scores, key=lambda name: scores[name])}"
    assert all(name in line.name + line.note for name in scores)


def test_nothing_is_found_where_there_is_nothing() -> None:
    scores = shallow_scores(Planted(PlantedConfig(shortcut="none")))
    assert all(abs(score - 0.2) < 0.03 for score in scores.values()), scores


def test_what_is_known_of_the_probes() -> None:
    """Even pairs asks whether the ends are equal, reversal has fixed distances, memorization is a table."""
    assert shallow_scores(EvenPairs(LanguageConfig()))["first and last tokens"] == 1
    assert shallow_scores(ReverseString(LanguageConfig()))["token at a distance"] == 1
    assert shallow_scores(Memorization(MemorizationConfig()))["last token"] > 0.99
    recall = shallow_scores(Recall(RecallConfig()))
    assert recall["random token shown"] == pytest.approx(0.25)
    assert recall["majority"] == pytest.approx(1 / 8, abs=0.02)
    parity = shallow_scores(ParityCheck(LanguageConfig(min_length=30)))
    assert parity["majority"] == pytest.approx(0.5, abs=0.05)


def test_scores_are_means_over_examples_of_the_share_of_their_answers() -> None:
    """One answer in the first example, three in the second."""
    answers = Answers(
        context_ET=np.zeros((2, 4), dtype=np.int64),
        visible_ET=np.ones((2, 4), dtype=bool),
        row_N=np.array([0, 1, 1, 1]),
        place_N=np.array([3, 1, 2, 3]),
        truth_N=np.array([5, 5, 6, 7]),
        num_symbols=8,
    )
    assert answers.order_N.tolist() == [0, 0, 1, 2]
    assert answers.score(answers.truth_N == 5) == pytest.approx((1 + 1 / 3) / 2)


def test_the_best_solver_stands_among_the_reference_lines() -> None:
    names = [reference.name for reference in Recall(RecallConfig()).references()]
    assert names == ["random value shown", "random value", "shallow: token at a distance"]
