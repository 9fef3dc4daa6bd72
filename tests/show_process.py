"""Prints what a process knows of itself, and ends with the given exit code (tests/test_forked.py)."""

import json
import os
import signal
import sys

if __name__ == "__main__":
    about = {
        "name": __name__,
        "arguments": sys.argv[1:],
        "program": sys.orig_argv[1:],
        "parent": os.getppid(),
        "leads": os.getsid(0) == os.getpid(),
        "folder": os.getcwd(),
        "path": sys.path[:2],
        "variable": os.environ.get("SHOWN"),
        "read": sys.stdin.read(),
        "ignored": signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
        "streams": [each.fileno() for each in (sys.stdin, sys.stdout, sys.stderr)],
        "terminal": sys.stdout.isatty(),
        "umask": os.umask(0),
    }
    print(json.dumps(about))
    print("error", file=sys.stderr)
    if sys.argv[1] == "raise":
        raise ValueError("asked for")
    sys.exit(int(sys.argv[1]))
