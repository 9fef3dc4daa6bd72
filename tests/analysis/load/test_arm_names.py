"""Names of arms of frames without run folders."""

from __future__ import annotations

import pandas as pd

from archbench.analysis.load.arm_names import arm_names_without_folders


def names(*rows: tuple[str, float, str]) -> list[str]:
    """Return the names of runs with a backbone, a learning rate and a digest."""
    frame = pd.DataFrame(rows, columns=["backbone", "learning_rate", "digest"])
    frame = frame.assign(cell=frame["backbone"] + "-parity", task="parity", scale="nano")
    return arm_names_without_folders(frame).tolist()


def test_a_backbone_with_one_setting_is_named_by_it() -> None:
    assert names(("mamba", 0.01, "a"), ("mamba", 0.01, "a"), ("s4", 0.01, "b")) == ["mamba", "mamba", "s4"]


def test_settings_of_a_backbone_are_told_apart() -> None:
    found = names(("mamba", 0.01, "a"), ("mamba", 0.003, "b"), ("s4", 0.01, "c"))
    assert found == ["mamba learning_rate=0.01", "mamba learning_rate=0.003", "s4"]
    same_rate = names(("mamba", 0.01, "a"), ("mamba", 0.01, "b"))
    assert same_rate == ["mamba-parity-a", "mamba-parity-b"]
