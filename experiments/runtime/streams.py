"""Standard output and error without secrets, and whose reader may go away.

Whichever part of the program writes to them: a command's own lines, a library's, a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from experiments.runtime.secrets import without_known_secrets


def guard_streams() -> None:
    """Let what this process prints from now on pass the policy of secrets; called by every command.

    A reader that closes the pipe, such as ``head``, ends no command: what is printed after that is lost.

    Only values that are surely secrets are removed: those of secret variables of the environment, and
    tokens of a known shape. A text that a model generated, or the hash of a commit, is printed as it is.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Guarded):
            setattr(sys, name, cast(TextIO, _Guarded(stream)))


class _Guarded:
    """A text stream that removes secrets from each piece that is written to it, and outlives its reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(without_known_secrets(text))
        except BrokenPipeError:
            self._lose()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._lose()

    def _lose(self) -> None:
        """Send what follows, and what is still in the buffer, nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
