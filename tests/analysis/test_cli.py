from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from analysis.cli import read_arguments, run_command


@dataclass(frozen=True, kw_only=True)
class Example:
    study: str = "compare"
    samples: int = 10
    dry_run: bool = False


class BadDataError(Exception):
    exit_code = 3


def test_each_field_is_read_by_its_type() -> None:
    assert read_arguments([], Example) == {}
    found = read_arguments(["study=a=b", "samples=3", "--dry-run"], Example)
    assert Example(**found) == Example(study="a=b", samples=3, dry_run=True)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("stduy=x", "'stduy=x': did you mean 'study='? the keys are study, samples, --dry-run"),
        ("study", "'study': did you mean 'study='?"),
        ("--dry-rnu", "'--dry-rnu': did you mean '--dry-run'?"),
        ("dry_run=True", "'dry_run=True': did you mean '--dry-run'?"),
        ("samples=few", "samples=few is no whole number: write for example samples=100"),
    ],
)
def test_a_mistake_names_the_nearest(argument: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + words.replace("?", r"\?")):
        read_arguments([argument], Example)


def raising(error: Exception) -> int:
    def fail(arguments: Sequence[str]) -> None:
        raise error

    return run_command("help", [], fail, lambda found: None)


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
        run_command("help", [], lambda arguments: 1, lambda found: int("of our own"))  # type: ignore[arg-type]


def test_help_is_printed_and_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    def never(arguments: Sequence[str]) -> None:
        raise AssertionError

    assert run_command("\nwhat it does\n", ["study=x", "--help"], never, never) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().out == "what it does\n"
