"""The benchmark of loading: a small run of the whole."""

import subprocess
import sys
from pathlib import Path

from tests import ROOT


def test_a_few_runs_are_written_and_loaded_in_every_state(tmp_path: Path) -> None:
    page = tmp_path / "loading.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "loading.py"), "--runs", "50", "--repeats", "2"]
    done = subprocess.run(
        [*command, "--output", str(page)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    for state in ("cold", "warm"):
        assert text.count(f"| {state} ") == 2
