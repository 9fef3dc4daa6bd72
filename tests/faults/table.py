"""Renders docs/reference/faults.md from what the fault tests recorded.

FAULT_RECORD=faults.jsonl python -m pytest tests/faults --tier all
python tests/faults/table.py faults.jsonl > docs/reference/faults.md
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from experiments.runtime.machine import usable_cores
from experiments.tracking.provenance import processor

RANDOM = ("F45", "F46", "F47", "F48", "F49", "F50")
"""Faults of which each seed injects others."""

_KINDS = Path(__file__).with_name("kinds.yaml")
KINDS: list[dict[str, Any]] = yaml.safe_load(_KINDS.read_text(encoding="utf-8"))
"""Kinds of silence: what went wrong, what is promised now, the faults injected, and the files with tests."""

HEAD = """# Faults injected

Faults that the tests in `tests/faults/` inject, how often, and what happened. Each line was written by a
test after its checks. Made on {day}, {machine}, by

    FAULT_RECORD=faults.jsonl python -m pytest tests/faults --tier all
    python tests/faults/table.py faults.jsonl > docs/reference/faults.md

`make test` injects the same faults a few times each.
[Reliability](reliability.md) says what a run guarantees.

## Kinds

| what went wrong | promised | faults | shown by `tests/` |
|---|---|---|---|
{kinds}

## Injected

| fault | injected | times | what happened |
|---|---|---:|---|
"""

TAIL = """
Tested elsewhere: exact resume of every backbone after SIGKILL, once and twice (`F08`, and with it the order
of the data, `F09`: `tests/experiments/run/test_resume.py`), W&B that fails and resumes (`F24`, `F25`:
`tests/experiments/tracking/test_wandb.py`, and online, in whole runs too: `test_wandb_online.py`,
`test_wandb_training.py`, `tests/analysis/dashboard/test_online.py`), bad configurations (`F26`:
`test_errors.py`), bad data (`F27`: `tests/experiments/data/test_bad_data.py`), several processes
(`F11`: `test_distributed.py`; `F19`, `F23`: `test_failing_together.py`), a real SLURM (`F11` to `F13`:
`tests/slurm/`).
Not tested: what needs a GPU (`F31`, CUDA out of memory).
"""


def machine() -> str:
    """Of this machine: cores, processor, versions."""
    cores, python = usable_cores(), platform.python_version()
    return f"on {cores} cores ({processor(torch.device('cpu'))}), Python {python}, torch {torch.__version__}"


def render(lines: list[str], day: str, machine: str) -> str:
    """The page; of a fault injected both a few and many times, the many, of random ones all together."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        row = json.loads(line)
        key = (row["fault"], row["injected"])
        if row["fault"] in RANDOM and key in rows:
            rows[key]["count"] += row["count"]
        elif key not in rows or row["count"] > rows[key]["count"]:
            rows[key] = row
    table = [
        f"| {row['fault']} | {row['injected']} | {row['count']:,} | {row['happened']} |"
        for _, row in sorted(rows.items())
    ]
    kinds = [
        f"| {each['kind']} | {each['promised']} | {', '.join(each['faults'])} | {', '.join(each['tests'])} |"
        for each in KINDS
    ]
    return HEAD.format(day=day, machine=machine, kinds="\n".join(kinds)) + "\n".join(table) + "\n" + TAIL


if __name__ == "__main__":
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    sys.stdout.write(render(Path(sys.argv[1]).read_text().splitlines(), today, machine()))
