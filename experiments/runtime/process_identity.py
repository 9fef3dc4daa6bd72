"""Identity of a process on a file system that several machines share.

A lock of the system (``flock``) may be invisible to other machines: on Lustre with ``localflock`` and on NFS
with ``local_lock`` each machine has its own. A file that names the process shows all machines who holds it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return host, boot and process namespace, which identify the machine, and process id and start time."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": started(os.getpid()),
        "boot": _text(Path("/proc/sys/kernel/random/boot_id")),
        "namespace": _link(Path("/proc/self/ns/pid")),
    }


def is_local(process: Mapping[str, Any]) -> bool:
    """Return True if a process is one of this machine and container, whose life can be looked at."""
    here = this_process()
    return all(process.get(key) == here[key] for key in ("host", "boot", "namespace"))


def is_alive(process: Mapping[str, Any]) -> bool:
    """Return True if a local process still runs."""
    return started(process["pid"]) == process.get("started")


def read_process(path: Path) -> dict[str, Any] | None:
    """Return the process in a file; None if the file is gone, damaged, or not yet completely written."""
    try:
        process = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    # Without pydantic, which is slow to import: other processes may wait meanwhile.
    if not isinstance(process, dict) or type(process.get("pid")) is not int:
        return None
    optional = all(isinstance(process.get(key), str | None) for key in ("started", "boot", "namespace"))
    return process if optional and isinstance(process.get("host"), str) else None


def started(pid: int) -> str | None:
    """Return when a process of this machine began, in ticks; None if it is gone. Process ids are reused."""
    stat = _text(Path(f"/proc/{pid}/stat"))
    if stat is not None:
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return None if Path("/proc/self").exists() else "unknown"


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
