"""Runs a program that is given as text: ``python -m tests.run_code TEXT ARGUMENT...``, as ``python -c``.

It can be forked from a process that has imported PyTorch (``tests.forked``).
"""

import sys

if __name__ == "__main__":
    text = sys.argv.pop(1)
    exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})
