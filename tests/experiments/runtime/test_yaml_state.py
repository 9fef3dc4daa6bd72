"""YAML is read as OmegaConf reads it, or refused with line, column and reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.yaml_state import parse_yaml, read_yaml
from tests.faults.fuzzing import time_limit

BOMB = "- &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"- &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "a: 1\nb: 2\na: 3": "line 3, column 1: the key 'a' is there twice",
    "1: a\n0x1: b": "line 2, column 1: the key '1' is there twice",
    "a:\n\tb: 1": "line 2, column 1: .*: indent by spaces, not by tabs",
    "{a: [1, 2}": "line 1, column 10: did not find expected",
    "a: &x [*x]": "line 1, column 4: an alias is inside of what it repeats",
    "[" * 100_000: "nested too deeply",
    "[" * 900 + "]" * 900: "nested too deeply",
    BOMB: r"its aliases repeat [\d,]+ values",
    BOMB.replace("- &a", "- &a {<<: {}, y: ").replace("1]", "1]}", 1): r"aliases repeat [\d,]+ values",
    "a: !!python/object/apply:os.system [ls]": "line 1, column 4: could not determine a constructor",
    "a: !!int x": "line 1, column 4: 'x' is no int",
    f"a: {'9' * 5000}": "line 1, column 4: '9+' is no int",
    "[a]: 1": "line 1, column 1: a key must be text or a number",
    "a: 1\n---\nb: 1": "line 2, column 1: .*another document",
    "a: \0": "unacceptable character #x0000",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_ambiguous_or_excessive_is_refused_at_once(text: str) -> None:
    with time_limit(5), pytest.raises(ValueError, match=REFUSED[text]) as refused:
        parse_yaml(text)
    assert "\n" not in str(refused.value)


def test_anchors_merges_and_numbers_are_read_as_omegaconf_reads_them() -> None:
    text = "a: &a {x: 1, y: 1e-3}\nb: {<<: *a, x: 2}\nc: [*a, *a]\nd: 2026-01-02\ne: yes\nf: '1'\n"
    assert parse_yaml(text) == OmegaConf.to_container(OmegaConf.create(text))


def test_a_merge_below_another_is_no_second_key() -> None:
    text = "top:\n  inner:\n    b: &b {<<: {x: 1}, x: 2}\nc: {<<: *b}\n"
    assert parse_yaml(text) == yaml.safe_load(text)


def test_every_file_of_the_configuration_is_read_as_before() -> None:
    for path in CONF.rglob("*.yaml"):
        assert read_yaml(path) == OmegaConf.to_container(OmegaConf.load(path)), path


def test_a_byte_order_mark_is_dropped_and_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": 1}
    (tmp_path / "a.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"a\.yaml: cannot be read \(.*0xff.*\): correct it"):
        read_yaml(tmp_path / "a.yaml")
