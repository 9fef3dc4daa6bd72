"""The table of fields of Hugging Face folders has every class, and each of its fields once.

The effect of a field is compared by tests/architectures/pretrained/test_fields.py, which tries them all.
"""

from collections import Counter

import pytest

from tests.architectures.pretrained.fields import CLASSES, declared, reason
from tests.architectures.pretrained.folders import make_model
from tests.docs.field_tables import NO_EFFECT, REJECTED, read_rows

ROWS = read_rows()


def test_the_table_has_every_class_in_their_order() -> None:
    assert [*dict.fromkeys(row["family"] for row in ROWS)] == [*CLASSES]


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_of_a_class_has_an_effect(name: str) -> None:
    rows = [row for row in ROWS if row["family"] == name]
    rejected = {row["field"] for row in rows if row["effect"] == REJECTED}
    once = Counter(row["field"] for row in rows if row["effect"] != REJECTED)
    assert sorted({*once, *rejected}) == declared(make_model(name).config)
    assert set(once.values()) <= {1}
    for row in rows:
        if row["effect"] == NO_EFFECT:
            assert row["reason"] == reason(row["field"])
            assert row["field"] not in rejected
