"""Writes docs/models/hugging_face_fields.md: ``python -m tests.docs.field_tables``.

It takes about a quarter of an hour: every field of every class is changed, in several folders of each.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests import ROOT
from tests.architectures.pretrained.fields import (
    CLASSES,
    NO_EFFECT,
    Outcome,
    declared,
    reason,
    try_fields,
)
from tests.architectures.pretrained.folders import DECODERS, ENCODER_DECODERS, ENCODERS, make_model

PAGE = ROOT / "docs" / "models" / "hugging_face_fields.md"
FOLLOWED, REDRAWN, REFUSED = "followed", "followed, with tensors of its own", "refused"
WITHOUT = "without effect"
VALUES = (100, 3, 3, 3, 3)
"""Values of a field that are tried in each of the folders of a class."""


def listed(names: list[str]) -> str:
    """Names as Markdown."""
    return ", ".join(f"`{name}`" for name in names)


def section(name: str, outcomes: dict[str, list[Outcome]]) -> str:
    """Return what becomes of the fields that a class declares, in Markdown."""
    kinds: dict[str, list[str]] = {FOLLOWED: [], REDRAWN: [], REFUSED: []}
    kinds |= {f"{WITHOUT} ({why})": [] for why in NO_EFFECT}
    for key in declared(make_model(name).config):
        equal = [outcome for outcome in outcomes[key] if outcome.kind == "equal" and outcome.moved]
        refused = any(outcome.kind == "refused" for outcome in outcomes[key])
        if equal:
            kinds[REDRAWN if all(outcome.redrawn for outcome in equal) else FOLLOWED].append(key)
        if refused:
            kinds[REFUSED].append(key)
        if not equal and not refused:
            assert reason(key) is not None, f"{name}: {key} changes nothing and is on no list"
            kinds[f"{WITHOUT} ({reason(key)})"].append(key)
    family = (DECODERS | ENCODER_DECODERS | ENCODERS)[name][0]
    lines = [f"- {kind}: {listed(keys)}" for kind, keys in kinds.items() if keys]
    return "\n".join([f"## {name}", "", f"`{family}Config`:", "", *lines]) + "\n"


def read_sections() -> dict[str, str]:
    """Return the sections of the page by their headings."""
    parts = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0].removeprefix("## "): part.rstrip("\n") + "\n" for part in parts}


def read_lists(text: str) -> dict[str, list[str]]:
    """Return the fields of a section, by what becomes of them."""
    lines = re.findall(r"^- (.+?): (`.*)$", text, flags=re.MULTILINE)
    return {kind: re.findall(r"`(\w+)`", names) for kind, names in lines}


def main() -> None:
    """Write the sections of the page, below its introduction."""
    with tempfile.TemporaryDirectory() as room:
        sections = [section(name, try_fields(name, Path(room) / name, VALUES)) for name in CLASSES]
    introduction = PAGE.read_text().partition("\n## ")[0]
    PAGE.write_text("\n".join([introduction, *sections]))


if __name__ == "__main__":
    main()
