"""Tables of config.json: what is read from a row is written to it again, in every class."""

import json
from typing import Any

import pytest
import torch
import transformers as hf

from archbench.architectures.pretrained.config_diff import differences
from archbench.architectures.pretrained.fields import (
    Beside,
    Condition,
    Field,
    Only,
    Row,
    conditional,
    read_settings,
)
from tests.architectures.pretrained.field_values import BASES, REMOVED
from tests.architectures.pretrained.fields import family_of
from tests.architectures.pretrained.folders import DECODERS, ENCODER_DECODERS, ENCODERS

CASES = [(name, base) for name, bases in BASES.items() for base in range(len(bases))]


def their_config(name: str, base: int) -> dict[str, Any]:
    """The config.json of their class, as a folder of it has it."""
    prefix, settings, _ = (DECODERS | ENCODER_DECODERS | ENCODERS)[name]
    given = BASES[name][base]
    values = {"vocab_size": 300, "pad_token_id": 1} | settings | given
    config_class = getattr(hf, f"{prefix}Config")
    config = config_class(**{key: value for key, value in values.items() if value is not REMOVED})
    tree = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in tree.items() if given.get(key) is not REMOVED}


@pytest.mark.fast
@pytest.mark.parametrize(("name", "base"), CASES)
def test_what_is_read_is_written_again(name: str, base: int) -> None:
    """Rows of one key and one setting have the value of the file; all rows together give the same model."""
    theirs = their_config(name, base)
    family = family_of(theirs["model_type"])
    blueprint = family.read_config(family.without_aliases(theirs))
    with torch.device("meta"):
        written = family.write_config(blueprint.build())
    back = family.read_config(written)
    assert not differences(blueprint.config, back.config)
    assert (back.vocab_size, back.max_length) == (blueprint.vocab_size, blueprint.max_length)
    for key, row in family.fields.items():
        one_to_one = isinstance(row, Field) and not row.ignored and not row.names
        if one_to_one and theirs.get(key) is not None and key in written:
            assert written[key] == pytest.approx(theirs[key]), key


@pytest.mark.fast
@pytest.mark.parametrize("name", BASES)
def test_supported_values_are_those_of_a_plain_folder(name: str) -> None:
    """A table that rejected the default of their class would reject most folders."""
    theirs = their_config(name, 0)
    for key, row in family_of(theirs["model_type"]).fields.items():
        if isinstance(row, Only) and key in theirs:
            assert theirs[key] in (row.value, *row.others, *row.unset), key


@pytest.mark.fast
@pytest.mark.parametrize(
    ("row", "value", "settings"),
    [
        (Field("d_ff", 8), REMOVED, {"d_ff": 8}),
        (Field("d_ff", 8), None, {"d_ff": None}),
        (Field("d_ff", 8, unset=(None, 0)), 0, {"d_ff": 8}),
        (Field("d_ff", lambda keys: 2 * keys["other"], unset=(None,)), None, {"d_ff": 6}),
        (Field("d_ff", 8, unset=(None,), missing=9), REMOVED, {"d_ff": 9}),
        (Field("d_ff", 8, ignored=True), 5, {"d_ff": 8}),
        (Field("d_ff", 8, also="d_model"), 5, {"d_ff": 5, "d_model": 5}),
        (Field("kind", "a", names={"a": "ours", "b": "other"}), "b", {"kind": "other"}),
        (Only(True, others=(None,)), None, {}),
        (Field("d_ff"), REMOVED, "key is missing"),
        (Field("d_ff", 8, required=True), None, "key is missing"),
        (Field("d_ff", 8, names={8: 8}), 9, "key=9 is not supported, only 8"),
        (Field("kind", "a", names={"a": "ours"}), "b", "key='b' is not supported, only 'a'"),
        (Only(True), False, "key=False is not supported, only True"),
        (Only(True, default=False), REMOVED, "key=False is not supported, only True"),
    ],
)
def test_a_row_gives_settings_or_names_its_key(row: Row, value: Any, settings: dict[str, Any] | str) -> None:
    table = {"other": Beside(3), "key": row}
    config = {} if value is REMOVED else {"key": value}
    if isinstance(settings, str):
        with pytest.raises(ValueError, match=settings):
            read_settings(table, config)
    else:
        assert read_settings(table, config) == settings


@pytest.mark.fast
def test_rows_under_a_condition_are_not_read_without_it() -> None:
    many = Condition(reads=lambda keys: keys["count"] > 1, writes=lambda config: True)
    table = {"count": Beside(1)} | conditional({"key": Field("d_ff")}, many)
    assert read_settings(table, {}) == {}
    assert read_settings(table, {"count": 2, "key": 5}) == {"d_ff": 5}
