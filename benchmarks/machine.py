"""What every page of measurements says first, tables, and where they go."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch


def machine_line() -> str:
    """Processor, threads, versions, date and commit."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {date}, commit {_commit()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str:
    """Short name of the commit, with a + where the code was changed since."""

    def ask(*words: str) -> str:
        folder = str(Path(__file__).parent)
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True).stdout.strip()

    changed = ask("status", "--porcelain", "--untracked-files=no")
    return (ask("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its columns aligned for those who read the text; numbers stand right."""
    places = range(len(columns))
    widths = [max(len(line[i]) for line in [columns, *rows]) for i in places]
    right = [all(row[i][:1].isdigit() for row in rows) for i in places]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = [("-" * (w - 1) + ":") if r else "-" * w for w, r in zip(widths, right, strict=True)]
    return "\n".join([line(columns), line(rule), *(line(row) for row in rows)])


class Page:
    """Prints what is measured as soon as it is known, and writes the whole to a file."""

    def __init__(self, output: Path | None) -> None:
        self.output = output
        self.parts: list[str] = []

    def say(self, text: str) -> None:
        """A paragraph or a table."""
        print(text + "\n", flush=True)
        self.parts.append(text)
        if self.output is not None:
            self.output.write_text("\n\n".join(self.parts) + "\n", encoding="utf-8")
