"""What is printed passes the policy of secrets, whoever prints it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import rich.console

from experiments.runtime.streams import guard_streams

SECRET = "7Aq9zLw2Rt5Ux8Vb1Nc4"


def test_nothing_that_is_printed_has_a_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_KEY", SECRET)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    guard_streams()
    guard_streams()
    print("printed", SECRET)
    sys.stdout.writelines([f"line {SECRET}\n"])
    rich.console.Console().print("rich", SECRET, highlight=False)
    logging.StreamHandler(sys.stderr).emit(logging.LogRecord("n", 20, "", 1, f"logged {SECRET}", (), None))
    sys.stderr.write("ghp_a1B2a1B2a1B2a1B2a1B2\n")
    printed = capsys.readouterr()
    assert printed.out == "printed <redacted>\nline <redacted>\nrich <redacted>\n"
    assert printed.err == "logged <redacted>\n<redacted>\n"


def test_text_that_only_looks_like_an_assignment_is_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model may generate it; and hashes of commits are no secrets."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    guard_streams()
    text = f"password: open sesame, token={'0' * 40}"
    assert sys.stdout.write(text) == len(text)
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_goes_away_ends_no_command(lines: int) -> None:
    """With one line the pipe breaks when Python flushes at its end, with many while it prints."""
    code = f"""
import sys
from experiments.runtime.streams import guard_streams
guard_streams()
sys.stdin.read()
for number in range({lines}):
    print(number)
sys.exit(5)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait() == 5
    process.stderr.close()
