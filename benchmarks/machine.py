"""Header of pages of measurements, tables, and output files."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from archbench.architectures.kernels.cpu import instruction_sets
from archbench.experiments.runtime.memory import keep_freed_memory


def settle(threads: int) -> None:
    """Sets for all that is timed in this process, ours and others', what a run sets for itself."""
    instruction_sets.check_libraries()
    torch.set_num_threads(threads)
    keep_freed_memory()


def clock() -> float:
    """Return seconds: of the processor for one thread, which other work disturbs less, else of the wall."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def machine_line() -> str:
    """Processor, threads, versions, date and commit."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    processor = _processor(instruction_sets.forced())
    return (
        f"{processor}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {date}, commit {commit()}"
    )


INSTRUCTIONS = {"avx512f": "AVX-512", "avx512_bf16": "bfloat16", "amx_bf16": "AMX"}
"""Instructions that tell processors of one name apart: virtual machines often use one name for multiple
processors."""


def _processor(limit: str) -> str:
    """Return the name of the processor, with the instruction set that it is limited to, or those it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    values_of = {name.strip(): value.split() for name, value in fields.items()}
    name = " ".join(values_of.get("model name", [])) or platform.machine()
    if limit != instruction_sets.NATIVE:
        return f"{name} (limited to {limit.upper()})"
    has = [word for flag, word in INSTRUCTIONS.items() if flag in values_of.get("flags", [])]
    return f"{name} ({' '.join(has)})" if has else name


def processor_folder(limit: str) -> str:
    """Return a name for a folder of what was measured on this processor, limited to an instruction set."""
    name = re.sub(r"\((r|tm)\)|processor|cpu @.*?ghz", " ", _processor(limit).lower())
    return "-".join(re.findall(r"[a-z0-9]+", name))


def commit() -> str:
    """Short name of the commit, with a + where the code was changed since; results are no code."""

    def ask(*words: str) -> str:
        folder = str(Path(__file__).parent)
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True).stdout.strip()

    changed = ask(
        "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)benchmarks/results"
    )
    return (ask("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with aligned columns; numbers are right-aligned."""
    places = range(len(columns))
    widths = [max(len(line[i]) for line in [columns, *rows]) for i in places]
    right = [all(row[i][:1].isdigit() for row in rows) for i in places]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = [("-" * (w - 1) + ":") if r else "-" * w for w, r in zip(widths, right, strict=True)]
    return "\n".join([line(columns), line(rule), *(line(row) for row in rows)])


class Page:
    """Prints measurements at once, and writes all of them to files."""

    def __init__(self, output: Path | None, numbers: Path | None = None) -> None:
        """``output`` is the Markdown file, ``numbers`` the JSON file of the values from ``note``."""
        self.output, self.numbers = output, numbers
        self.parts: list[str] = []
        self.noted: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """A paragraph or a table."""
        print(text + "\n", flush=True)
        self.parts.append(text)
        if self.output is not None:
            self.output.write_text("\n\n".join(self.parts) + "\n", encoding="utf-8")

    def note(self, name: str, value: Any) -> None:
        """Add a value to the JSON file."""
        self.noted[name] = value
        if self.numbers is not None:
            self.numbers.write_text(json.dumps(self.noted, indent=1) + "\n", encoding="utf-8")


def add_checkouts(parser: argparse.ArgumentParser, needed: str) -> None:
    """The argument for other checkouts to compare with this one; each must have the file ``needed``."""

    def checkout(text: str) -> Path:
        path = Path(text)
        if not (path / needed).is_file():
            raise argparse.ArgumentTypeError(f"{path}: no checkout, it has no {needed}")
        return path.resolve()

    parser.add_argument(
        "--against", nargs="+", type=checkout, default=[], help="other checkouts, to take turns"
    )


def at_least_one(text: str) -> int:
    """The type of an argument that is a count."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: at least 1")
    return value


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """The arguments that every benchmark has: files for its page and its values."""
    parser.add_argument("--output", type=Path, help="Markdown file for the output")
    parser.add_argument("--json", type=Path, help="JSON file for the values")


def read_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line; refuses files in folders that are not there."""
    args = parser.parse_args()
    for name in ("output", "json"):
        path = getattr(args, name)
        if path is not None and not path.parent.is_dir():
            parser.error(f"--{name} {path}: there is no folder {path.parent}; make it first")
    return args
