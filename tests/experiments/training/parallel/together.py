"""Several real processes that train runs together, over gloo: started once for many runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from tests import SOURCE
from tests.experiments import commands
from tests.experiments.commands import ROOT

Cases = dict[str, tuple[str, ...]]
STEPS = 20
WORDS = (
    *commands.TINY,
    f"budget.tokens={STEPS * 4 * 32}",
    "budget.batch_size=4",
    "trainer.log_every=1",
    "trainer.checkpoint_every=5",
    "trainer.keep_checkpoints=9",
)
"""Of a run of so many steps."""


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun would say to a process."""
    words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    path = os.pathsep.join(map(str, (SOURCE, ROOT, ROOT / "tests")))
    return {
        **os.environ,
        **{name: str(value) for name, value in words.items()},
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path,
    }


def train_together(size: int, cases: Cases, desk: Path) -> dict[str, Path]:
    """The run folders of the cases, by name, each trained by ``size`` processes. Fails if any fails.

    ``desk`` is where they are told what to do; runs go to folders of it unless the words say where.
    """
    desk.mkdir(parents=True, exist_ok=True)
    (desk / "cases.json").write_text(json.dumps(cases))
    run_together(size, "tests.experiments.training.parallel.together", str(desk))
    return {name: Path(folder) for name, folder in json.loads((desk / "folders.json").read_text()).items()}


def run_together(size: int, module: str, *words: str, seconds: float = 3600) -> list[str]:
    """Return the output of ``python -m module words`` in each of several processes. Fails if any fails."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=environment(rank, size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        for rank in range(size)
    ]
    printed = [process.communicate(timeout=seconds)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n\n".join(printed)
    return printed


def start_together(size: int, *words: str, **more: str) -> list[subprocess.Popen[str]]:
    """``python -m archbench.experiments.train`` in several processes, as ``torchrun`` starts them."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", "archbench.experiments.train", *words],
            env=environment(rank, size, port) | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(size)
    ]


def ended(processes: list[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str, str]]:
    """Exit codes and what was printed. Fails if any process is still there after that long."""
    until = time.monotonic() + seconds
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            for each in processes:
                each.kill()
            raise
        found.append((process.returncode, out, err))
    return found


def work(desk: Path) -> None:
    """What each process does."""
    from archbench.experiments.training.parallel import collectives

    folders = {}
    for number, (name, words) in enumerate(json.loads((desk / "cases.json").read_text()).items()):
        began = time.monotonic()
        try:
            folders[name] = str(commands.train(f"runs={desk / str(number)}", *words))
        except BaseException:
            print(f"case {name}:", flush=True)
            traceback.print_exc()
            os._exit(1)  # the others would wait for this one
        print(f"case {name}: {time.monotonic() - began:.1f} s", flush=True)
    if collectives.is_rank_zero():
        (desk / "folders.json").write_text(json.dumps(folders))
    collectives.stop()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
