"""Mistakes that concern all runs of a sweep are found before one begins."""

from __future__ import annotations

import pytest
from omegaconf import DictConfig

from archbench.experiments.config.hydra_app import start


def said(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of a command line, none of whose runs may begin."""

    def begin(cfg: DictConfig) -> None:
        raise AssertionError("a run began")

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back
    with pytest.raises(SystemExit) as stopped:
        start(begin, words=words.split())
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "-m seed=0,1 hydra.sweeper.max_batch_size=-1",
            "max_batch_size=-1 must be a number of runs, 1 or more",
        ),
        (
            "-m seed=0,1 hydra.sweeper.max_batch_size=0",
            "max_batch_size=0 must be a number of runs, 1 or more",
        ),
        ("-m seed=0,1 --cfg job", "--cfg job prints the configuration of one run"),
        ("-m backbone=decodr,mambo", "backbone=mambo: there is no conf/backbone/mambo.yaml"),
        ("-m backbone=a1,a2,a3,a4,a5", "; and 2 more"),
    ],
)
def test_the_command_ends_with_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = said(words, monkeypatch, capsys)
    assert message in error
    assert error.count("\n") == 1


def test_help_is_printed_for_a_sweep_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    start(print, words=["-m", "backbone=decoder,mamba", "--help"])
    assert "archbench compare study=NAME" in capsys.readouterr().out
