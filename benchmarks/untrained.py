"""Published values that need no training of networks: a refit, shallow baselines, support vectors.

    PYTHONPATH=. python benchmarks/untrained.py points=FILE.csv [out=docs/results/untrained.parquet]

``points`` is Epoch's reconstruction of the Chinchilla runs (github.com/epoch-research/analyzing-chinchilla,
data/svg_extracted_data.csv); without it the refit is left out. It needs about a minute.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.svm import SVC

from archbench.analysis.scaling.__main__ import read_points
from archbench.analysis.scaling.laws import drop_highest, fit_law
from archbench.experiments.config.options import run_command
from archbench.experiments.tasks.long_range import listops
from archbench.experiments.tasks.long_range.images import Images, ImagesConfig
from archbench.experiments.tasks.long_range.listops import ListOps, ListOpsConfig
from archbench.experiments.tracking.provenance import provenance

OUTLIERS = 5
"""Points of the highest losses that the published refit leaves out."""


@dataclass(frozen=True, kw_only=True)
class UntrainedConfig:
    """Input and output files."""

    points: str = ""
    """CSV file of the Chinchilla runs; empty leaves their refit out."""
    out: str = "docs/results/untrained.parquet"
    """The file of the rows."""


def refit(points: Path) -> Iterator[tuple[str, float]]:
    """The constants of the law, from all but the outliers."""
    law = fit_law(drop_highest(read_points(points), OUTLIERS))
    for name in ("E", "A", "B", "alpha", "beta"):
        yield name, getattr(law, name)


def shallow_listops() -> Iterator[tuple[str, float]]:
    """The solvers of ListOps, fitted and scored on more examples than in the reference lines of a run."""
    listops._FIT, listops._SCORED = 4000, 2000
    for reference in ListOps(ListOpsConfig()).guesses():
        yield reference.name, reference.value


def support_vectors() -> Iterator[tuple[str, float]]:
    """scikit-learn's classifier with the settings of its example, on the splits of ``task=images``."""
    task = Images(ImagesConfig())
    pixels, labels = {}, {}
    for split in ("train", "test"):
        batch = task.batch(split, 0, 0, task.num_examples(split))
        tokens_BT = np.asarray(batch.tokens_BT)
        pixels[split], labels[split] = tokens_BT[:, :-1], tokens_BT[:, -1]
    machine = SVC(gamma=0.001).fit(pixels["train"], labels["train"])
    yield "support vector machine", float(machine.score(pixels["test"], labels["test"]))


def measure(config: UntrainedConfig) -> tuple[UntrainedConfig, list[tuple[str, str, float]]]:
    """Return the task, arm and score of each value."""
    rows = [("listops", *pair) for pair in shallow_listops()]
    rows += [("images", *pair) for pair in support_vectors()]
    if config.points:
        rows += [("chinchilla", *pair) for pair in refit(Path(config.points))]
    return config, rows


def publish(config: UntrainedConfig, rows: list[tuple[str, str, float]]) -> None:
    """Write the frame, and print it."""
    record = provenance(torch.device("cpu"), "fp32", {}, {})
    frame = pd.DataFrame(rows, columns=["task", "arm", "score"]).assign(
        seed=0, status="complete",
        git_commit=record["git"]["commit"], git_dirty=record["git"]["dirty"],
        device_processor=record["device"]["processor"], device_threads=str(record["device"]["threads"]),
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    frame.to_parquet(config.out, index=False)
    print(frame[["task", "arm", "score"]].to_string(index=False))


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    return run_command(__doc__, UntrainedConfig, arguments, measure, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
