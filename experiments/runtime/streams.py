"""Standard output and error of a command: without secrets, and without an end if nobody reads them."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, TextIO, cast

from archbench.experiments.runtime.secrets import redact, without_known_secrets


def guard_streams() -> None:
    """Let what this process prints from now on pass the policy of secrets; called by every command.

    A reader that closes the pipe, such as ``head``, or a stream that is closed or full ends no command: what
    is printed after that is lost.

    Only values that are surely secrets are removed: those of secret variables of the environment, tokens of a
    known shape, and user, password and keys of URLs. A text that a model generated, or the hash of a commit,
    is printed as it is.
    """
    _open_closed()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, _Guarded):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # its encoding may lack what is printed
            setattr(sys, name, cast(TextIO, _Guarded(stream)))


def _open_closed() -> None:
    """Send streams that are closed, as in some jobs of cron, nowhere.

    A file that is opened later would else get the number of a closed stream, and what libraries print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys(
    [*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
)
_STYLE = re.compile(r"(\r|\x1b\[[\d;?]*[A-HKhlm])")
"""The control sequences of Rich and progress bars: colours, and moves of the cursor."""


def printable(text: str) -> str:
    """Return text with control characters, but for line ends and tabs, as symbols that show them."""
    return text.translate(_CONTROLS)


@contextmanager
def redacted_errors() -> Iterator[None]:
    """Let standard error pass the policy of files meanwhile, which guesses secrets from names too."""
    with redirect_stderr(cast(TextIO, _Guarded(sys.stderr, redact))):
        yield


class _Guarded:
    """A text stream that removes secrets from each piece that is written to it, and outlives its reader.

    On a terminal no piece controls more than colours and the cursor.
    """

    def __init__(self, stream: TextIO, without_secrets: Callable[[str], str] = without_known_secrets) -> None:
        self._stream, self._without_secrets = stream, without_secrets

    def write(self, text: str) -> int:
        length = len(text)
        try:
            text = self._without_secrets(text)
            if self._stream.isatty():
                pieces = _STYLE.split(text)
                text = "".join(piece if _STYLE.fullmatch(piece) else printable(piece) for piece in pieces)
            self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return length

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Send what follows, and what is still in the buffer, nowhere; say so unless the reader is gone."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if error.errno not in (errno.EPIPE, errno.EIO) and self._stream.fileno() == 1:
            sys.stderr.write(f"warning: further output is lost ({error.strerror})\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
