"""A page in Chromium with a real mouse, by the DevTools protocol over two pipes."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.analysis.report.browser import CHROMIUM, REMEDY

PATIENCE = 60.0
"""Seconds to wait for an answer of Chromium, or for a page, on a busy machine."""


class Tab:
    """An open page."""

    def __init__(self, commands: int, answers: int) -> None:
        """``commands`` and ``answers`` are file descriptors."""
        self._commands, self._answers = commands, answers
        self._numbers, self._pending = itertools.count(1), b""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session := getattr(self, "_session", None):
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> bytes:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert ready, "Chromium did not answer"
            received = os.read(self._answers, 1 << 16)
            assert received, "Chromium has ended"
            self._pending += received
        message, _, self._pending = self._pending.partition(b"\0")
        return message

    def open(self, page: Path, scheme: str, width: int, height: int = 900) -> None:
        """Open a file in a window of a width, in a light or dark scheme, and wait until it is loaded."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self.evaluate("window.isLeft = true")  # the page before may have the same address
        self._call("Page.navigate", url=page.resolve().as_uri())
        there = f"location.pathname.endsWith({json.dumps(page.name)})"
        self.wait(f"!window.isLeft && {there} && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self._is_true(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.05)

    def _is_true(self, condition: str) -> bool:
        """Return True if an expression is true; False between two pages, which evaluate nothing."""
        try:
            return bool(self.evaluate(f"Boolean({condition})"))
        except AssertionError:
            return False

    def move(self, element: str) -> None:
        """Move the mouse to the middle of an element, an expression, and scroll to it before."""
        self.evaluate(f"({element}).scrollIntoView({{block: 'center'}})")
        x, y = self.evaluate(
            f"(r => [r.left + r.width / 2, r.top + r.height / 2])(({element}).getBoundingClientRect())"
        )
        self.move_to(x, y)

    def move_to(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 2, y=y)
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self._at = (x, y)

    def click(self, element: str) -> None:
        """Click on an element."""
        self.move(element)
        x, y = self._at
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextmanager
def chromium() -> Iterator[Tab]:
    """Yield a tab of a new Chromium without a window."""
    assert CHROMIUM is not None, REMEDY
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The protocol's pipes are the descriptors 3 and 4.
        script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        words = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=(read_commands, write_answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Tab(commands, answers)
        finally:
            process.terminate()
            process.wait(30)
            os.close(commands)
            os.close(answers)
