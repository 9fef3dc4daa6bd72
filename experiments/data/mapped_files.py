"""Files that are mapped into memory. One that is cut while it is read ends the process with one message.

Reading a page that the file no longer has raises SIGBUS, which is no exception and kills a process without a
word. The handler is called in the thread that reads, names the file and ends the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

import numpy as np

from archbench.experiments.runtime.errors import DataError

_sizes: dict[Path, int] = {}
"""Bytes of each mapped file when it was mapped."""
_handlers: list[object] = []
"""The handler in C, which must not be collected."""


def map_file(path: Path, dtype: np.dtype) -> np.memmap:
    """Return a file as an array of one axis that is read when it is used."""
    array = np.memmap(path, dtype=dtype, mode="r")
    _sizes[path] = array.nbytes
    if not _handlers and threading.current_thread() is threading.main_thread():
        _handle_bus_errors()
    return array


def _handle_bus_errors() -> None:
    """Install the handler. One of Python's would only be called after the faulty read, which never ends."""
    if not hasattr(signal, "SIGBUS"):
        return
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_end)
    ctypes.CDLL(None).signal(int(signal.SIGBUS), handler)
    _handlers.append(handler)


def _end(signal_number: int) -> None:
    # What is mapped stays if its file is removed, as preparation does, but not on every network's disk.
    sizes = {path: _bytes(path) for path in _sizes}
    cut = [path for path, size in sizes.items() if size is not None and size < _sizes[path]]
    cut = cut or [path for path, size in sizes.items() if size is None]
    names = ", ".join(map(str, cut)) or ", ".join(str(path) for path in _sizes)
    reason = "was cut, or removed, while" if cut else "cannot be read from its disk, where"
    remedy = "delete its folder and run again to prepare it"
    os.write(2, f"error: {names}: {reason} a run reads it; {remedy}\n".encode())
    os._exit(DataError.exit_code)


def _bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
