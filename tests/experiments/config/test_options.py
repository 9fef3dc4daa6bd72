from __future__ import annotations

from dataclasses import dataclass

import pytest

from archbench.experiments.config.options import run_command, split_words, typed_words
from archbench.experiments.runtime.errors import ConfigError, DataError, RunError


@dataclass(frozen=True, kw_only=True)
class Example:
    study: str = "compare"
    """The ``study`` to
    read."""
    samples: int = 10
    """How many."""
    rate: float = 0.5
    dry_run: bool = False
    """Send nothing."""


def test_each_field_is_read_by_its_type() -> None:
    assert typed_words(Example, []) == Example()
    given = Example(study="a=b", samples=3, dry_run=True)
    assert typed_words(Example, ["study=a=b", "samples=3", "--dry-run"]) == given
    assert typed_words(Example, ["study=a=b", "--dry-run", "samples=3"]) == given
    assert typed_words(Example, ["dry_run=true", "samples=3", "study=a=b"]) == given
    assert typed_words(Example, ["rate=1e-3", "study=1e3"]) == Example(rate=0.001, study="1e3")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("stduy=x", "'stduy=x': did you mean 'study='? the keys are study, samples, rate, --dry-run"),
        ("study", "'study': did you mean study=VALUE?"),
        ("--dry-rnu", "--dry-rnu: there is no such option; did you mean --dry-run?"),
        ("dry_run=maybe", "dry_run=maybe must be true or false"),
        ("rate=fast", "rate=fast must be a number"),
        ("samples=few", "samples=few must be a whole number"),
        ("study=", "'study=': write study=VALUE, or leave study= out"),
        ("--dry-run dry_run=false", "dry_run is given twice, as true and as false"),
    ],
)
def test_a_mistake_names_the_nearest(argument: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + words.replace("?", r"\?")):
        typed_words(Example, argument.split())


def raising(error: Exception) -> int:
    def fail(config: Example) -> None:
        raise error

    return run_command("help", Example, [], fail, lambda found: None)


def test_mistakes_end_in_one_line_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(ValueError("no such study")) == 2
    assert raising(FileNotFoundError("no such file")) == 2
    assert raising(DataError("bad data")) == 3
    captured = capsys.readouterr()
    assert captured.err == "error: no such study\nerror: no such file\nerror: bad data\n"
    assert captured.out == ""


def test_what_is_published_may_fail_too(capsys: pytest.CaptureFixture[str]) -> None:
    def full(found: None) -> None:
        raise RunError("no room for GITHUB_TOKEN=ghp_" + "a1B2" * 9)

    assert run_command("help", Example, [], lambda config: None, full) == 1
    assert run_command("help", Example, [], lambda config: 3, lambda found: found) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: no room for")
    assert "ghp_" not in error


def test_options_are_told_from_the_words_of_hydra() -> None:
    words = ["-m", "seed=0,1", "samples=3", "--dry-run", "+x.y=[1]"]
    assert split_words(Example, words) == (Example(samples=3, dry_run=True), ["-m", "seed=0,1", "+x.y=[1]"])


def test_a_defect_is_not_dressed_as_a_mistake() -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())
    with pytest.raises(ValueError, match="of our own"):
        run_command("help", Example, [], lambda config: 1, lambda found: print(int("of our own")))


def test_help_is_printed_and_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    def never(config: Example | None) -> None:
        raise AssertionError

    assert run_command("\nwhat it does\n", Example, ["study=x", "--help"], never, never) == 0
    printed = capsys.readouterr().out
    assert "what it does\n" in printed
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "study= The study to read. Default: compare." in lines
    assert "samples= How many. Default: 10." in lines
    assert "--dry-run Send nothing." in lines


def test_an_argument_with_undecodable_bytes_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^study=a\\udcff is not valid UTF-8"):
        typed_words(Example, ["study=a\udcff"])
