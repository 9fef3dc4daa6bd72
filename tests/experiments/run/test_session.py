"""The threads of a run: the same again when it is resumed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.experiments import commands

WORDS = (
    *commands.TINY, *commands.SHORT_TEXT, "backbone=decoder", "budget.batch_size=16", "budget.tokens=4096",
    "trainer.checkpoint_every=2", "device.threads=null",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def provenance(folder: Path) -> dict:
    return json.loads((folder / "provenance.json").read_text())


def test_a_resumed_run_keeps_the_threads_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    folder = commands.train(*WORDS, f"runs={tmp_path}")
    assert provenance(folder)["device"]["threads"] == 2
    for threads, exact in (("8", True), ("1", False)):  # more may be had, and fewer
        (folder / "result.json").unlink()
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        commands.train(*WORDS, f"runs={tmp_path}")
        assert provenance(folder)["device"]["threads"] == min(2, int(threads))
        assert commands.result(folder)["resume"]["exact"] is exact
