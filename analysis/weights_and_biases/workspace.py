"""The W&B Workspace and Report of a study, built from its frame. Nothing here uses a network.

Lines are grouped and drawn as the mean with the range from lowest to highest, as W&B knows no t-interval;
the statistics are in the report's verdicts, which are those of ``analysis.compare``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.scale_order import TASK_SCALE
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables
from archbench.experiments.config.study import study_command

CURVE_AXES = {
    "progress/tokens": "training tokens",
    "progress/flops": "training FLOPs",
    "progress/seconds": "seconds of training",
}
COSTS = {
    "result/training/device_seconds": "seconds of training, all devices together",
    "result/training/flops": "training FLOPs",
    "result/training/tokens_per_second": "tokens per second",
    "result/training/peak_memory_bytes": "peak memory, bytes",
}
STABILITY = {
    "train/grad_norm": "gradient norm before clipping",
    "train/loss": "training loss",
    "train/learning_rate": "learning rate",
    "train/data_share": "share of time spent waiting for data",
}
TROUBLE = {
    "result/training/loss_spikes": "jumps of the training loss",
    "result/training/skipped_steps": "steps left out",
}
ONLY_TRAINING = "JobType = 'train'"
ONLY_ANALYSIS = "JobType = 'analysis'"


def workspace(frame: pd.DataFrame, project: str, entity: str) -> Any:
    """The Workspace: learning curves on each axis, cost, stability; seeds of an arm as one line with a band.

    Args:
        frame: from ``analysis.load.study.load_study``.
        project: W&B project.
        entity: W&B user or team; empty where nothing is saved.
    """
    by = grouping(frame)
    curves = [_line(metric, axis, by) for metric in _metrics(frame) for axis in CURVE_AXES]
    cost = [_bar(name, title, by) for name, title in COSTS.items()]
    cost += [_against_flops(metric) for metric in _metrics(frame)]
    cost.append(_curve("train/tokens_per_second", "progress/seconds", "tokens per second", by))
    stability = [_curve(name, "progress/tokens", title, by) for name, title in STABILITY.items()]
    stability += [_bar(name, title, by) for name, title in TROUBLE.items()]
    view = ws.Workspace(
        name=f"archbench: {_study(frame)}",
        project=project,
        entity=entity,
        auto_generate_panels=False,
        sections=[
            ws.Section(name="Learning curves", panels=curves, is_open=True, pinned=True),
            ws.Section(name="Cost", panels=cost, is_open=True),
            ws.Section(name="Stability", panels=stability, is_open=True),
        ],
        settings=ws.WorkspaceSettings(x_axis="progress/tokens", max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=ONLY_TRAINING,
            groupby=[expr.Metric("Group") if by == "Group" else expr.Config(by)],
            order=[expr.Ordering(expr.Metric("Name"), ascending=True)],
            pinned_columns=["run:displayName", "run:state", *(f"summary:{name}" for name in COSTS)],
        ),
    )
    view._internal_runset_id = _short(f"runs of {_study(frame)}")
    return view


def report(
    comparison: Comparison, figures: Sequence[str], links: dict[str, str], project: str, entity: str
) -> Any:
    """The Report: verdicts and warnings, curves, the figures of the study's ``analysis`` run, links.

    Args:
        comparison: of the study.
        figures: names of the figures in the ``analysis`` run, ``figures/NAME``.
        links: addresses by what they lead to.
        project: W&B project.
        entity: W&B user or team; where it is empty the run sets name no project, as W&B would look it up.
    """
    frame = comparison.frame
    by, study = grouping(frame), _study(frame)
    folder = Path(frame["path"].iloc[0]).parents[1]
    here = project if entity else ""
    runs = _settled(wr.Runset(entity=entity, project=here, name="runs", filters=ONLY_TRAINING))
    analysis = _settled(wr.Runset(entity=entity, project=here, name="analysis", filters=ONLY_ANALYSIS))
    shown = [_media(name) for name in figures]
    tables = [
        _settled(wr.WeavePanelSummaryTable(table_name=name, layout=wr.Layout(w=24, h=10)), name)
        for name in ("tables/verdict", "tables/comparisons", "tables/results")
    ]
    blocks: list[Any] = [
        wr.MarkdownBlock(
            f"Written by `{study_command('wandb dashboard', folder)}`. The record is on disk; all of it "
            f"is in the page that `{study_command('compare', folder)}` writes."
        ),
        wr.TableOfContents(),
        wr.H2("Verdict and warnings"),
        wr.MarkdownBlock(render_markdown(study_tables(comparison))),
        wr.H2("Learning curves"),
        wr.PanelGrid(
            runsets=[runs], panels=[_line(m, axis, by) for m in _metrics(frame) for axis in CURVE_AXES]
        ),
        wr.H2("Figures"),
        wr.PanelGrid(runsets=[analysis], panels=shown) if shown else wr.P("The study has no figures yet."),
        wr.H2("Tables"),
        wr.PanelGrid(runsets=[analysis], panels=tables),
        wr.H2("Links"),
        wr.MarkdownBlock("".join(f"- [{what}]({where})\n" for what, where in links.items())),
    ]  # fmt: skip
    return wr.Report(
        project=project,
        entity=entity,
        title=f"archbench: {study}",
        description="Which architecture scores best at equal budget, and how sure is that?",
        blocks=blocks,
        width="fluid",
    )


def spec(view: Any) -> dict[str, Any]:
    """Return a Workspace or a Report as plain JSON values, the same in each call for a study."""
    return view._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)


def grouping(frame: pd.DataFrame) -> str:
    """The backbone's key where backbones tell the arms apart; else ``Group``, the cell with its digest."""
    arms = frame[[*TASK_SCALE, "backbone", "cell", "digest"]].drop_duplicates()
    alone = len(arms[TASK_SCALE].drop_duplicates()) == 1 and arms["backbone"].is_unique
    return "derived.backbone" if alone else "Group"


