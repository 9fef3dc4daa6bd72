"""Every field of every class, changed: followed, refused by its name, or listed as without effect."""

from pathlib import Path

import pytest

from tests.architectures.pretrained.fields import CLASSES, try_fields
from tests.docs.field_tables import read_sections, section
from tests.tiers import fast_only


@pytest.mark.full
@pytest.mark.parametrize("name", fast_only([*CLASSES], []))
def test_no_field_is_ignored(name: str, tmp_path: Path) -> None:
    outcomes = try_fields(name, tmp_path / name)
    problems = [outcome.problem for outcome in outcomes.values() if outcome.problem is not None]
    assert not problems, problems
    assert section(name, outcomes) == read_sections()[name]
