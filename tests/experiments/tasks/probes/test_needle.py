import math
import re

import numpy as np
import pytest
import torch

from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.probes.needle import KINDS, Needle, NeedleConfig
from archbench.experiments.tasks.text.text import Text, TextConfig
from tests import ROOT

LENGTH = 900
CACHE = str(ROOT / "data-cache")
"""That of every run of the tests: the documentation is prepared once."""


def make(**settings):
    return Needle(NeedleConfig(**({"sequence_length": LENGTH, "cache_dir": CACHE} | settings)))


def shown_and_answers(batch):
    """What a model reads, with "_" for what is asked, and the characters asked for."""
    for context, tokens, answer in zip(batch.context_BT, batch.tokens_BT, batch.answer_BT, strict=True):
        yield bytes(context.tolist()).decode(errors="replace"), bytes(tokens[answer].tolist()).decode()


def solve(text):
    """The oracle: reads the needles and answers the question."""
    number_of, called = {}, {}
    for key, value in re.findall(r"\nThe number of ([A-Z]{5}) is (\d{5})\.\n", text):
        number_of.setdefault(key, []).append(value)
    for name, what in re.findall(r"\n([A-Z]{5}) is what is called (\w{5})\.\n", text):
        called[what] = name
    if found := re.search(r"\nWhat is called (\d{5}) is [_, ]+$", text):
        names, what = [], found[1]
        while what in called:
            what = called[what]
            names.append(what)
        return "".join(names)
    asked = re.findall(r"\nThe number of ([A-Z]{5}) is [_, ]+(?=\n|$)", text)
    return "".join("".join(number_of[key]) for key in asked)


def last_shown(text, answer):
    """The shallow baseline: what the last needle says, whatever is asked."""
    said = re.findall(r"\nThe number of [A-Z]{5} is (\d{5})\.\n|\n([A-Z]{5}) is what is called", text)
    return "".join(said[-1]) * (len(answer) // 5)


def share(guess, answer):
    return np.mean([a == b for a, b in zip(guess, answer, strict=True)])


@pytest.mark.parametrize("kind", KINDS)
def test_reading_answers_every_question_and_the_shallow_solver_does_not(kind):
    task = make(kind=kind)
    batch = task.batch("test", 0, 0, 400)
    pairs = list(shown_and_answers(batch))
    assert [solve(text) for text, _ in pairs] == [answer for _, answer in pairs]
    scores = [share(last_shown(text, answer), answer) for text, answer in pairs]
    expected = {reference.name: reference.value for reference in task.references()}
    error = max(np.std(scores) / math.sqrt(len(scores)), 1e-9)
    assert abs(np.mean(scores) - expected["last shown"]) < 4 * error
    assert expected["chance"] == (1 / 26 if kind == "variable_tracking" else 1 / 10)


def test_digits_of_answers_are_equally_likely_at_every_place():
    """No solver does better than chance without reading the haystack."""
    answers = np.array(
        [list(map(int, answer)) for _, answer in shown_and_answers(make().batch("train", 0, 0, 3000))]
    )
    for place in range(5):
        count = np.bincount(answers[:, place], minlength=10)
        assert ((count - 300) ** 2 / 300).sum() < 33.7  # 9 degrees, p = 0.0001


@pytest.mark.parametrize("kind", ["single", "multi_key", "multi_query"])
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_depth_says_where_the_needle_asked_for_stands(kind, depth):
    batch = make(kind=kind, depth=depth).batch("train", 0, 0, 20)
    for text, _ in shown_and_answers(batch):
        key = re.findall(r"\nThe number of ([A-Z]{5}) is _", text)[0]
        place = text.index(f"The number of {key} is")
        before = len(re.findall(r"\nThe number of [A-Z]{5} is \d{5}\.\n", text[:place]))
        hay = LENGTH - text.count("The number of ") * 31
        assert abs((place - before * 31) / hay - depth) < 0.15


def test_the_haystack_is_text_of_the_split_and_the_rest_is_as_described():
    task = make(kind="multi_value", num_needles=3)
    batch = task.batch("validation", 1, 0, 10)
    tokens_N = np.asarray(task._file.tokens["validation"])
    text_N = bytes(np.where(tokens_N < 256, tokens_N, 10).astype(np.uint8))
    for text, answer in zip(batch.tokens_BT, shown_and_answers(batch), strict=True):
        assert len(answer[1]) == 15
        hay = re.sub(rb"\nThe number of [A-Z]{5} is [\d, ]+\.?\n?", b"", bytes(text.tolist()))
        assert hay in text_N
    assert batch.answer_BT.sum() == 150
    assert (batch.context_BT[batch.answer_BT] == ord("_")).all()
    assert torch.equal(batch.context_BT[~batch.answer_BT], batch.tokens_BT[~batch.answer_BT])


def test_an_example_is_a_function_of_split_seed_and_number():
    task = make()
    together = task.batch("train", 3, 1000, 20).tokens_BT
    assert torch.equal(task.batch("train", 3, 1007, 5).tokens_BT, together[7:12])
    assert not torch.equal(task.batch("train", 4, 1000, 20).tokens_BT, together)
    assert not torch.equal(task.batch("test", 3, 1000, 20).tokens_BT, together)
    assert task.num_examples("train") is None
    assert make(depth=0.5).fingerprint != task.fingerprint == make().fingerprint


def test_its_vocabulary_is_that_of_text():
    assert make().vocabulary == Text(TextConfig(cache_dir=CACHE)).vocabulary


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="needles and question alone take 153"):
        make(sequence_length=100)
    with pytest.raises(DataError, match="a split has only"):
        make(sequence_length=10_000_000)
    for settings, message in (
        ({"kind": "multikey"}, "did you mean 'multi_key'"),
        ({"num_needles": 1}, "num_needles=1 must be 2 or more"),
        ({"depth": 1.5}, r"depth=1.5 must be in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            NeedleConfig(**settings)
