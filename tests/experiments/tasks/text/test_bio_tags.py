import random

import pytest
from seqeval.metrics import sequence_labeling as labeling

from experiments.tasks.text.bio_tags import entities, is_entity_scheme


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", set()),
        ("B-PER I-PER O B-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),
        ("B-PER B-PER I-PER", {("PER", 0, 1), ("PER", 1, 3)}),
        ("I-PER I-PER O", {("PER", 0, 2)}),  # IOB1
        ("B-PER I-LOC I-LOC", {("PER", 0, 1), ("LOC", 1, 3)}),
        ("B-PER I-PER E-PER S-LOC S-LOC", {("PER", 0, 3), ("LOC", 3, 4), ("LOC", 4, 5)}),
        ("O E-PER I-PER", {("PER", 1, 2), ("PER", 2, 3)}),
        ("B-A-B I-A-B", {("A-B", 0, 2)}),  # a type may hold a hyphen
        ("", set()),
    ],
)
def test_entities_by_hand(tags, expected):
    assert entities(tags.split()) == expected


def test_the_scheme_is_recognised():
    assert is_entity_scheme(["O", "B-PER", "I-PER", "S-X", "E-X"])
    assert not is_entity_scheme(["O", "NOUN"])
    assert not is_entity_scheme(["B-"])


def test_they_are_those_of_seqeval():
    rng = random.Random(0)
    options = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))]
    for _ in range(500):
        tags = rng.choices(options, k=rng.randint(1, 15))
        theirs = {(kind, first, last + 1) for kind, first, last in labeling.get_entities(tags)}
        assert entities(tags) == theirs, tags
