"""The console command ``archbench`` runs the modules it names, and nothing else."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from archbench.experiments.cli import COMMANDS, MODULES, NAMES, find_command
from archbench.experiments.runtime import errors
from tests import ROOT
from tests.experiments import commands


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return commands.run("cli", *words)


def test_help_lists_every_command_without_torch() -> None:
    code = "import sys, archbench.experiments.cli as c; sys.argv[1:] = ['--help']; c.main(); "
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for group in COMMANDS.values():
        for name, (_, line) in group.items():
            assert f"  {name} " in done.stdout
            assert line in done.stdout
    assert all(len(line) <= 110 for line in done.stdout.splitlines())


@pytest.mark.parametrize("module", sorted(MODULES.values()))
def test_every_module_can_be_run(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin)
    program = path.with_name("__main__.py") if found.submodule_search_locations else path
    assert 'if __name__ == "__main__"' in program.read_text()


def test_a_mistyped_command_names_the_nearest() -> None:
    done = run("trian", "task=recall")
    assert done.returncode == errors.ConfigError.exit_code
    assert done.stderr == "error: 'trian' is not a command; did you mean 'train'?\n"


@pytest.mark.parametrize(
    ("line", "name", "rest"),
    [
        ("evaluate run=x", "evaluate", ["run=x"]),
        ("evaluate experts run=x", "evaluate experts", ["run=x"]),
        ("evaluate samples=3", "evaluate", ["samples=3"]),
        ("evaluate --help", "evaluate", ["--help"]),
        ("train experts", "train", ["experts"]),
        ("evaluate", "evaluate", []),
    ],
)
def test_a_second_word_chooses_a_part(line: str, name: str, rest: list[str]) -> None:
    assert find_command(line.split()) == (name, rest)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "evaluate downstrem run=x",
            "'evaluate downstrem' is not a command; did you mean 'evaluate downstream'?",
        ),
        ("wandb", "wandb: choose one of wandb sync, wandb dashboard, wandb fetch"),
        ("slurm qqq", "'slurm qqq' is not a command; options: slurm prepare, slurm status, slurm submit"),
        ("experts", "'experts' is not a command; did you mean 'evaluate experts'?"),
        ("fetch", "'fetch' is not a command; did you mean 'wandb fetch'?"),
    ],
)
def test_a_part_that_is_not_there(line: str, said: str) -> None:
    with pytest.raises(errors.ConfigError) as refused:
        find_command(line.split())
    assert str(refused.value) == said


def test_every_command_has_a_name_of_one_word_and_there_are_few() -> None:
    assert len(NAMES) <= 20


def test_version_of_any_command_is_ours() -> None:
    done = run("train", "--version")
    assert (done.returncode, done.stdout) == (0, f"{importlib.metadata.version('archbench')}\n")


def test_no_command_prints_the_help_as_an_error() -> None:
    done = run()
    assert done.returncode == errors.ConfigError.exit_code
    assert "usage: archbench COMMAND" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--help"),
        ("train", "backbone=mamba", "task=recall", "--cfg", "job"),
        ("train", "backbone=mambo"),
    ],
)
def test_a_command_does_what_its_module_does(words: tuple[str, ...]) -> None:
    """Output, errors and exit code are the same."""
    name, *rest = words
    through = run(*words)
    direct = commands.run(name, *rest)
    assert (through.returncode, through.stdout, through.stderr) == (
        direct.returncode,
        direct.stdout,
        direct.stderr,
    )


def test_analysis_keeps_its_exit_code() -> None:
    done = run("compare", "study=there-is-none")
    direct = subprocess.run(
        [sys.executable, "-m", "archbench.analysis.compare", "study=there-is-none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (direct.returncode, direct.stderr)
    assert done.returncode != 0


@pytest.mark.full
def test_a_sweep_trains_in_processes_of_its_own(tmp_path: Path) -> None:
    words = [*commands.TINY, *commands.RECALL, f"runs={tmp_path}", "study.name=mine", "budget.tokens=600"]
    done = run("train", "-m", "seed=0,1", "hydra/launcher=joblib", *words)
    assert done.returncode == 0, done.stderr
    results = list(tmp_path.glob("mine/*/s*/result.json"))
    assert len(results) == 2


def test_the_package_installs_it() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"archbench": "archbench.experiments.cli:main"}
