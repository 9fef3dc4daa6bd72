"""The harness: configurations, tasks, objectives, training, evaluation and the commands that run them."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent
# ``python -m`` looks in the current folder first, where a numpy.py of the user's would stand in for NumPy.
if sys.argv[:1] == ["-m"] and sys.path and Path(sys.path[0]).resolve() != _ROOT:
    sys.path.append(sys.path.pop(0))
