"""Old names of commands that moved in version 0.2; version 0.3 drops them."""

from __future__ import annotations

import runpy
import sys


def run_moved(old: str, new: str) -> None:
    """Run the command ``python -m new`` with the words given to ``python -m old``, and say so once."""
    sys.stderr.write(f"warning: python -m {old} is now python -m {new}; the old name goes in version 0.3\n")
    runpy.run_module(new, run_name="__main__", alter_sys=True)
