"""Every command that prints a table keeps to 80 columns, where its output is no terminal."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from archbench.experiments.cli import COMMANDS
from archbench.experiments.runtime.console import WIDTH
from tests import ROOT
from tests.tiers import fast_only

CONSOLE = "experiments/runtime/console.py"
TO_A_FILE = (
    "analysis/experts/tables.py",
    "analysis/findings/published_page.py",
    "analysis/tables/terminal.py",
)
"""Modules that write a table into a text, with a console of ``WIDTH`` columns."""
PRINTED = [
    ("cost", "backbone=llama2_70b", "sequence_length=4096"),
    ("cost simulate", "processes=8,64", "task=recall", "parallel=fsdp", "budget.batch_size=64"),
    ("tasks", "-m", "task=recall,parity,compositional_recall"),
    ("findings", "claim=alibi_extrapolation"),
    ("findings predictions",),
    ("plan", "-m", "backbone=decoder,mamba", "task=recall", "seed=0,1"),
]
FAST = [PRINTED[0], PRINTED[4]]


@pytest.mark.parametrize("words", fast_only(PRINTED, FAST), ids=lambda words: words[0])
def test_tables_fit_into_a_terminal(words: tuple[str, ...], tmp_path: Path) -> None:
    command = words[0]
    assert any(command in group for group in COMMANDS.values())
    arguments = [*words[1:], *[f"runs={tmp_path}"] * (command == "plan")]
    ended = subprocess.run(
        [sys.executable, "-m", "archbench.experiments.cli", *command.split(), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    lines = ended.stdout.splitlines()
    assert any("──" in line for line in lines), "no table was printed"
    assert max(map(len, lines)) <= WIDTH


def test_no_module_prints_a_table_at_a_width_of_its_own() -> None:
    own = re.compile(r"\bConsole\([^)]*\bwidth=", re.DOTALL)
    found = [
        str(path.relative_to(ROOT))
        for folder in ("analysis", "experiments", "slurm")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if own.search(path.read_text())
    ]
    assert found == sorted([*TO_A_FILE, CONSOLE])
