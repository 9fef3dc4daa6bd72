"""Starts the GPU measurements of gpu_set.py; Ctrl-C leaves no traceback, also while PyTorch loads."""

import os
import signal
import sys


def end(*_: object) -> None:
    """End at once: an exception would be lost in one of PyTorch's imports."""
    os.write(sys.stderr.fileno(), b"gpu.sh: interrupted\n")
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, end)
    from gpu_set import main

    try:
        main()
    except KeyboardInterrupt:
        sys.exit("gpu.sh: interrupted")
