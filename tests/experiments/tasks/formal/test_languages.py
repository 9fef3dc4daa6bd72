"""The formal languages: the examples of their authors, worked out by hand, and how strings are drawn."""

import numpy as np
import pytest
import torch

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.tasks.formal import context_free, context_sensitive, regular
from archbench.experiments.tasks.formal.base import Language, LanguageConfig
from archbench.experiments.tasks.formal.context_free import expressions

LANGUAGES = [
    found
    for module in (regular, context_free, context_sensitive)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Language) and found is not Language
]


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        (regular.ParityCheck, "0110100", "1"),
        (regular.EvenPairs, "001110", "0"),
        (regular.EvenPairs, "0101001", "1"),
        (regular.CycleNavigation, "+-=--", "3"),
        (regular.CycleNavigation, "+++-", "2"),
        (regular.ModularArithmetic, "1+2*3", "2"),
        (regular.ModularArithmetic, "1-1-1", "4"),
        (regular.ModularArithmetic, "0*1+4*3-2", "0"),
        (regular.ModularArithmetic, "-2*3-4", "0"),
        (context_free.ReverseString, "011", "110"),
        (context_free.StackManipulation, "0110bxx", "110....."),  # the authors' example
        (context_free.StackManipulation, "110xxx", "......."),
        (context_free.StackManipulation, "1xxa", "0...."),
        (context_free.BracketArithmetic, "((1+-2)-(3))", "1"),
        (context_free.BracketArithmetic, "(-4)", "1"),
        (context_free.SolveEquation, "((1+-x)-(3))=2", "1"),
        (context_free.SolveEquation, "x=3", "3"),
        (context_sensitive.DuplicateString, "011", "011011"),
        (context_sensitive.MissingDuplicate, "01100?10", "1"),
        (context_sensitive.MissingDuplicate, "1011?1_", "0"),
        (context_sensitive.OddsFirst, "00110101", "01000111"),
        (context_sensitive.OddsFirst, "110", "101"),
        (context_sensitive.BucketSort, "10204112", "00111224"),
        (context_sensitive.BinaryAddition, "001+01101", "01011...."),  # 4 + 22 = 26
        (context_sensitive.BinaryAddition, "1001+000001", "100101....."),  # 9 + 32 = 41
        (context_sensitive.BinaryAddition, "0+00", "0..."),
        (context_sensitive.BinaryMultiplication, "011*11", "01001."),  # 6 * 3 = 18
        (context_sensitive.ComputeSqrt, "100101", "110"),  # 37: 6
        (context_sensitive.ComputeSqrt, "111", "10"),  # 7: 2
    ],
)
def test_the_answers_of_the_authors_and_by_hand(language: type[Language], text: str, answer: str) -> None:
    task = language(LanguageConfig())
    assert task.rewrite(text) == answer
    assert len(answer) == task.answer_length(len(text))


def test_an_example_is_string_marker_answer_and_padding() -> None:
    task = context_free.ReverseString(LanguageConfig(sequence_length=11, min_length=3))
    batch = task.batch("train", 0, 0, 200)
    seen = set()
    rows = zip(batch.tokens_BT.tolist(), batch.answer_BT.tolist(), batch.valid_BT.tolist(), strict=True)
    for tokens, answer, valid in rows:
        length = tokens.index(3)  # the marker
        seen.add(length)
        assert tokens[length + 1 : 2 * length + 1] == tokens[:length][::-1]
        assert answer == [length < place < 2 * length + 1 for place in range(11)]
        assert valid == [place < 2 * length + 1 for place in range(11)]
        assert all(token == 0 for token in tokens[2 * length + 1 :])
    assert seen == {3, 4, 5}


@pytest.mark.parametrize("language", LANGUAGES)
def test_lengths_are_equally_likely_and_the_longest_fills_the_sequence(language: type[Language]) -> None:
    task = language(LanguageConfig(sequence_length=30, min_length=4))
    batch = task.batch("train", 0, 0, 3000)
    lengths_B = (batch.tokens_BT == task.marker).int().argmax(1)
    counts = torch.bincount(lengths_B)[4:]
    assert len(counts) == task.max_length - 3
    assert 30 - 3 < task.max_length + 1 + task.answer_length(task.max_length) <= 30
    expected = 3000 / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 60  # 26 degrees at most, p < 0.001


@pytest.mark.parametrize(
    "language", [c for c in LANGUAGES if not c.answer_length(c(LanguageConfig()), 5) > 1]
)
def test_single_answers_are_equally_likely(language: type[Language]) -> None:
    """Products make zero likelier; so do missing operators in short sums, a little."""
    task = language(LanguageConfig(min_length=20))
    answers = task.batch("test", 0, 0, 4000)
    found = torch.bincount(answers.tokens_BT[answers.answer_BT] - 1, minlength=len(task.answers))
    assert len(found) == len(task.answers)
    share = found / 4000
    chance = 1 / len(task.answers)
    assert (share - chance).abs().max() < (0.05 if language is regular.ModularArithmetic else 0.03)


