"""``torchrun``, which ends with the exit code of the run.

    archbench train torchrun --nproc-per-node 2 -m archbench.experiments.train backbone=decoder parallel=fsdp

``torchrun`` itself ends with exit code 1 and a traceback, whatever the processes ended with.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run


def main(arguments: Sequence[str]) -> int:
    """Start the processes, and return the exit code of the first that failed; 128 + n after signal n."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the run reports its failure
    try:
        run(parse_args(list(arguments)))
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code >= 0 else 128 - code
    except SignalException as stopped:
        return 128 + stopped.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
