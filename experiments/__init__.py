"""The harness: configurations, tasks, objectives, training, evaluation and the commands that run them."""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent
# ``python -m`` looks in the current folder first, where a numpy.py of the user's would stand in for NumPy.
# The variable does the same for the processes that this one starts.
if sys.argv[:1] == ["-m"] and (sys.flags.safe_path or Path(sys.path[0]).resolve() != _ROOT):
    sys.path.append(os.getcwd() if sys.flags.safe_path else sys.path.pop(0))
    os.environ["PYTHONSAFEPATH"] = "1"

from experiments.runtime import imported_sources  # noqa: E402 -- the path of modules is set above

imported_sources.begin()
