"""Test the wheel with other versions of Python and of the dependencies, in an environment of its own.

    python -m tests.dependencies --resolution lowest-direct
    python -m tests.dependencies --resolution highest --python 3.13

``lowest-direct`` installs the lower bound of each dependency in pyproject.toml, ``highest`` the newest one.
The fast tests of ``FILES`` run with them, and the commands of ``tests/test_wheel.py``, outside the checkout.
Needs ``uv`` on the PATH, and no other package.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
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


def make_environment(folder: Path, wheel: Path, python: str, resolution: str) -> Path:
    """Install the wheel with the tools of the tests, and return the Python of the environment."""
    uv("venv", "--quiet", "--seed", "--python", python, str(folder))
    install = ["pip", "install", "--quiet", "--python", str(folder)]
    # Of the wheel itself, the dependencies would not be direct ones.
    uv(*install, "--resolution", resolution, "--requirements", str(ROOT / "pyproject.toml"), "--extra", "dev")
    uv(*install, "--no-deps", str(wheel))
    return folder / "bin" / "python"


def run_tests(python: Path) -> int:
    """Run the fast tests of ``FILES`` and those of the wheel, and return the exit code."""
    words = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
    files = sorted({file for listed in FILES.values() for file in listed})
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    fast = subprocess.run([*words, "--tier", "fast", *files], cwd=ROOT, env=environment)
    wheel = subprocess.run([*words, "--tier", "all", "tests/test_wheel.py"], cwd=ROOT, env=environment)
    return fast.returncode or wheel.returncode


def uv(*words: str) -> None:
    """Run uv. Raises CalledProcessError if it fails."""
    subprocess.run(["uv", *words], check=True)


def main() -> int:
    """Return the exit code of the tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--resolution", choices=("lowest-direct", "highest"), required=True)
    parser.add_argument("--python", default=sys.executable, help="version or path; this one by default")
    parser.add_argument("--wheel", type=Path, help="a wheel; by default, one of the checkout is built")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if (wheel := options.wheel) is None:
            # The wheel of the sdist: that of the checkout would contain what older builds left in build/.
            uv("build", "--quiet", "--out-dir", scratch, str(ROOT))
            wheel = next(Path(scratch).glob("*.whl"))
        python = make_environment(Path(scratch) / "environment", wheel, options.python, options.resolution)
        uv("pip", "list", "--python", str(python))
        return run_tests(python)


if __name__ == "__main__":
    sys.exit(main())