def _line(metric: str, axis: str, by: str) -> Any:
    title = f"{_words(metric)} on validation against {CURVE_AXES[axis]}"
    return _curve(f"validation/{metric}", axis, title, by, log_x=True)


def _curve(name: str, axis: str, title: str, by: str, log_x: bool = False) -> Any:
    return _settled(
        wr.LinePlot(
            title=title, x=axis, y=[name], title_x=CURVE_AXES[axis], log_x=log_x, max_runs_to_show=100,
            groupby=_key(by), groupby_aggfunc="mean", groupby_rangefunc="minmax",
        )
    )  # fmt: skip


def _bar(name: str, title: str, by: str) -> Any:
    return _settled(
        wr.BarPlot(
            title=title, metrics=[wr.SummaryMetric(name)], groupby=_key(by), groupby_aggfunc="mean",
            groupby_rangefunc="minmax", max_runs_to_show=100, max_bars_to_show=100,
        )
    )  # fmt: skip


def _against_flops(metric: str) -> Any:
    title = f"{_words(metric)} on test against FLOPs"
    x, y = wr.SummaryMetric("result/training/flops"), wr.SummaryMetric(f"result/metrics/test/{metric}")
    return _settled(wr.ScatterPlot(title=title, x=x, y=y, log_x=True))


def _media(name: str) -> Any:
    panel = wr.MediaBrowser(title=_words(name.split("/")[-1]), media_keys=[name], num_columns=1)
    panel.layout = wr.Layout(w=24, h=12)
    return _settled(panel)


def _key(by: str) -> Any:
    return wr.Metric(by) if by == "Group" else wr.Config(by)


def _settled(part: Any, title: str | None = None) -> Any:
    """With an id that follows from its title: the library draws one by chance."""
    part._id = _short(title or getattr(part, "title", None) or part.name)
    return part


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _metrics(frame: pd.DataFrame) -> list[str]:
    return sorted(frame["metric"].dropna().unique())


def _words(name: str) -> str:
    return name.replace("_", " ")


def _study(frame: pd.DataFrame) -> str:
    return str(frame["study"].iloc[0])
