"""Every command in the README is run, and what it quotes is what was printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.tables.text import render_tables
from tests import ROOT

README = (ROOT / "README.md").read_text()

SMALL = {
    "experiments.train": ["budget=smoke", "budget.tokens=600", "trainer.test_examples=8"],
    "experiments.plan": ["budget=smoke", "budget.tokens=600", "trainer.test_examples=8"],
    "analysis.compare": [],
    "experiments.generate": [],
    "experiments.evaluate": ["examples=8"],
    "experiments.evaluation.downstream": ["limit=8"],
    "experiments.export": [],
    "experiments.cost": [],
    "experiments.benchmark": ["contexts=[64,128]", "seconds=0.01", "warmup_seconds=0.1", "decode_tokens=4"],
    "analysis.speed": [],
    "analysis.experts": ["examples=8"],
    "analysis.dashboard": [],
    "analysis.ledger": [],
    "slurm.submit": [],
}
"""What is added to a command so that a test need not wait for it."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    lines = "".join(blocks("sh")).splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def module_commands() -> list[str]:
    return [line for line in commands() if "python -m" in line]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the README's reader has: the checkout's files, and the toy backbone of its pages."""
    desk = tmp_path_factory.mktemp("desk")
    for name in ("README.md", "docs", "conf", "slurm"):
        (desk / name).symlink_to(ROOT / name)
    for language in ("python", "yaml"):
        for block in blocks(language):
            named = re.match(r"# (mine/\S+)\n", block)
            assert named, f"a {language} block of the README does not say which file it is"
            path = desk / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
    return desk


def test_the_readme_has_the_two_commands_and_make_knows_them() -> None:
    assert commands()[:2] == ["make compare", "make test"]
    for command in commands()[:2]:
        dry = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
        assert dry.returncode == 0, dry.stderr


def test_activation_names_the_environment_that_make_makes() -> None:
    assert "source .venv/bin/activate" in commands()
    assert "-m venv .venv" in (ROOT / "Makefile").read_text()


@pytest.mark.fast
def test_commands_run_one_after_the_other(desk: Path) -> None:
    """In the README's order: a later command may read what an earlier one wrote."""
    for command in module_commands():
        run(command, desk)


def run(command: str, desk: Path) -> None:
    module = re.search(r"python -m (\S+)", command)
    assert module, command
    words = [command.replace("python -m", f"{sys.executable} -m", 1), *SMALL[module[1]]]
    paths = [str(ROOT)]
    given = re.match(r"PYTHONPATH=(\S+) ", command)
    if given:
        words[0] = words[0].removeprefix(given[0])
        paths.insert(0, given[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        " ".join(words), shell=True, cwd=desk, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_every_inline_command_is_a_real_one() -> None:
    """``python -m ...`` in running text composes too."""
    inline = set(re.findall(r"`(python -m [^`]+)`", README))
    assert inline == {"python -m experiments.train --cfg job"}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.train", "--cfg", "job"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "learning_rate" in done.stdout


def test_tables_of_choices_are_the_files_that_exist() -> None:
    for group in ("backbone", "objective", "task", "scale", "budget", "device", "parallel", "tracking"):
        row = re.search(rf"^\| `{group}` \| (.*) \|$", README, flags=re.MULTILINE)
        assert row, group
        files = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert files <= set(re.findall(r"`([\w.]+)`", row[1])), group


def test_quoted_comparison_is_the_one_that_was_printed() -> None:
    """The block is what ``analysis.compare`` renders from the committed frame of that run."""
    quoted = README.split("<!-- compare:begin -->\n```\n")[1].split("```\n<!-- compare:end -->")[0]
    frame = pd.read_parquet(ROOT / "docs" / "results" / "compare.parquet")
    assert quoted.strip() == render_tables(frame).strip()
