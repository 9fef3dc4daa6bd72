"""Paths on a command line: unquoted and quoted, with letters that Hydra's grammar does not take."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.config.options import typed_words
from experiments.config.path_words import path_words
from experiments.runtime.errors import ConfigError
from slurm.status import StatusConfig
from tests.experiments import commands

NAMES = ("my runs (1) [a]", "ünïcode/x-1a2b3c4d/s0", "it's", "[x]", "a;b", "plain", "100%", 'say "hi"')


@pytest.mark.parametrize("name", NAMES)
def test_a_path_needs_no_quotes(name: str) -> None:
    for key in ("runs", "run", "to", "init_from", "task.tokenizer.path"):
        [word] = path_words([f"{key}={name}"])
        assert OverridesParser.create().parse_override(word).value() == name
    words = ["study=x", f"runs={name}"]
    assert typed_words(StatusConfig, words).runs == name


def test_a_path_may_be_quoted() -> None:
    word = 'runs="my runs (1) [a]"'
    assert path_words([word]) == [word]
    assert typed_words(StatusConfig, ["study=x", word]).runs == "my runs (1) [a]"


def test_lists_sweeps_and_references_stay() -> None:
    words = ["init_from=a,b", "task.paths=[a.txt,b.txt]", "study.tuned=${runs}/x.yaml", "runs=''", "seed=(1"]
    assert path_words(words) == words
    assert path_words(["task.paths=[ü.txt, b.txt]"]) == ["task.paths=['ü.txt','b.txt']"]


def test_a_leading_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert path_words(["runs=~/r"]) == ["runs=/home/me/r"]
    assert typed_words(StatusConfig, ["study=x", "runs=~/r"]).runs == "/home/me/r"
    assert path_words(["task.paths=[~/a.txt]"]) == ["task.paths=['/home/me/a.txt']"]
    with pytest.raises(ConfigError, match="HOME"):
        path_words(['runs="~/r"'])
    with pytest.raises(ConfigError, match="HOME"):
        typed_words(StatusConfig, ["study=x", 'runs="~/r"'])


def test_a_command_takes_them(tmp_path: Path) -> None:
    ended = commands.run("train", "--cfg", "job", f"runs={tmp_path}/ünïcode (1)")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"runs: {tmp_path}/ünïcode (1)" in " ".join(ended.stdout.split())  # YAML folds a long line
