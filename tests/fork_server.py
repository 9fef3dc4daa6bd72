"""The process that ``tests.forked`` forks commands from: it imports, waits, and forks."""

from __future__ import annotations

import gc
import io
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import types
from typing import Any

PRELOADED = (
    "torch._dynamo", "torch.distributed.fsdp", "torch.utils.flop_counter", "hydra.compose", "hydra.utils",
    "hydra._internal.hydra", "hydra._internal.core_plugins.bash_completion", "omegaconf", "pandas",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher", "pyarrow.parquet", "pydantic.json_schema",
    "pydantic.dataclasses", "rich.progress", "safetensors.torch", "tokenizers", "scipy.stats",
    "matplotlib.pyplot", "plotly.graph_objects", "wandb",
)  # fmt: skip
"""Imported before the first fork, as most commands import them."""


def next_start(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """Fork for each request; return what it says in the process that is to do it, and None at the end."""
    while True:
        header, streams, _, _ = socket.recv_fds(connection, 8, 3)
        if not header:
            return None
        size = int.from_bytes(header, "little")
        message = b""
        while len(message) < size:
            message += connection.recv(size - len(message))
        reader, writer = os.pipe()
        if (middle := os.fork()) == 0:
            middle = os.getpid()
            if child := os.fork():
                os.write(writer, child.to_bytes(8, "little"))
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.0005)
            os.close(reader)
            os.close(writer)
            connection.close()
            return types.SimpleNamespace(**json.loads(message)), streams
        os.waitpid(middle, 0)
        connection.sendall(os.read(reader, 8))
        for each in (reader, writer, *streams):
            os.close(each)


def become(start: Any, streams: list[int]) -> None:
    """Make this process what it would be, had Python just started."""
    if start.new_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for each in HANDLED:
        default = signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL
        signal.signal(each, signal.SIG_IGN if each in start.ignored else default)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.folder)
    os.umask(start.umask)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = output(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = output(2, "backslashreplace")  # type: ignore[misc]
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [start.folder, *path, *(each for each in sys.path[1:] if each not in OWN_PATH)]
    sys.argv, sys.orig_argv = ["-m", *start.words[3:]], start.words
    sys.modules["__main__"] = types.ModuleType("__main__")


def output(number: int, errors: str) -> io.TextIOWrapper:
    """Open a stream as Python does when it starts."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    lines = number == 2 or os.isatty(number)
    return io.TextIOWrapper(raw, errors=errors, line_buffering=lines, write_through=unbuffered)


def own_media() -> None:
    """Give W&B a folder of this process: it made one when it was imported, and removes it at exit."""
    folder = sys.modules["wandb.sdk.data_types._private"].MEDIA_TMP
    folder._finalizer.detach()
    folder.name = tempfile.mkdtemp("wandb-media")


HANDLED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU,
)  # fmt: skip
OWN_PATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close the connection
    gc.disable()
    for module in PRELOADED:
        __import__(module)
    gc.collect()
    gc.freeze()
    gc.enable()
    found = next_start(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        become(*found)
        own_media()
        runpy._run_module_as_main(found[0].words[2])  # type: ignore[attr-defined]
