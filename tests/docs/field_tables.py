"""Writes docs/models/hugging_face/fields.csv: ``python -m tests.docs.field_tables``.

It takes about a quarter of an hour: every field of every class is changed, in several folders of each.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT
from tests.architectures.pretrained.fields import (
    CLASSES,
    Outcome,
    declared,
    reason,
    try_all,
)
from tests.architectures.pretrained.folders import DECODERS, ENCODER_DECODERS, ENCODERS, make_model

TABLE = ROOT / "docs" / "models" / "hugging_face" / "fields.csv"
COLUMNS = ("family", "class", "field", "effect", "reason")
APPLIED, RESIZED, REJECTED, NO_EFFECT = "applied", "applied, new tensors", "rejected", "no effect"
VALUES = (100, 3, 3, 3, 3)
"""Values of a field that are tried in each of the folders of a class."""


def field_rows(name: str, outcomes: dict[str, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the fields that a class declares."""
    config_class = f"{(DECODERS | ENCODER_DECODERS | ENCODERS)[name][0]}Config"
    for key in declared(make_model(name).config):
        equal = [outcome for outcome in outcomes[key] if outcome.kind == "equal" and outcome.moved]
        rejected = any(outcome.kind == "refused" for outcome in outcomes[key])
        if equal:
            effect = RESIZED if all(outcome.redrawn for outcome in equal) else APPLIED
            yield name, config_class, key, effect, ""
        if rejected:
            yield name, config_class, key, REJECTED, ""
        if not equal and not rejected:
            why = reason(key)
            assert why is not None, f"{name}: {key} changes nothing and is on no list"
            yield name, config_class, key, NO_EFFECT, why


def read_rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row for name in CLASSES for row in field_rows(name, try_all(name, Path(folder) / name, VALUES))
        ]
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
