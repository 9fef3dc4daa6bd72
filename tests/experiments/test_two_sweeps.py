"""Two sweeps of a study at the same time share its runs, and both end well."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from archbench.experiments.runtime.run_lock import RunLock
from tests.experiments import commands

WORDS = (*commands.TINY, *commands.RECALL, "backbone=decoder", "budget.tokens=256", "budget.batch_size=4")


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["basic", "parallel"])
def test_a_run_that_another_process_holds_is_waited_for(tmp_path: Path, launcher: str) -> None:
    words = (*WORDS, f"runs={tmp_path}")
    with RunLock(commands.settings(*words, "seed=0").folder):
        process = commands.start("train", "-m", *words, "seed=0,1", f"hydra/launcher={launcher}")
        waits = threading.Event()
        printed: list[str] = []

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line)
                if "waited for at the end" in line:
                    waits.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert waits.wait(200), printed
        assert process.poll() is None
    reader.join(200)
    assert process.wait(200) == 0, printed
    found = {
        path.parent.name: json.loads(path.read_text())["status"] for path in tmp_path.rglob("result.json")
    }
    assert found == {"s0": "complete", "s1": "complete"}
