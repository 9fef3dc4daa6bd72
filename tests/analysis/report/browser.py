"""Chromium without a window: what a page's document is once its scripts have run, and pictures of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = shutil.which("chromium")
REMEDY = "needs a browser: apt-get install chromium"
NARROWEST = 500
"""Width of Chromium's narrowest window."""
SCHEMES = {"dark": 0, "light": 1}
"""Chromium's numbers of what a reader's system prefers."""


def visit(page: Path, *words: str, scheme: str = "light", width: int = 1280, height: int = 900) -> str:
    """What Chromium prints of a page when its scripts have run; ``words`` say what it shall do."""
    assert CHROMIUM is not None, REMEDY
    with tempfile.TemporaryDirectory() as profile:
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={profile}", f"--window-size={width},{height}", "--virtual-time-budget=60000",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", "--enable-logging=stderr",
            *words, page.resolve().as_uri(),
        ]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    # What a page logs, and what it may not load, stands in Chromium's log as CONSOLE.
    assert "CONSOLE" not in ended.stderr, ended.stderr
    return ended.stdout


def document(page: Path, scheme: str = "light", width: int = 1280) -> str:
    """The HTML of a page after its scripts have run."""
    return visit(page, "--dump-dom", scheme=scheme, width=width)


FRAME = """<!DOCTYPE html><style>body { margin: 0 }</style>
<iframe src="%s" width="%d" height="%d" style="border: 0"></iframe><pre id="found"></pre>
<script>onmessage = e => document.getElementById("found").textContent = e.data;</script>"""


def framed(page: Path, width: int, height: int = 900) -> Path:
    """A page beside another that shows it at any width: Chromium's window is never below 500 pixels.

    Its element ``found`` has what the page posts to its parent.
    """
    frame = page.with_name("frame.html")
    frame.write_text(FRAME % (page.name, width, height))
    return frame


def picture(page: Path, path: Path, scheme: str, width: int, height: int) -> None:
    """A PNG of the top of a page; of one below 500 pixels, a margin stands to the right."""
    if width < NARROWEST:
        page = framed(page, width, height)
    shot = f"--screenshot={path.resolve()}"
    visit(page, shot, scheme=scheme, width=max(width, NARROWEST), height=height)


def on_paper(page: Path, path: Path) -> None:
    """The page as a PDF."""
    visit(page, f"--print-to-pdf={path.resolve()}", "--no-pdf-header-footer")