def test_expressions_nest_in_every_way() -> None:
    """All shapes of length 8: the cut is 1 to 4 symbols behind the bracket, signs are as likely as not."""
    rng = ExampleRNG(seed=0, split="train", index_B=np.arange(4000))
    string_BN, sign_BN = expressions(rng, 8)
    texts = ["".join(context_free.BracketArithmetic.alphabet[s] for s in row) for row in string_BN.tolist()]
    shapes = {"".join("d" if c.isdigit() else c for c in text).replace("+", "o") for text in texts}
    # d or -d or (d) or (-d) on the left, the rest of five symbols on the right
    assert {"(do(-d))", "(-do(d))", "((d)o-d)", "((-d)od)"} <= shapes
    assert len(shapes) == 8  # each of them with the operator minus, too
    assert set(np.unique(sign_BN)) == {-1, 0, 1}


def test_stacks_are_popped_below_empty_and_pushed() -> None:
    task = context_free.StackManipulation(LanguageConfig())
    batch = task.batch("train", 0, 0, 400)
    end = 1 + task.alphabet.index(".")
    first = batch.tokens_BT[torch.arange(400), batch.answer_BT.int().argmax(1)]
    assert 0 < (first == end).sum() < 100  # some stacks are empty in the end, few are


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_length": 2}, "min_length=2 must be at least 3"),
        (
            {"sequence_length": 6},
            "sequence_length=6: a string of min_length=3, a marker and the answer need 7",
        ),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        context_free.ReverseString(LanguageConfig(**settings))


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the generators another number with it."""
    sums = {
        language.__name__: int(
            (language(LanguageConfig()).batch("train", 0, 0, 50).tokens_BT * torch.arange(1, 43)).sum()
        )
        for language in LANGUAGES
    }
    assert sums == SUMS


SUMS = {
    "ParityCheck": 24269,
    "EvenPairs": 24360,
    "CycleNavigation": 103248,
    "ModularArithmetic": 77024,
    "ReverseString": 23973,
    "StackManipulation": 59897,
    "BracketArithmetic": 103199,
    "SolveEquation": 108567,
    "DuplicateString": 24555,
    "MissingDuplicate": 28347,
    "OddsFirst": 24023,
    "BucketSort": 50662,
    "BinaryAddition": 38775,
    "BinaryMultiplication": 37606,
    "ComputeSqrt": 23907,
}


def published(language: type[Language], length: int, room: int) -> Language:
    """The language as its authors draw it, with strings of one length."""
    return language(LanguageConfig(sequence_length=length + 1 + room, min_length=length, as_published=True))


def test_as_published_an_answer_ends_with_its_first_end_symbol() -> None:
    """The only product of two operands of one digit above zero is 1 * 1 = 1: the answer is ``1.``."""
    task = published(context_sensitive.BinaryMultiplication, 3, 3)
    batch = task.batch("train", 0, 0, 50)
    symbol = {character: 1 + index for index, character in enumerate("01*.")}
    shown = [*(symbol[character] for character in "1*1"), task.marker]
    assert (batch.tokens_BT == torch.tensor([*shown, symbol["1"], symbol["."], 0])).all()
    assert (batch.context_BT == torch.tensor([*shown, 0, 0, 0])).all()
    assert batch.answer_BT.tolist() == [[False] * 4 + [True, True, False]] * 50
    assert batch.valid_BT.all()
    for tokens, asked in zip(batch.tokens_BT.tolist(), batch.answer_BT, strict=True):
        places = asked.nonzero()[:, 0].tolist()
        assert task.solve(tokens, places)[: len(places)] == [tokens[place] for place in places]


def test_as_published_operands_are_above_zero_and_as_likely_as_each_other() -> None:
    """Of two digits and one: 1 to 3 and 1, or the other way round."""
    found: dict[str, int] = {}
    task = published(context_sensitive.BinaryAddition, 4, 4)
    for tokens in task.batch("train", 0, 0, 3000).tokens_BT[:, :4].tolist():
        text = "".join(task.alphabet[token - 1] for token in tokens)
        found[text] = found.get(text, 0) + 1
    assert set(found) == {"10+1", "01+1", "11+1", "1+10", "1+01", "1+11"}
    assert all(abs(count - 500) < 5 * 500**0.5 for count in found.values())


def test_as_published_the_unknown_is_the_first_number_from_a_random_place_on() -> None:
    """Of ``(d+d)=d`` it is the first number from three of five places, the second from two."""
    task = published(context_free.SolveEquation, 7, 1)
    unknown_BN = task.batch("train", 0, 0, 4000).tokens_BT[:, :7] == 1 + task.alphabet.index("x")
    share_N = unknown_BN.double().mean(0)
    assert share_N.nonzero()[:, 0].tolist() == [1, 3]
    assert abs(share_N[1].item() - 0.6) < 5 * (0.24 / 4000) ** 0.5
    plain = context_free.SolveEquation(LanguageConfig(sequence_length=9, min_length=7))
    even_BN = plain.batch("train", 0, 0, 4000).tokens_BT[:, :7] == 1 + task.alphabet.index("x")
    assert abs(even_BN.double().mean(0)[1].item() - 0.5) < 5 * (0.25 / 4000) ** 0.5
