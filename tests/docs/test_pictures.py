"""The pictures of pages are as new as the frames and the code that they are drawn from."""

from __future__ import annotations

import json

import pytest

from tests.docs.pictures import DOCS, LIST, NOT_LISTED, digest, hashes_of_frames, pictures

LISTED = json.loads(LIST.read_text())
REMEDY = "run make pictures"


def test_every_picture_is_renewed_by_the_command() -> None:
    there = {str(path.relative_to(DOCS)) for kind in ("png", "svg") for path in DOCS.rglob(f"*.{kind}")}
    there = {name for name in there if not name.startswith("_build/")}
    assert there == {*LISTED, *NOT_LISTED}, REMEDY
    assert pictures().keys() == LISTED.keys(), REMEDY


@pytest.mark.parametrize("name", sorted(LISTED))
def test_no_picture_is_older_than_its_frames(name: str) -> None:
    assert hashes_of_frames(pictures()[name]) == LISTED[name]["frames"], REMEDY


@pytest.mark.parametrize("name", [name for name in sorted(LISTED) if name.endswith(".svg")])
def test_every_figure_is_the_listed_one(name: str) -> None:
    assert digest((DOCS / name).read_bytes()) == LISTED[name]["content"], REMEDY


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(LISTED))
def test_no_picture_is_older_than_the_code_that_draws_it(name: str) -> None:
    content = digest(pictures()[name].content())
    assert content == LISTED[name]["content"], REMEDY
