"""The page of fields of Hugging Face folders has every class, and each of its fields once.

What becomes of a field is compared by tests/architectures/pretrained/test_fields.py, which tries them all.
"""

from collections import Counter

import pytest

from tests.architectures.pretrained.fields import CLASSES, declared, reason
from tests.architectures.pretrained.folders import make_model
from tests.docs.field_tables import REFUSED, WITHOUT, read_lists, read_sections


def test_the_page_has_every_class_in_their_order() -> None:
    assert [*read_sections()] == [*CLASSES]


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_of_a_class_is_on_a_list(name: str) -> None:
    lists = read_lists(read_sections()[name])
    refused = lists.pop(REFUSED, [])
    once = Counter(key for keys in lists.values() for key in keys)
    assert sorted({*once, *refused}) == declared(make_model(name).config)
    assert set(once.values()) <= {1}
    for kind, keys in lists.items():
        for key in keys if kind.startswith(WITHOUT) else []:
            assert kind == f"{WITHOUT} ({reason(key)})"
            assert key not in refused
