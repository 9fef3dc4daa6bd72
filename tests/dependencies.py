"""Test the wheel with other versions of Python and of the dependencies, in an environment of its own.

    python -m tests.dependencies --resolution lowest-direct
    python -m tests.dependencies --resolution highest --python 3.13 --commands

``lowest-direct`` installs the lower bound of each dependency in pyproject.toml, ``highest`` the newest one.
First the commands of ``commands`` run with the wheel and its dependencies, and no other package, in a folder
with the file of a mixer. Then the tools of the tests are installed, and the fast tests of ``FILES`` run;
``--commands`` leaves them out. Needs ``uv`` on the PATH, and no other package.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

FILES = {
    "datasets": ["tests/experiments/data/test_hub.py", "tests/analysis/test_dataset.py"],
    "hydra-core": ["tests/experiments/config", "tests/conf/test_recipes.py"],
    "hydra-joblib-launcher": ["tests/experiments/test_train.py"],
    "jinja2": ["tests/analysis/report", "tests/experiments/data/tokenizers/test_chat_template.py"],
    "joblib": ["tests/experiments/runtime/test_machine.py", "tests/experiments/run/test_sweep_schedule.py"],
    "matplotlib": [
        "tests/analysis/figures/test_matplotlib_export.py",
        "tests/analysis/figures/test_verdicts.py",
    ],
    "numpy": ["tests/experiments/data/test_counter_rng.py", "tests/experiments/data/test_token_file.py"],
    "pandas": ["tests/analysis/load", "tests/analysis/test_compare.py"],
    "pillow": ["tests/experiments/tasks/long_range/test_images.py"],
    "plotly": ["tests/analysis/figures"],
    "pyarrow": ["tests/experiments/tracking/test_results_frame.py", "tests/experiments/data/preparation"],
    "pydantic": ["tests/experiments/tracking/test_run_files.py"],
    "rich": ["tests/experiments/run/test_live_view.py", "tests/experiments/runtime/test_console.py"],
    "rouge-score": ["tests/experiments/tasks/test_text_metrics.py"],
    "sacrebleu": ["tests/experiments/tasks/test_text_metrics.py"],
    "safetensors": [
        "tests/experiments/training/checkpoints",
        "tests/architectures/pretrained/test_folder.py",
    ],
    "scikit-learn": ["tests/experiments/tasks/test_metrics.py"],
    "scipy": ["tests/analysis/stats"],
    "seqeval": ["tests/experiments/tasks/text/test_bio_tags.py"],
    "tokenizers": ["tests/experiments/data/tokenizers"],
    "torch": ["tests/architectures/layers", "tests/architectures/kernels", "tests/experiments/training"],
    "typing-extensions": ["tests/experiments/runtime"],
    "wandb": ["tests/experiments/tracking"],
    "wandb-workspaces": ["tests/analysis/weights_and_biases"],
}
"""Tests that use each dependency."""


SHOWN = ("torch", "transformers", "numpy", "pandas", "scipy", "hydra-core", "pydantic", "pyarrow")
"""Packages whose versions are printed."""
TINY = ("budget=smoke", "scale.axis=non_embedding", "scale.targets.non_embedding=20000", "budget.tokens=2000")


def make_environment(folder: Path, wheel: Path, python: str, resolution: str) -> Path:
    """Install the wheel and its dependencies, and return the Python of the environment."""
    uv("venv", "--quiet", "--seed", "--python", python, str(folder))
    install_dependencies(folder, resolution)
    uv("pip", "install", "--quiet", "--python", str(folder), "--no-deps", str(wheel))
    return folder / "bin" / "python"


def install_dependencies(folder: Path, resolution: str, *words: str) -> None:
    """Install what pyproject.toml asks for: as requirements of the wheel they would not be direct ones."""
    project = str(ROOT / "pyproject.toml")
    install = ("pip", "install", "--quiet", "--python", str(folder), "--resolution", resolution)
    uv(*install, "--requirements", project, *words)


def commands(folder: Path) -> Iterator[list[str]]:
    """Yield the commands that a new user runs in a folder with ``my_mixer.py``, one after the other."""
    models = "backbone=decoder,mamba,./my_mixer.py:MyMixer"
    yield [
        "train",
        "-m",
        models,
        "task=text",
        "task.tokenizer.kind=bpe",
        "hydra/launcher=parallel",
        "study.name=first",
        *TINY,
    ]
    yield ["compare", "study=first"]
    yield ["track", "laptop", "workloads=infilling", "backbones=decoder", "--dry-run"]
    run = next(folder.glob("runs/first/decoder-*/s0"))
    yield ["export", f"run={run.relative_to(folder)}", "to=exported"]
    yield ["generate", "run=exported", "prompt='the cat'", "max_tokens=4"]


def write_mixer(folder: Path) -> None:
    """Write my_mixer.py of the page on backbones into a folder."""
    page = (ROOT / "docs" / "how-to" / "backbone.md").read_text()
    (mixer,) = re.findall(r"```python\n(# my_mixer\.py\n.*?)```", page, re.DOTALL)
    (folder / "my_mixer.py").write_text(mixer)


def run_commands(archbench: Path, folder: Path) -> int:
    """Run the commands, print exit code and seconds of each, and return the first exit code that is not 0."""
    write_mixer(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for words in commands(folder):
        started = time.monotonic()
        ended = subprocess.run(
            [archbench, *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        print(f"exit code {ended.returncode} after {seconds:.0f} s: archbench {' '.join(words)}", flush=True)
        if ended.returncode:
            print(ended.stdout, ended.stderr)
            return ended.returncode
    return 0


def outermost_paths() -> list[str]:
    """Return the paths in ``FILES`` that are in no other one.

    pytest 8.4 would leave out the other files of a folder if one of its files is named too.
    """
    listed = {Path(path) for paths in FILES.values() for path in paths}
    return sorted(str(path) for path in listed if not listed.intersection(path.parents))


def run_tests(python: Path) -> int:
    """Run the fast tests of ``FILES`` and those of the wheel, and return the exit code."""
    words = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
    files = outermost_paths()
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    fast = subprocess.run([*words, "--tier", "fast", *files], cwd=ROOT, env=environment)
    wheel = subprocess.run([*words, "--tier", "all", "tests/test_wheel.py"], cwd=ROOT, env=environment)
    return fast.returncode or wheel.returncode


def print_versions(python: Path) -> None:
    """Print the versions of Python and of the packages in ``SHOWN``."""
    listed = subprocess.run(
        ["uv", "pip", "list", "--python", str(python), "--format", "freeze"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    shown = [line for line in listed if line.partition("==")[0] in SHOWN]
    version = subprocess.run([python, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{version}, {', '.join(shown)}", flush=True)


def uv(*words: str) -> None:
    """Run uv, which prints why it fails. Raises SystemExit then."""
    if code := subprocess.run(["uv", *words]).returncode:
        sys.exit(f"uv {' '.join(words)} failed with exit code {code}")


def main() -> int:
    """Return the exit code of the commands and the tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--resolution", choices=("lowest-direct", "highest"), required=True)
    parser.add_argument("--python", default=sys.executable, help="version or path; this one by default")
    parser.add_argument("--wheel", type=Path, help="a wheel; by default, one of the checkout is built")
    parser.add_argument("--commands", action="store_true", help="leave the tests out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = options.wheel or build_wheel(Path(scratch) / "dist")
        python = make_environment(Path(scratch) / "environment", wheel, options.python, options.resolution)
        print_versions(python)
        (desk := Path(scratch) / "desk").mkdir()
        code = run_commands(python.with_name("archbench"), desk)
        if options.commands:
            return code
        tools = ("--extra", "dev", "mlcroissant>=1.1")
        install_dependencies(python.parent.parent, options.resolution, *tools)
        print_versions(python)
        return run_tests(python) or code


def build_wheel(folder: Path) -> Path:
    """Return the wheel of the sdist: that of the checkout would contain what older builds left in build/."""
    uv("build", "--quiet", "--out-dir", str(folder), str(ROOT))
    for path in sorted(folder.glob("archbench*")):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    return next(folder.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
