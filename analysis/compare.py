"""Compares the arms of a study: prints its tables, writes its frames and its report.

python -m analysis.compare study=compare [runs=runs] [out=FOLDER] [--allow-mixed]
"""

from __future__ import annotations

import difflib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis.against import draw
from analysis.load import load_history, load_study
from analysis.page import render_page
from analysis.steps_to_loss import with_steps
from analysis.summary import arm_table
from analysis.table import WIDTH, render_markdown, render_tables, study_text

ALLOW_MIXED = "--allow-mixed"

HELP = """\
Compares the arms of a study.

    python -m analysis.compare study=compare runs=runs out=runs/compare/analysis [--allow-mixed]

study   the study to read; default compare
runs    the folder of all studies; default runs
out     where the results go; default RUNS/STUDY/analysis
--allow-mixed  rank arms of different likelihood classes against each other, and say so;
        without it each class is ranked by itself

Prints one table for each task. Writes results.csv and results.parquet (a row for
each run), table.csv and table.md (a row for each arm) and compare.html; against.svg
too, where the study has study.against.
"""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """What to compare, and where the results go."""

    study: str = "compare"
    """The study to read, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""
    out: str = ""
    """Where the results go; empty for ``RUNS/STUDY/analysis``."""
    allow_mixed: bool = False
    """Rank arms of different likelihood classes against each other."""

    def __post_init__(self) -> None:
        if not self.study:
            raise ValueError("study= is empty: name a folder of runs, for example study=compare")
        if not self.runs:
            raise ValueError("runs= is empty: name the folder of all studies, for example runs=runs")

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else Path(self.runs) / self.study / "analysis"


def parse(arguments: Sequence[str]) -> CompareConfig:
    """The config from ``key=value`` arguments and the flag ``--allow-mixed``.

    Raises:
        ValueError: an argument without ``=``, or an unknown key.
    """
    known = [f.name for f in fields(CompareConfig) if f.name != "allow_mixed"]
    values = {}
    for argument in arguments:
        if argument == ALLOW_MIXED:
            continue
        key, equals, value = argument.partition("=")
        if not equals:
            near = difflib.get_close_matches(argument, [ALLOW_MIXED], n=1)
            remedy = f"did you mean {near[0]}?" if near else f"write for example study={argument.lstrip('-')}"
            raise ValueError(f"'{argument}' is no key=value: {remedy}")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ValueError(f"unknown key '{key}': {hint}the keys are {', '.join(known)}")
        values[key] = value
    return CompareConfig(**values, allow_mixed=ALLOW_MIXED in arguments)


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file whole or not at all: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)
    return path


def publish(frame: pd.DataFrame, history: pd.DataFrame, folder: Path) -> None:
    """Writes the files of a study into ``folder``, then prints its tables."""
    parquet = io.BytesIO()
    frame.to_parquet(parquet, index=False)
    contents: dict[str, str | bytes] = {
        "results.csv": frame.to_csv(index=False),
        "results.parquet": parquet.getvalue(),
        "table.csv": arm_table(frame).to_csv(index=False),
        "table.md": render_markdown(frame),
        "compare.html": render_page(frame, history),
    }
    if (drawn := draw(frame)) is not None:
        contents["against.svg"] = drawn
    paths = [write(folder / name, content) for name, content in contents.items()]
    if sys.stdout.isatty():
        Console(width=max(Console().width, WIDTH)).print(study_text(frame))
    else:
        print(render_tables(frame))
    print("\n".join(f"wrote {path}" for path in paths), flush=True)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 where the person asked for something that is not there."""
    if any(a in ("--help", "-h") for a in arguments):
        print(HELP, end="")
        return 0
    try:
        config = parse(arguments)
        frame = load_study(Path(config.runs), config.study)
        history = load_history(Path(config.runs), config.study)
        frame = with_steps(frame, history).assign(allow_mixed=config.allow_mixed)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        publish(frame, history, config.folder)
    except BrokenPipeError:
        # The reader, say ``head``, has seen enough; Python would complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: cannot write to {config.folder}/: {error}; set out= to another", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
