from __future__ import annotations

from dataclasses import dataclass

import pytest

from analysis.cli import read_arguments, run_command


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


class BadDataError(Exception):
    exit_code = 3


def test_each_field_is_read_by_its_type() -> None:
    assert read_arguments([], Example) == Example()
    given = Example(study="a=b", samples=3, dry_run=True)
    assert read_arguments(["study=a=b", "samples=3", "--dry-run"], Example) == given
    assert read_arguments(["study=a=b", "--dry-run", "samples=3"], Example) == given
    assert read_arguments(["dry_run=true", "samples=3", "study=a=b"], Example) == given
    assert read_arguments(["--dry-run", "dry_run=false"], Example) == Example()
    assert read_arguments(["rate=1e-3", "study="], Example) == Example(rate=0.001, study="")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("stduy=x", "'stduy=x': did you mean 'study='? the keys are study, samples, rate, --dry-run"),
        ("study", "'study': did you mean study=VALUE?"),
        ("--dry-rnu", "--dry-rnu: there is no such option; did you mean --dry-run?"),
        ("dry_run=yes", "dry_run=yes is neither true nor false"),
        ("rate=fast", "rate=fast is no number: write for example rate=0.5"),
        ("samples=few", "samples=few is no whole number: write for example samples=100"),
    ],
)
def test_a_mistake_names_the_nearest(argument: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + words.replace("?", r"\?")):
        read_arguments([argument], Example)


def raising(error: Exception) -> int:
    def fail(config: Example) -> None:
        raise error

    return run_command("help", Example, [], fail, lambda found: None)


def test_mistakes_end_in_one_line_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(ValueError("no such study")) == 2
    assert raising(FileNotFoundError("no such file")) == 2
    assert raising(BadDataError("bad data")) == 3
    captured = capsys.readouterr()
    assert captured.err == "error: no such study\nerror: no such file\nerror: bad data\n"
    assert captured.out == ""


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
    assert "[key=value ...] [--dry-run]" in printed
    assert "what it does\n" in printed
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "study= The study to read. Default: compare." in lines
    assert "samples= How many. Default: 10." in lines
    assert "--dry-run Send nothing." in lines
