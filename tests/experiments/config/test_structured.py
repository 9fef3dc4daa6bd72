"""Modules of the user are told apart from installed ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import SOURCE

CODE = """
import sys
from archbench.experiments.config.structured import is_own
print(*map(is_own, sys.argv[1:]))
"""


def test_packages_of_another_environment_are_not_the_users(tmp_path: Path) -> None:
    """Otherwise the sources of PyTorch would be read and hashed, which takes minutes."""
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "installed.py").touch()
    (tmp_path / "mine.py").touch()
    shown = subprocess.run(
        [sys.executable, "-c", CODE, "installed", "mine", "json", "torch"],
        env={**os.environ, "PYTHONPATH": f"{packages}:{tmp_path}:{SOURCE}"},
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert shown == "False True False False\n"
