"""The ``analysis`` run of a study in W&B: its tables and figures, one run for each study."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.files import csv_text, parquet
from archbench.analysis.report.page import Figures
from archbench.experiments.config.schema import TrackingConfig
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.json_state import read_mark
from archbench.experiments.tracking.tracker import SPEC, RunIdentity
from archbench.experiments.tracking.wandb import start

MARK = "wandb-analysis.json"


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Tables, figures and files of a study that are uploaded."""

    study: str
    tables: Mapping[str, pd.DataFrame]
    """``verdict`` (an arm each, with rank, difference, p and verdict), ``comparisons`` (a pair of arms each)
    and ``results`` (a run each)."""
    figures: Mapping[str, bytes]
    """PNGs by name."""
    files: Mapping[str, bytes]
    """The tables as Parquet and CSV: an artifact."""
    warnings: list[str]

    @property
    def run_id(self) -> str:
        """The same in every call for a study."""
        name = f"analysis-{self.study}"
        return name if len(name) <= 64 else f"analysis-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    @property
    def digest(self) -> str:
        """Changes with the tables and figures."""
        parts = [rows(table) for table in self.tables.values()]
        text = json.dumps([SPEC, self.warnings, *parts], default=str)
        return hashlib.sha256(text.encode() + b"".join(self.figures.values())).hexdigest()


def contents(comparison: Comparison, figures: Figures) -> Contents:
    """Return the uploads of a study, without paths of this machine and without command lines."""
    frame = comparison.frame.drop(columns=["path", "command"])
    tables = {"verdict": comparison.arms, "comparisons": comparison.pairs, "results": frame}
    return Contents(
        study=str(frame["study"].iloc[0]),
        tables=tables,
        figures={name: printed(figure, "png") for name, figure in figures.drawn.items()},
        files={f"{name}.parquet": parquet(table) for name, table in tables.items()}
        | {f"{name}.csv": csv_text(table).encode() for name, table in tables.items()},
        warnings=comparison.warnings,
    )


def rows(table: pd.DataFrame) -> list[list[Any]]:
    """Return the cells of a table; None for missing ones."""

    def cell(value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        return None if value is None or (isinstance(value, float) and math.isnan(value)) else value

    return [[cell(value) for value in row] for row in table.itertuples(index=False)]


def upload_analysis(folder: Path, contents: Contents, *, mode: str, project: str, entity: str | None) -> str:
    """``uploaded``, or ``already there`` where the study has nothing new. Raises what W&B does.

    Args:
        folder: of the study; a mark in it records what was uploaded where.
        mode: ``online``, or ``offline`` to write W&B's files into ``folder/wandb``.
    """
    mark = folder / MARK
    state = {"mode": mode, "project": project, "entity": entity, "content": contents.digest}
    if read_mark(mark) == state:
        return "already there"
    identity = RunIdentity(
        key=contents.run_id,
        study=contents.study,
        group="analysis",
        tags={"stage": "analysis"},
        job_type="analysis",
    )
    config = TrackingConfig(mode=mode, project=project, entity=entity)
    metadata = {
        "study": contents.study,
        "spec": SPEC,
        "content": contents.digest,
        "warnings": contents.warnings,
    }
    run = start(config, identity, folder, metadata)
    import wandb

    with tempfile.TemporaryDirectory() as temporary:
        media: dict[str, object] = {}
        for name, table in contents.tables.items():
            columns: list[str | int] = [str(column) for column in table.columns]
            media[f"tables/{name}"] = wandb.Table(columns=columns, data=rows(table), allow_mixed_types=True)
        for name, figure in contents.figures.items():
            path = Path(temporary) / f"{name}.png"
            path.write_bytes(figure)
            media[f"figures/{name}"] = wandb.Image(str(path))
        run.log(media)
        frames = wandb.Artifact(f"{contents.run_id}-frames", type="frames", metadata=metadata)
        for name, content in contents.files.items():
            with frames.new_file(name, mode="wb") as file:
                file.write(content)
        run.log_artifact(frames)
        run.tags = ["stage:analysis", "status:complete"]
        run.finish(exit_code=0)
    write_json(mark, state)
    return "uploaded"
