"""Show a study in Weights & Biases: its runs, its tables and figures, a Workspace and a Report.

    archbench wandb dashboard study=compare [runs=runs] [project=NAME] [entity=NAME] [--dry-run]

Uploads the runs that are not there yet, then the tables and figures of the study as one run of the job type
``analysis``, then a Workspace and a Report. The same command again sends only what is new.

Exit codes: 0; 1 W&B or the network failed, try again; 2 a mistake in the arguments, no such study, or
no API key.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.page import draw
from archbench.analysis.stats.targets.steps_to_loss import with_steps
from archbench.analysis.weights_and_biases import analysis_run
from archbench.analysis.weights_and_biases.analysis_run import Contents, contents, upload_analysis
from archbench.analysis.weights_and_biases.options import WandbConfig, require_key, wandb_failures
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.json_state import mismatch, read_mark
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.tracker import SPEC
from archbench.experiments.tracking.upload import study_folders, upload

MARK = "wandb-dashboard.json"


@dataclass(frozen=True, kw_only=True)
class DashboardConfig(WandbConfig):
    """The study to show, and where."""

    dry_run: bool = False
    """Write what would be sent as JSON, and send nothing: needs neither network nor key."""
    output: str = ""
    """Where a dry run writes; empty for ``RUNS/STUDY/dashboard``."""

    def __post_init__(self) -> None:
        if "," in self.study:
            raise ValueError(f"study={self.study}: a dashboard shows one study; send one at a time")
        if self.output and not self.dry_run:
            raise ValueError("output= is for a dry run: add --dry-run")

    @property
    def folder(self) -> Path:
        return Path(self.runs) / self.study

    @property
    def sent_to(self) -> str:
        return self.project or self.study


def specs(comparison: Comparison, sent: Contents, config: DashboardConfig) -> dict[str, Any]:
    """Return what a dry run writes, by file name."""
    from archbench.analysis.weights_and_biases import workspace as wandb_views  # takes most of a second

    figures = [f"figures/{name}" for name in sent.figures]
    study = {"spec": SPEC, "study": config.study, "project": config.sent_to, "entity": config.entity}
    tables = {
        name: {"columns": [*map(str, table)], "rows": analysis_run.rows(table)}
        for name, table in sent.tables.items()
    }
    analysis = {"id": sent.run_id, "job_type": "analysis", "content": sent.digest, "figures": figures}
    links = _links(config.sent_to, config.entity or "ENTITY")
    return {
        "workspace.json": {
            **study,
            "view": wandb_views.spec(wandb_views.workspace(comparison.frame, config.sent_to, config.entity)),
        },
        "report.json": {
            **study,
            "view": wandb_views.spec(wandb_views.report(comparison, figures, links, config.sent_to, "")),
        },
        "analysis.json": {**study, **analysis, "warnings": sent.warnings, "tables": tables},
    }


def send(comparison: Comparison, sent: Contents, config: DashboardConfig) -> int:
    """Upload and save everything; return the number of runs that failed. Raises whatever W&B raises."""
    import wandb

    from archbench.analysis.weights_and_biases import workspace as wandb_views

    project, entity = config.sent_to, config.entity or str(wandb.Api().default_entity)
    failed = 0
    for path in study_folders(Path(config.runs), config.study):
        outcome = upload(RunFolder(path), project=project, entity=entity)
        failed += outcome == "failed"
        print(f"{path}: {outcome}", flush=True)
    outcome = upload_analysis(config.folder, sent, mode="online", project=project, entity=entity)
    print(f"{sent.run_id}: {outcome}")
    figures = [f"figures/{name}" for name in sent.figures]
    workspace = wandb_views.workspace(comparison.frame, project, entity)
    report = wandb_views.report(comparison, figures, _links(project, entity), project, entity)
    print(save_views(config.folder / MARK, workspace, report, f"{entity}/{project}"))
    return failed


class Saved(TypedDict):
    """Ids under which a workspace and a report were saved."""

    place: str
    workspace: list[str]
    report: str


def save_views(mark: Path, workspace: Any, report: Any, place: str) -> str:
    """Save both under the ids that the mark remembers, so that they are replaced and not doubled."""
    saved = read_mark(mark) or {}
    if saved.get("place") == place and mismatch(saved, Saved) is None:
        workspace._internal_name, workspace._internal_id = saved["workspace"]
        report.id = saved["report"]
    workspace.save()
    report.save()
    ids = [workspace._internal_name, workspace._internal_id]
    write_json(mark, {"place": place, "workspace": ids, "report": report.id})
    return f"workspace {workspace.url}\nreport {report.url}"


def _links(project: str, entity: str) -> dict[str, str]:
    root = f"https://wandb.ai/{entity}/{project}"
    return {"the runs": f"{root}/table", "the workspaces": f"{root}/workspace"}


def prepare(config: DashboardConfig) -> tuple[DashboardConfig, Comparison, Contents]:
    """Return the comparison of a study, and what is sent of them. Raises ValueError."""
    if not config.dry_run:
        require_key("; or add --dry-run, which needs none")
    frame = load_study(Path(config.runs), config.study)
    history = load_history(Path(config.runs), config.study)
    frame = with_steps(frame, history)
    frame = frame.assign(message=[redact(text) for text in frame["message"]])
    comparison = Comparison(frame, history)
    return config, comparison, contents(comparison, draw(comparison))


def publish(config: DashboardConfig, comparison: Comparison, sent: Contents) -> int:
    """Send a study, or write what would be sent; return 1 if a run failed."""
    if not config.dry_run:
        with wandb_failures():
            return int(send(comparison, sent, config) > 0)
    folder = Path(config.output) if config.output else config.folder / "dashboard"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, tree in specs(comparison, sent, config).items():
            write_json(folder / name, tree)
            print(f"wrote {folder / name}")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}/: {error}; set output= to another") from error
    return 0


def main(arguments: Sequence[str]) -> int:
    """Return the exit code; ``--help`` lists them."""
    return run_command(__doc__, DashboardConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
