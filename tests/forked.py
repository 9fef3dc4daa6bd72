"""Commands that tests start, forked from a process that has imported PyTorch, which saves them seconds.

``install`` replaces ``subprocess.Popen``. A command ``python -m MODULE`` of this project is then forked from
a server, which has imported the packages that commands import, but nothing of the project. All else is as in
a process of its own: it is a child of this process with its number, signals, streams, environment and exit
code, and ends as Python ends. Other commands start as ever, and so do those with another environment for what
the server has imported (``FIXED``). Where Linux is missing, all do. A test of what a process imports
sets ``subprocess.Popen`` to ``honest_popen``.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("archbench", "tests")
FIXED = (
    "OMP_",
    "MKL_",
    "KMP_",
    "ATEN_",
    "LD_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "HF_",
    "PYTHON",
    "LC_",
    "LANG",
)
"""Prefixes of variables that are read when a package is imported."""
FREE = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "HF_TOKEN")
_SET_CHILD_SUBREAPER = 36
SERVER = Path(__file__).with_name("fork_server.py")


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a forked process is to be."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    ignored: list[int]
    """Signals that its parent ignores, and so does it."""
    new_session: bool
    umask: int


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a forked process has from the server."""
    return {name: each for name, each in environment.items() if name.startswith(FIXED) and name not in FREE}


def restore_environment() -> None:
    """Give this process the variables that the server has."""
    found, honest = fixed(os.environ), fixed(_environment)
    for name in found.keys() - honest.keys():
        del os.environ[name]
    os.environ.update(honest)


class Server:
    """The process that commands of this one are forked from."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.lock, self.owner = threading.Lock(), os.getpid()
        with theirs:
            self.process = honest_popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                env=_environment,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, start: Start, streams: list[int]) -> int:
        """Return the number of a new child of this process."""
        message = json.dumps(asdict(start)).encode()
        with self.lock:
            _adopt_orphans(True)  # the server's child ends at once, and leaves its own to this process
            try:
                socket.send_fds(self.ours, [len(message).to_bytes(8, "little")], streams)
                self.ours.sendall(message)
                number = int.from_bytes(self.ours.recv(8, socket.MSG_WAITALL), "little")
            finally:
                _adopt_orphans(False)
        if not number:
            raise RuntimeError(f"the process that commands are forked from has ended: {SERVER}")
        return number


def _adopt_orphans(adopt: bool) -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


honest_popen = subprocess.Popen
_NAMES = list(inspect.signature(honest_popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
_UNKNOWN = ("executable", "preexec_fn", "pass_fds", "umask", "process_group")
"""Options with which a process is not forked."""
_server: Server | None = None
_environment: dict[str, str] = {}
"""Of the server: that of this process before the first test."""


def install() -> None:
    """Fork the commands of the project from now on."""
    if sys.platform == "linux":
        _environment.update(_environment or os.environ)
        subprocess.Popen = Popen  # type: ignore[misc]


def is_forkable(given: Mapping[str, Any]) -> bool:
    """Return True for ``python -m`` with a module of the project, in an environment like this one's.

    Args:
        given: what ``subprocess.Popen`` was given, by name.
    """
    args, env = given["args"], given["env"]
    if any(given[name] not in (None, -1, ()) for name in _UNKNOWN) or not isinstance(args, list | tuple):
        return False
    words = list(map(os.fspath, args[:3]))
    return (
        words[:2] == [sys.executable, "-m"]
        and words[2].split(".")[0] in PACKAGES
        and fixed(os.environ if env is None else env) == fixed(_environment)
    )


class Popen(honest_popen):  # type: ignore[type-arg]
    """Starts a process as ``subprocess.Popen`` does, or forks it."""

    def _execute_child(self, *arguments: Any) -> None:
        given = dict(zip(_NAMES, arguments, strict=True))
        server = _running() if is_forkable(given) else None
        if server is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        os.umask(mask := os.umask(0))
        start = Start(
            words=[os.fspath(word) for word in given["args"]],
            environment=dict(os.environ if given["env"] is None else given["env"]),
            folder=os.path.abspath(given["cwd"] or "."),
            ignored=[each for each in signal.Signals if signal.getsignal(each) == signal.SIG_IGN],
            new_session=bool(given["start_new_session"]),
            umask=mask,
        )
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        self.pid = server.fork(start, [own if end == -1 else end for own, end in enumerate(ends)])
        self._child_created = True
        self._close_pipe_fds(*arguments[_NAMES.index("p2cread") :][:6])  # type: ignore[attr-defined]


def _running() -> Server | None:
    """Return the server of this process; None in a child of the process that has it."""
    global _server
    if _server is None:
        _server = Server()
    alive = _server.owner == os.getpid() and _server.process.poll() is None
    return _server if alive else None
