"""Does the order of models on small workloads predict their order on a larger text?

    archbench bridge probes=cpu text=bridge
    archbench bridge probes=probes text=runs/bridge/analysis/results.parquet

Compares the models that both sides have in common, by rank correlations over models: each workload of
``probes`` (of a track, under the score that its rules name) with the score of ``text``, and with its slices
of recall. Writes bridge.csv, bridge.md and bridge.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.cli import csv_text, run_command, write
from analysis.figures.bridge import bridge_figure
from analysis.figures.files import figure_bytes
from analysis.load.study import load_study
from analysis.stats.bridge import bridge
from analysis.tables.bridge import bridge_markdown
from analysis.track.frame import track_frame
from analysis.track.results import scored_runs
from analysis.track.rules import read_track, track_names
from experiments.tracking.results_frame import NEEDED, read_results


@dataclass(frozen=True, kw_only=True)
class BridgeConfig:
    """The two frames, and where the results go."""

    probes: str = ""
    """The workloads: a track, a study (a folder inside ``runs``), or a frame of results, a Parquet file."""
    text: str = ""
    """The larger text: a study or a Parquet file, of one task."""
    study: str = ""
    """The study of a Parquet file that holds several; empty for all."""
    runs: str = "runs"
    """The folder of all studies."""
    out: str = "bridge"
    """The folder of the results."""

    def __post_init__(self) -> None:
        if not self.probes or not self.text:
            raise ValueError("name both sides: probes=STUDY_OR_FRAME text=STUDY_OR_FRAME")


def read_side(name: str, config: BridgeConfig) -> pd.DataFrame:
    """Return the runs of a track, of a study or of a frame. Raises ValueError."""
    if name in track_names():
        track = read_track(name)
        return scored_runs(track, track_frame(track, Path(config.runs)))
    if not name.endswith(".parquet"):
        return load_study(Path(config.runs), name)
    frame = read_results(Path(name), {*NEEDED, "study", "task", "backbone", "direction"}).to_pandas()
    if config.study and config.study in set(frame["study"]):
        frame = frame[frame["study"] == config.study]
    # Frames of tracks have neither: they name places of one machine.
    keys = frame["study"] + "/" + frame["cell"] + "-" + frame["digest"] + "/s" + frame["seed"].astype(str)
    return frame.assign(path=keys, arm=frame["backbone"])


def prepare(config: BridgeConfig) -> tuple[BridgeConfig, pd.DataFrame]:
    """Return the config and the correlations. Raises ValueError where no models are in common."""
    table = bridge(read_side(config.probes, config), read_side(config.text, config))
    if table.empty:
        raise ValueError(
            f"probes={config.probes} and text={config.text} have fewer than five models of one likelihood "
            "type in common: train more of them"
        )
    return config, table


def publish(found: tuple[BridgeConfig, pd.DataFrame]) -> None:
    """Write the results, and print the sentences and the table."""
    config, table = found
    text, figure = bridge_markdown(table), bridge_figure(table)
    contents: dict[str, str | bytes] = {"bridge.csv": csv_text(table), "bridge.md": text}
    if figure is not None:
        contents["bridge.svg"] = figure_bytes(figure, "svg")
    print(text)
    for name, content in contents.items():
        print(f"wrote {write(Path(config.out) / name, content)}")


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, 2 where the person asked for something that is not there, 3 for a bad frame."""
    return run_command(__doc__, BridgeConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
