"""Speeds of runs that other work disturbed are not printed."""

from __future__ import annotations

import pandas as pd

from archbench.analysis.stats.trusted_speeds import speed_warnings, with_trusted_speeds


def runs(*speeds: float, processors: tuple[str, ...] = ("A",)) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "study": "s", "task": "recall", "scale": "nano", "cell": "a", "digest": "d",
                "device_processor": processors[index % len(processors)], "training_seconds": 1000 / speed,
                "training_tokens_per_second": speed,
            }
            for index, speed in enumerate(speeds)
        ]
    )  # fmt: skip


def test_seeds_of_one_speed_keep_it() -> None:
    frame = runs(100, 104, 110)
    assert with_trusted_speeds(frame).equals(frame)
    assert speed_warnings(frame) == []


def test_seeds_that_differ_lose_their_speeds() -> None:
    found = with_trusted_speeds(runs(100, 104, 150))
    assert found[["training_seconds", "training_tokens_per_second"]].isna().all(axis=None)
    assert speed_warnings(runs(100, 104, 150)) == [
        "s: speeds are not shown, as seeds of one model differ by a factor of up to 1.5 "
        "(other work on the machine)"
    ]


def test_processors_of_two_kinds_are_not_compared() -> None:
    assert with_trusted_speeds(runs(100, 104, processors=("A", "B")))["training_seconds"].isna().all()


def test_another_study_keeps_its_speeds() -> None:
    frame = pd.concat([runs(100, 150), runs(100, 101).assign(study="idle")], ignore_index=True)
    assert with_trusted_speeds(frame)["training_seconds"].notna().tolist() == [False, False, True, True]
