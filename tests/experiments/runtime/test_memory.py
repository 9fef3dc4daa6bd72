"""The memory a process keeps for its next tensors, and gives back between runs."""

import platform
import subprocess
import sys

import pytest

from archbench.experiments.runtime import memory

PROGRAM = """
import torch
from archbench.experiments.runtime.memory import keep_freed_memory, reset_peak_memory

def resident():
    return 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))

keep_freed_memory()
torch.ones(2**14)
before = resident()
blocks = [torch.ones(2**14) for _ in range(4000)]  # 64 kB each: small enough for the heap
del blocks
print(resident() - before)
reset_peak_memory()
print(resident() - before)
"""
MOST = 4000 * 2**16 * 3 // 4


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_the_heap_is_kept_and_given_back_between_runs() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, after = (int(line) for line in done.stdout.split())
    assert kept > MOST
    assert after < MOST / 3


def test_the_heap_is_kept_by_settings_and_large_blocks_by_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How much a process keeps without them depends on what happens to stand at the end of its heap."""
    asked: dict[object, int] = {}

    class Library:
        def mallopt(self, name: int, value: int) -> int:
            asked[name] = value
            return 1

    monkeypatch.setattr(memory, "_libc", Library)
    monkeypatch.setattr(memory, "install_caching_allocator", lambda large: asked.update({"kept": large}))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    memory.keep_freed_memory()
    assert asked == {memory.MMAP_THRESHOLD: 2**25, memory.TRIM_THRESHOLD: 2**31 - 1, "kept": 2**25}
    asked.clear()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    memory.keep_freed_memory()
    assert not asked
