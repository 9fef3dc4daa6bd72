"""A child process ends with the process that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archbench.experiments.runtime.child_processes import run_python

CHILD = """
import os, signal, sys, time
from pathlib import Path
from archbench.experiments.runtime.child_processes import end_with_parent

end_with_parent()
if sys.argv[2] == "saves":
    def save(number, frame):
        time.sleep(4)
        Path(sys.argv[1], "saved").touch()
        signal.signal(signal.SIGTERM, before)
    before = signal.signal(signal.SIGTERM, save)
Path(sys.argv[1], "pid.tmp").write_text(str(os.getpid()))
Path(sys.argv[1], "pid.tmp").rename(Path(sys.argv[1], "pid"))
while True:
    time.sleep(0.05)
"""
PARENT = """
import signal, sys
from archbench.experiments.runtime.child_processes import run_python
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below nohup and in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)
run_python(["-c", {child!r}, *sys.argv[1:]])
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("sign", "kind"),
    [
        (signal.SIGKILL, "waits"),
        (signal.SIGTERM, "waits"),
        (signal.SIGINT, "waits"),
        (signal.SIGHUP, "waits"),
        (signal.SIGKILL, "saves"),  # and then goes on, as a worker of a parallel sweep does
    ],
)
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path, kind: str, sign: signal.Signals) -> None:
    words = [sys.executable, "-c", PARENT.format(child=CHILD), str(tmp_path), kind]
    parent = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    child = int((tmp_path / "pid").read_text())
    parent.send_signal(sign)
    while alive(child):
        assert time.monotonic() < until
        time.sleep(0.02)
    parent.wait()
    assert (tmp_path / "saved").exists() == (kind == "saves")


def test_a_child_reads_and_prints_as_with_subprocess() -> None:
    done = run_python(["-c", "print(input()); raise SystemExit(3)"], standard_input="text", capture=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "text\n", "")


def test_a_grandchild_does_not_take_the_parent_of_its_parent_for_its_own() -> None:
    code = "from archbench.experiments.runtime.child_processes import end_with_parent; end_with_parent()"
    code += "; print(os.environ)"
    done = run_python(["-c", code], capture=True)
    assert "ARCHBENCH_PARENT" not in done.stdout
    assert "ARCHBENCH_PARENT" not in os.environ
