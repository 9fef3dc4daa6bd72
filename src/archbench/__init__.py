"""archbench compares sequence-model architectures.

The subpackages ``architectures``, ``experiments``, ``conf``, ``analysis`` and ``slurm`` are links to the
folders of a checkout.
"""

import os
import sys

# ``python -m`` and notebooks look in the current folder first, where a numpy.py of the user's would replace
# NumPy. Classes of the user are still found, after all libraries.
if sys.argv[:1] == ["-m"]:
    sys.path.append("" if sys.flags.safe_path else sys.path.pop(0))
    os.environ["PYTHONSAFEPATH"] = "1"  # the same order in the processes that this one starts
elif "" in sys.path:  # in a notebook not always as the first
    sys.path.remove("")
    sys.path.append("")

from archbench.experiments.runtime import imported_sources

imported_sources.begin()
