"""The memory a process keeps for its next tensors, and gives back between runs."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from experiments.memory import keep_heap, reset_peak_memory

def resident():
    return 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))

def step():  # ever larger blocks, up to 24 MB, all freed at the end
    return len([torch.ones(n * 2**18) for n in range(8, 25)])

if sys.argv[1] == "kept":
    keep_heap()
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
held = resident()
reset_peak_memory()
print(held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_the_heap_is_used_again_and_given_back_between_runs():
    def run(word: str) -> list[int]:
        words = [sys.executable, "-c", PROGRAM, word]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    pages_standard, _ = run("standard")
    pages_kept, given_back = run("kept")
    assert pages_kept < 500
    assert pages_standard > 5_000
    assert given_back > 2**27
