import pytest

from archbench.experiments.tasks.text.token_classification import entities, is_entity_scheme


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
