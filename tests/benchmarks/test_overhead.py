"""``benchmarks/overhead.py``: what is compared is the same training, and its arithmetic is right."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

SMALL = (
    "scale=nano",
    "scale.axis=non_embedding",
    "scale.targets.non_embedding=20000",
    "task.sequence_length=16",
    "budget.batch_size=2",
)


def test_both_loops_train_the_same_model_in_the_same_way(tmp_path: Path) -> None:
    import overhead

    settings = overhead.compose(*SMALL, f"runs={tmp_path}", "trainer.log_every=2")
    planned = overhead.plan(settings)
    with ExitStack() as held:
        loops = (overhead.Bare(settings, planned), overhead.Harness(settings, planned, held))
        for loop in loops:
            for _ in range(4):
                loop.step()
        bare, trained = loops[0].model, loops[1].trainer.model
        for own, other in zip(bare.parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-5)
    assert len((settings.folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_every_step_is_a_turn_and_the_first_do_not_count() -> None:
    import overhead

    order: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def step(self) -> None:
            order.append(self.name)

    times = overhead.take_turns({name: Named(name) for name in "abc"}, rounds=2, block=2)
    assert "".join(order) == "abcbca" + "bcacab" + "cababc"
    assert {name: found.shape for name, found in times.items()} == dict.fromkeys("abc", (2, 2, 2))


def test_shares_are_of_a_step_and_of_the_time_between_two_checkpoints() -> None:
    import overhead

    def loop(clock: list[float], processor: list[float]) -> overhead.Times:
        """Two rounds of two steps."""
        return np.stack([np.array(clock), np.array(processor)], axis=-1).reshape(2, 2, 2)

    bare = loop([0.1, 0.1, 0.2, 0.2], [0.09, 0.08, 0.08, 0.09])
    times = {
        "bare": bare,
        "again": bare,
        "silent": loop([0.1, 0.12, 0.3, 0.2], [0.1, 0.1, 0.1, 0.1]),
        "logged": loop([0.1, 0.12, 0.3, 0.2], [0.1, 0.15, 0.2, 0.12]),
    }
    stalls = np.array([[0.4, 0.1], [0.2, 0.1]])
    same, harness, records, checkpoint = overhead.rows(times, stalls, 200)
    assert same[1:] == ["80.00", "80.00", "0.00%", "0.00% (0.00% to 0.00%)"]
    assert harness[1:] == ["100.00", "80.00", "25.00%", "17.50% (13.75% to 21.25%)"]
    assert records[1:4] == ["110.00", "100.00", "10.00%"], (
        "the least step that logs takes 20 ms more, every other"
    )
    assert checkpoint[:4] == ["checkpoint : 200 steps", "200.00", "20000.00", "1.00%"]


@pytest.mark.full
def test_the_page_has_a_line_for_each_goal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import overhead

    page = tmp_path / "overhead.md"
    words = ("--scales", "nano", "--length", "16", "--batch", "2", "--threads", "1", "--rounds", "2")
    monkeypatch.setattr(sys, "argv", ["overhead.py", *words, "--output", str(page)])
    overhead.main()
    lines = re.findall(r"^\| .*%.*$", page.read_text(), re.MULTILINE)
    assert [line.split("|")[1].strip().partition(" :")[0] for line in lines] == [
        "bare loop",
        "harness",
        "with records",
        "checkpoint",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--scales", "nanno"),
            "--scales nanno: options: 125m, 1_3b, 350m, 760m, 7b, given, micro, nano, small",
        ),
        (("--rounds", "1"), "at least 2"),
        (("--output", "/nowhere/at/all.md"), "there is no folder /nowhere/at"),
    ],
)
def test_wrong_words_end_before_anything_is_timed(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import overhead

    monkeypatch.setattr(sys, "argv", ["overhead.py", *words])
    with pytest.raises(SystemExit) as ended:
        overhead.parse()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
