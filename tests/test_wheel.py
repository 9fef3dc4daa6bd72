"""The wheel, installed outside the checkout: commands run in a folder without code and configuration."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests import CONF, ROOT, SOURCE
from tests.architectures.pretrained.folders import make_folder
from tests.dependencies import write_mixer

pytestmark = pytest.mark.full

PACKAGES = [path.name for path in (SOURCE / "archbench").iterdir() if path.is_symlink()]
SHORT = (
    "budget=smoke",
    "scale.axis=non_embedding",
    "scale.targets.non_embedding=20000",
    "budget.tokens=2000",
)
DATA = ("*.yaml", "*.yml", "*.parquet", "*.cpp", "*.h", "*.j2", "*.css", "*.js", "py.typed")
"""Files of packages that are no Python code."""


TO_A_VERDICT = [
    shlex.split(line)[1:]
    for line in (ROOT / "docs" / "installation.md").read_text().splitlines()
    if line.startswith("    archbench ")
]
"""The commands of the page on installation."""


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources: setuptools writes into the folder that it builds from."""
    sources = tmp_path_factory.mktemp("sources")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SOURCE, sources / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, sources)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(sources / "dist"), str(sources))
    return next((sources / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def archbench(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", str(wheel))
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "archbench"


def test_the_wheel_has_every_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {path for name in PACKAGES for pattern in DATA for path in (ROOT / name).rglob(pattern)}
    assert {f"archbench/{path.relative_to(ROOT).as_posix()}" for path in files} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"archbench"}


def run(archbench: Path, folder: Path, *words: str) -> str:
    """Run a command in a folder, and return its output."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "WANDB", "HYDRA"))}
    ended = subprocess.run(
        [archbench, *words], cwd=folder, env=inherited, capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_commands_run_in_a_folder_with_files_named_like_packages(archbench: Path, tmp_path: Path) -> None:
    """Those of the user stand behind all libraries, also in the processes of a sweep."""
    for name in ("analysis", "experiments", "conf", "numpy", "random", "joblib", "datasets/__init__"):
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('the wrong module')")
    sweep = ("-m", "study.name=two", "backbone=decoder,mamba", "hydra/launcher=parallel")
    run(archbench, tmp_path, "train", *sweep, "task=recall", *SHORT, "device=cpu", "device.threads=1")
    assert len(list(tmp_path.glob("runs/two/*/s0/result.json"))) == 2
    run(archbench, tmp_path, "compare", "study=two")
    assert (tmp_path / "runs" / "two" / "analysis" / "results.parquet").exists()
    shown = run(
        archbench, tmp_path, "track", "laptop", "workloads=recall_8_pairs", "backbones=decoder", "--dry-run"
    )
    assert "recall_8_pairs, nano" in shown
    assert "decoder" in shown
    stored = run(archbench, tmp_path, "track", "cpu", "workloads=parity", "backbones=decoder", "--dry-run")
    assert "5 of 5 runs are done" in stored, stored
    assert CONF not in (tmp_path, *tmp_path.parents)
    folder = make_folder("qwen2", tmp_path / "folder")
    assert run(
        archbench, tmp_path, "generate", f"run={folder}", "prompt='the cat'", "max_tokens=4", "device=cpu"
    ).strip()


def test_the_commands_to_a_verdict_run_in_an_empty_folder(archbench: Path, tmp_path: Path) -> None:
    train, dry_run, track, *_ = TO_A_VERDICT
    assert dry_run == [*track, "--dry-run"]
    write_mixer(tmp_path)
    few = ("trainer.test_examples=8", "trainer.validation_examples=8")
    shown = run(archbench, tmp_path, *train, *SHORT, *few, "device=cpu", "device.threads=1")
    assert "accuracy" in shown
    assert len(list(tmp_path.glob("runs/single/my_mixer.MyMixer-recall_8_pairs-*/s0/result.json"))) == 1
    shown = run(archbench, tmp_path, *dry_run)
    assert "recall_8_pairs, nano" in shown
    assert "my_mixer.MyMixer" in shown
    assert "0 of 18 runs are done" in shown, "three learning rates, two tuning seeds"
    assert "0 of 9 runs are done" in shown, "three test seeds"
