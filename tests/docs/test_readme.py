"""Every command in the README and on the how-to pages is run, and what they quote is what was printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from archbench.experiments.cli import MODULES, find_command
from tests import ROOT, SOURCE

README = (ROOT / "README.md").read_text()

TRAINED = [
    "budget=smoke",
    "budget.tokens=1100",
    "trainer.test_examples=8",
    "trainer.validation_examples=8",
]
SMALL = {
    "train": TRAINED,
    "evaluate": ["examples=8"],
    "evaluate downstream": ["limit=8"],
    "benchmark": ["contexts=[64]", "batch_size=1", "seconds=0.01", "warmup_seconds=0", "decode_tokens=4"],
    "evaluate experts": ["examples=8"],
    "slurm submit": ["task.sequence_length=256"],
}
"""Words added to a command so that a test need not wait for it."""
NOT_RUN = {"slurm status", "wandb sync", "wandb fetch"}
"""Commands that need a SLURM or a W&B server."""
OUTSIDE = {"make", "source", "sbatch", "apt-get"}
"""First words of lines that are no command of ours."""

FIRST = ["README.md", "docs/getting_started.md", "docs/how-to/backbone.md"]
"""The pages that whoever comes first reads, in this order."""
OTHERS = sorted(
    {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "how-to").glob("*.md")} - set(FIRST)
)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """The lines of the ``sh`` blocks of a page, without comments."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def name_of(command: str) -> str | None:
    """The command of archbench that a line runs; None where it runs something else."""
    if found := re.search(r"\barchbench (.+)", command):
        return find_command(found[1].split())[0]
    if found := re.search(r"python -m (\S+)", command):
        return next(name for name, module in MODULES.items() if module == found[1])
    return None


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that a reader has: those of the checkout, and the parts that the pages add."""
    desk = tmp_path_factory.mktemp("desk")
    for name in ("README.md", "docs", "conf", "slurm"):
        (desk / name).symlink_to(ROOT / name)
    (ROOT / "data-cache").mkdir(exist_ok=True)
    (desk / "data-cache").symlink_to(ROOT / "data-cache")  # text is prepared once for all tests
    for page in (*FIRST, *OTHERS):
        for language in ("python", "yaml"):
            for block in blocks(page, language):
                if named := re.match(r"# (mine/\S+|my_mixer\.py)\n", block):
                    path = desk / named[1]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # "# @package" must be the first line of a YAML.
                    path.write_text(block.partition("\n")[2] if language == "yaml" else block)
    return desk


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len(README.splitlines()) <= 150


def test_the_readme_has_its_commands_and_make_knows_them() -> None:
    assert commands("README.md")[:3] == ["make demo", "make compare", "make test"]
    for command in commands("README.md")[:3]:
        dry = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
        assert dry.returncode == 0, dry.stderr


def test_activation_names_the_environment_that_make_makes() -> None:
    assert "source .venv/bin/activate" in commands("README.md")
    assert "-m venv .venv" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("page", [*FIRST, *OTHERS])
def test_commands_exist_and_files_are_named(page: str) -> None:
    for command in commands(page):
        name = name_of(command)
        if name is None:
            assert command.split()[0] in OUTSIDE, command
        else:
            assert name in MODULES, command
    for language in ("python", "yaml"):
        for block in blocks(page, language):
            named = re.match(r"# ((mine|architectures|conf)/\S+|my_mixer\.py|notebook)\n", block)
            assert named, f"a {language} block of {page} names no file"


@pytest.fixture(scope="module")
def done() -> set[str]:
    """The commands that have run in the folder."""
    return set()


@pytest.mark.full
@pytest.mark.parametrize("page", FIRST)
def test_commands_run_one_after_the_other(page: str, desk: Path, done: set[str]) -> None:
    """In the order of the pages: a later command may read what an earlier one wrote."""
    for each in FIRST[: FIRST.index(page) + 1]:
        for command in commands(each):
            if command not in done:
                run(command, desk)
            done.add(command)


@pytest.mark.full
@pytest.mark.parametrize("page", [page for page in OTHERS if blocks(page, "sh")])
def test_commands_of_how_to_pages_run(page: str, desk: Path) -> None:
    for command in commands(page):
        run(command, desk)


@pytest.mark.full
def test_notebooks_run(desk: Path) -> None:
    for block in blocks("docs/how-to/notebooks.md", "python"):
        done = subprocess.run(
            [sys.executable, "-c", block],
            cwd=desk,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def run(command: str, desk: Path) -> None:
    """Run a command as its reader would, with the settings of ``SMALL``."""
    name = name_of(command)
    if name is None or name in NOT_RUN or re.search("submit=true|launcher=slurm", command):
        return
    line = re.sub(r"\$\(echo (\S+?)\)", lambda found: " ".join(map(str, desk.glob(found[1]))), command)
    words = [*shlex.split(line), *SMALL.get(name, [])]
    paths = [str(SOURCE)]
    if words[0].startswith("PYTHONPATH="):
        paths.insert(0, words.pop(0).partition("=")[2])
    begin = {"archbench": ["-m", "archbench.experiments.cli"], "python": []}[words[0]]
    done = subprocess.run(
        [sys.executable, *begin, *words[1:]],
        cwd=desk,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_readme_has_the_number_of_decided_claims() -> None:
    claims = (ROOT / "docs" / "findings.md").read_text().splitlines()[2]
    assert re.findall(r"\d+", claims)[:4] == re.findall(r"\d+", README.partition("Of ")[2])[:4]


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 20
    for link in links:
        assert (ROOT / link).exists(), link
