"""Describe what the experts of a run do: load and routing over training, coactivation, specialization.

    archbench evaluate experts run=runs/single/moe-text-nano-1a2b3c4d/s0 [out=FOLDER] [examples=256]

Writes experts.md and, as CSV and Parquet, experts_training (load, entropy, violations, saturation at each
evaluation), experts_load, experts_coactivation, experts_vocabulary and, for text, experts_domains and
experts_kinds; figures as experts_*.svg. Definitions: docs/models/experts.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.experts.figures import coactivation_figure, share_figure, training_figure
from archbench.analysis.experts.recordings import DOMAINS, domain_tasks, follow, load_recordings, open_run
from archbench.analysis.experts.tables import (
    Grid,
    coactivation_frame,
    coactivation_grid,
    domains_frame,
    kinds_frame,
    share_grids,
    training_grid,
    vocabulary_frame,
    vocabulary_grid,
)
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.files import csv_text, parquet, write
from archbench.analysis.tables.markdown import escaped
from archbench.experiments.config.options import run_command
from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.run.model_files import model_folder
from archbench.experiments.runtime.console import WIDTH
from archbench.experiments.runtime.device import torch_device

SPLIT = "validation"


@dataclass(frozen=True, kw_only=True)
class ExpertsAnalysisConfig:
    """The run to describe, and where the results go."""

    run: str
    """Folder of a run whose model has experts."""
    out: str = ""
    """Where the results go; empty for ``RUN/analysis``."""
    examples: int = 256
    """Examples of the validation split, and of each domain's; all, where there are fewer."""
    device: str = "auto"
    """Where to compute: ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` ..."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"examples={self.examples} must be at least 1")
        DeviceConfig(name=self.device)

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else model_folder(Path(self.run)) / "analysis"


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The results about a run."""

    description: str
    frames: dict[str, pd.DataFrame]
    """By the name of the file, without ``experts_``; a frame that has nothing to say is left out."""
    notes: list[str]
    """Results that are missing, and why."""

    def grids(self) -> list[Grid]:
        """The tables that are printed."""
        f, grids = self.frames, []
        if "training" in f:
            grids.append(training_grid(f["training"]))
        grids.append(coactivation_grid(f["coactivation"]))
        if "domains" in f:
            grids += share_grids(f["domains"], "domain", "Share of a domain's tokens")
        grids.append(vocabulary_grid(f["vocabulary"]))
        if "kinds" in f:
            grids += share_grids(f["kinds"], "kind", "Share of a kind's tokens")
        return grids

    def figures(self) -> dict[str, go.Figure]:
        f = self.frames
        drawn = {"coactivation": coactivation_figure(f["coactivation"])}
        if "training" in f:
            drawn["training"] = training_figure(f["training"], f["load"])
        for name, group in (("domains", "domain"), ("kinds", "kind")):
            if name in f:
                drawn[name] = share_figure(f[name], group)
        return drawn

    def markdown(self) -> str:
        notes = (f"- {escaped(note)}" for note in self.notes)
        lines = [f"# Experts of {escaped(self.description)}", "", *notes, ""]
        return "\n".join(lines) + "\n".join(grid.markdown() for grid in self.grids())

    def text(self) -> str:
        lines = [f"Experts of {self.description}", *(f"Note: {note}" for note in self.notes)]
        return "\n".join(lines) + "\n" + "".join(f"\n{grid.text(WIDTH)}" for grid in self.grids())


def find_out(config: ExpertsAnalysisConfig) -> Findings:
    """Reads the recordings and follows the last checkpoint on text. Raises RunError."""
    saved = open_run(Path(config.run), torch_device(config.device))
    history, load = load_recordings(saved.folder)
    layers = follow(saved, saved.task, SPLIT, config.examples)
    domains = {
        name: follow(saved, task, SPLIT, config.examples) for name, task in domain_tasks(saved).items()
    }
    tokenizer = saved.task.tokenizer
    texts = [str(token) for token in range(saved.task.vocabulary.size)]
    if tokenizer is not None:
        texts = [_written(token, piece) for token, piece in enumerate(tokenizer.token_bytes)]
    frames = {
        "training": history,
        "load": load,
        "coactivation": coactivation_frame(layers),
        "domains": domains_frame(domains),
        "vocabulary": vocabulary_frame(layers, texts),
        "kinds": kinds_frame(layers),
    }
    notes = []
    if history.empty:
        notes.append(
            f"no recordings in {saved.folder}/routing: load and saturation over training are left out"
        )
    if not domains:
        notes.append(f"the task is no corpus of text: domains ({', '.join(DOMAINS)}) are left out")
    if tokenizer is None:
        notes.append("the task has no text: kinds of words are left out")
    frames = {name: frame for name, frame in frames.items() if not frame.empty or name in ALWAYS}
    return Findings(description=saved.description, frames=frames, notes=notes)


def _written(token: int, piece: bytes) -> str:
    """A token as tables show it; those that are no text by themselves by their bytes or number."""
    try:
        return repr(piece.decode()) if piece else f"<{token}>"
    except UnicodeDecodeError:
        return "0x" + piece.hex()


ALWAYS = ("coactivation", "vocabulary")
"""Frames that are written even where they have no rows."""


def prepare(config: ExpertsAnalysisConfig) -> tuple[Findings, Path]:
    """Return the results, and where they go. Raises ValueError or RunError."""
    return find_out(config), config.folder


def publish(findings: Findings, folder: Path) -> None:
    """Prints the findings and writes every file of them."""
    print(findings.text())
    contents: dict[str, str | bytes] = {"experts.md": findings.markdown()}
    for name, frame in findings.frames.items():
        contents[f"experts_{name}.csv"] = csv_text(frame)
        contents[f"experts_{name}.parquet"] = parquet(frame)
    contents |= {f"experts_{name}.svg": printed(figure, "svg") for name, figure in findings.figures().items()}
    for name, content in contents.items():
        print(f"wrote {write(folder / name, content)}")


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, 2 for a mistake in the arguments, or that of the error."""
    return run_command(__doc__, ExpertsAnalysisConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
