"""What is printed passes the policy of secrets, whoever prints it."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import rich.console

from archbench.experiments.runtime.streams import guard_streams
from tests import ROOT

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


def test_text_on_a_terminal_controls_colours_and_the_cursor_alone() -> None:
    """Else a message could set the title of the window, write to the clipboard, or hide what was printed."""
    ours, theirs = pty.openpty()
    code = """
import sys
from archbench.experiments.runtime.streams import guard_streams
guard_streams()
sys.stdout.write("\\x1b[1mbold\\x1b[0m \\x1b[2K\\x1b]0;title\\x07 \\x1b[2J \\x1bc \\x9b31m \\u202e \\r50%\\n")
"""
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True)
    written = os.read(ours, 10_000).decode()
    os.close(ours)
    os.close(theirs)
    assert written.startswith(
        "\x1b[1mbold\x1b[0m \x1b[2K\u241b]0;title\u2407 \u241b[2J \u241bc \ufffd31m \ufffd \r50%"
    )


def test_a_file_gets_every_character(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    guard_streams()
    sys.stdout.write("a model wrote \x1b]0;this\x07")
    assert capsys.readouterr().out == "a model wrote \x1b]0;this\x07"


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_goes_away_ends_no_command(lines: int) -> None:
    """With one line the pipe breaks when Python flushes at its end, with many while it prints."""
    code = f"""
import sys
from archbench.experiments.runtime.streams import guard_streams
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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_printed_as_an_escape(encoding: str) -> None:
    code = (
        "from archbench.experiments.runtime.streams import guard_streams; import sys; guard_streams(); "
        "print('loss █ 漢'); print('é', file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == b"loss \\u2588 \\u6f22\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_command(closed: str, tmp_path: Path) -> None:
    """As in a job of cron; a file that is opened later does not get what is printed."""
    code = (
        "from archbench.experiments.runtime.streams import guard_streams; import os, sys; guard_streams(); "
        f"file = open({str(tmp_path / 'file')!r}, 'w'); print('out', flush=True); sys.stderr.write('err'); "
        "os.write(1, b'low'); sys.stdout.flush(); assert sys.stdin.read() == ''; file.write('content')"
    )
    ended = subprocess.run(["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], cwd=ROOT, input="")
    assert ended.returncode == 0
    assert (tmp_path / "file").read_text() == "content"


def test_a_full_output_ends_no_command() -> None:
    code = (
        "from archbench.experiments.runtime.streams import guard_streams; guard_streams()\n"
        "for _ in range(3): print('out', flush=True)"
    )
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 0
    assert ended.stderr == b"warning: further output is lost (No space left on device)\n"
