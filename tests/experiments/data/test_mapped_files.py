"""A file that is cut while it is mapped ends the process with one message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from archbench.experiments.runtime.errors import DataError
from tests import ROOT

CODE = """
import os, sys
from pathlib import Path
import numpy as np
from archbench.experiments.data.mapped_files import map_file
array = map_file(Path(sys.argv[1]), np.dtype("u2"))
assert array[100_000] == 0
(prepared := Path(sys.argv[1] + ".tmp")).write_bytes(bytes(100))
kept = map_file(prepared, np.dtype("u2"))
prepared.unlink()
os.truncate(sys.argv[1], 10)
print(array[100_000])
"""


def test_a_file_that_is_cut_is_named(tmp_path: Path) -> None:
    """It was a SIGBUS without a word."""
    (path := tmp_path / "train.bin").write_bytes(bytes(400_000))
    ended = subprocess.run(
        [sys.executable, "-c", CODE, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == DataError.exit_code
    assert ended.stderr == (
        f"error: {path}: was cut, or removed, while a run reads it; delete its folder and run again to "
        "prepare it\n"
    )
