"""A forked command is to its parent and to itself what one is that Python starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT, forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux only")
COMMAND = [sys.executable, "-m", "tests.show_process"]


def ended(start: Any, *words: str, **options: Any) -> tuple[int, dict[str, Any], str]:
    """Return exit code, description and standard error of the command."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = start([*COMMAND, *words], **pipes, text=True, **options)
    out, errors = process.communicate("given")
    return process.returncode, json.loads(out), errors


@pytest.mark.parametrize("new_session", [False, True])
def test_it_is_as_if_python_had_started_it(tmp_path: Path, new_session: bool) -> None:
    options: Any = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": str(ROOT), "SHOWN": "é\udcff"},
        "start_new_session": new_session,
    }
    before = os.umask(0o027)
    found = ended(subprocess.Popen, "3", **options)
    assert found == ended(forked.honest_popen, "3", **options)
    os.umask(before)
    assert (found[0], found[1]["umask"], found[1]["parent"]) == (3, 0o027, os.getpid())


def test_an_error_ends_it_with_its_traceback() -> None:
    code, _, errors = ended(subprocess.Popen, "raise", cwd=ROOT)
    assert code == 1
    assert errors.endswith("ValueError: asked for\n")


def test_it_is_forked_and_ends_by_a_signal() -> None:
    process = subprocess.Popen([*COMMAND, "0"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert b"fork_server" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    process.communicate()


@pytest.mark.parametrize(
    "given",
    [
        {"args": [sys.executable, "-c", "pass"]},
        {"args": [sys.executable, "-m", "pip"]},
        {"args": "ls"},
        {"env": {**os.environ, "OMP_NUM_THREADS": "2"}},
        {"preexec_fn": print},
    ],
    ids=["code", "other module", "other program", "other threads", "function before"],
)
def test_other_commands_are_started_as_ever(given: dict[str, Any]) -> None:
    plain = dict.fromkeys(("env", *forked._UNKNOWN)) | {"args": COMMAND}
    assert forked.is_forkable(plain)
    assert not forked.is_forkable(plain | given)
