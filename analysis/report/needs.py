"""State what a part of the report needs: which items, how many there are, and what to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.contexts import EVALUATED
from archbench.analysis.figures.tradeoffs import measured_costs, with_costs
from archbench.analysis.load.scale_order import TASK_SCALE
from archbench.analysis.scaling.points import study_points
from archbench.analysis.scaling.tables import FITTED
from archbench.analysis.stats.arms import finished, ranked
from archbench.analysis.stats.learning_rates.sensitivity import FEW, rate_runs
from archbench.analysis.stats.targets.performance_profile import MIN_TASKS, whole_tasks
from archbench.analysis.stats.text_slices import run_slices
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.analysis.tables.headings import study_name, untested
from archbench.experiments.config.study import study_command, train_command, train_words, typed_command
from archbench.experiments.runtime.console import plural

TYPE = [*TASK_SCALE, "likelihood"]
LONGER = 'trainer.extra_evaluations=["sequence_length=256"]'
DEPTHS = 'trainer.extra_evaluations=["sequence_length=256 depth=0","sequence_length=256 depth=1"]'


@dataclass(frozen=True, kw_only=True)
class Need:
    """Why a part is empty."""

    reason: str
    commands: tuple[str, ...] = ()
    """Each can be typed as it is."""


def needs(comparison: Comparison, names: Iterable[str]) -> dict[str, Need]:
    """Return why figures of the report are empty, by their names.

    Args:
        comparison: of the study.
        names: of the figures that are empty, of ``analysis.report.page.draw``.
    """
    frame, history = comparison.frame, comparison.history
    again = () if finished(frame).all() else training_commands(frame)
    reasons: dict[str, Callable[[], Need]] = {
        "training_loss": lambda: Need(reason="No run has logged two training losses"),
        "learning_curves": lambda: Need(
            reason="Runs were validated, but none has ended"
            if (history["kind"] == "validation").any() and not finished(frame).any()
            else "No run was validated twice",
            commands=training_commands(frame, "trainer.evaluate_every=50"),
        ),
        "compute_to_target": lambda: Need(
            reason=_levels(comparison), commands=training_commands(frame, "trainer.evaluate_every=50")
        ),
        "learning_rates": lambda: Need(reason=_rates(frame), commands=(_train("compare_rates"),)),
        "scaling_laws": lambda: Need(reason=_sizes(frame, history), commands=(_train("ladder"),)),
        "pareto_fronts": lambda: Need(reason=_costs(comparison), commands=again),
        "further_tests": lambda: Need(
            reason="No extra evaluations of the same models were made",
            commands=training_commands(frame, LONGER),
        ),
        "recall_maps": lambda: Need(
            reason="No extra evaluations set a length and a depth, one for each field of the map",
            commands=(typed_command("train", "task=needle", DEPTHS),),
        ),
        "positions": lambda: _positions(frame),
        "slices": lambda: Need(reason=_slices(frame)),
        "gains": lambda: Need(reason=_tested(comparison)),
        "performance_profiles": lambda: Need(reason=_tasks(frame), commands=(_train("state_tracking"),)),
        "gradient_norms": lambda: Need(reason="No gradient norms were logged"),
    }
    return {name: need() for name, need in reasons.items() if name in names}


def training_commands(frame: pd.DataFrame, *more: str) -> tuple[str, ...]:
    """Return the commands that train the missing runs of a frame's studies, with further overrides.

    Of a study that is not in ``conf/study/`` the command of its runs is repeated, where it was recorded.
    """
    commands = []
    for study, runs in frame.groupby("study", sort=True):
        recorded = runs["command"].dropna()
        command = train_command(_runs_folder(runs) / str(study), *more)
        if not command and len(recorded):
            command = typed_command("train", *train_words(recorded.mode().iloc[0]), *more)
        commands.append(command)
    return tuple(dict.fromkeys(filter(None, commands)))


def _train(study: str) -> str:
    return train_command(Path("runs") / study)


def _runs_folder(runs: pd.DataFrame) -> Path:
    """Return the folder of all studies, the default where the runs are not here (a stored frame).

    The path of a run is RUNS/STUDY/CELL-DIGEST/sSEED.
    """
    folder = Path(runs["path"].iloc[0]).parents[2]
    return folder if folder.is_dir() else Path("runs")


def speed_commands(frame: pd.DataFrame) -> tuple[str, str]:
    """Return the command that measures speed, and the one that gives it to the report."""
    measure = "archbench benchmark -m backbone=decoder,mamba output=speed.parquet"
    study = _runs_folder(frame) / study_name(frame)
    return measure, study_command("compare", study, "speed=speed.parquet")


def _lacking(needed: int, there: int, noun: str, which: str) -> str:
    """Return what is needed of something and how much is there; empty where there is enough."""
    if there >= needed:
        return ""
    return f"Needs {plural(needed, noun)} {which}: there {'is' if there == 1 else 'are'} {there or 'none'}"


def _most(groups: pd.Series) -> int:
    return 0 if groups.empty else int(groups.max())


def _whole_arms(table: pd.DataFrame) -> pd.DataFrame:
    return table.query("kind == 'arm' and seeds > 0 and seeds == runs")


def _levels(comparison: Comparison) -> str:
    models = _most(_whole_arms(comparison.table).groupby(TYPE, dropna=False).size())
    history = comparison.history
    points = _most(history[history["kind"] == "validation"].groupby("path").size())
    return (
        _lacking(2, models, "model", "of one likelihood type whose runs have all ended")
        or _lacking(2, points, "validation", "of each run")
        or "No other model reaches a level of the baseline's validation score under every seed"
    )


def _rates(frame: pd.DataFrame) -> str:
    tried = rate_runs(frame, at_least=1).groupby(["task", "line"])["learning_rate"].nunique()
    return _lacking(FEW, _most(tried), "learning rate", "of a backbone in this study")


def _sizes(frame: pd.DataFrame, history: pd.DataFrame) -> str:
    lines = study_points(frame, history).groupby(["task", "likelihood", "line"], dropna=False)
    counts = lines[["size", "tokens"]].nunique()
    sizes, budgets = (0, 0) if counts.empty else counts.loc[counts.min(axis=1).idxmax()]
    return (
        f"Needs {plural(FITTED, 'size')} and {plural(FITTED, 'budget')} of a backbone whose score is better "
        f"where lower: there are at most {plural(sizes, 'size')} and {plural(budgets, 'budget')}"
    )


def _costs(comparison: Comparison) -> str:
    arms = comparison.table
    arms = with_costs(arms[ranked(arms)], None)
    counts = arms.groupby(TYPE, dropna=False)[list(measured_costs(comparison.frame))].count()
    most = _most(counts.max(axis=1))
    return _lacking(2, most, "model", "of one likelihood type that have learned their task, of known cost")


def _slices(frame: pd.DataFrame) -> str:
    models = run_slices(frame).groupby(TYPE)["arm"].nunique()
    which = "of one likelihood type on a text, scored by slices"
    return _lacking(2, _most(models), "model", which) or "The runs of a text saw different data"


def _tested(comparison: Comparison) -> str:
    whole = _whole_arms(comparison.table)
    models = whole[whole["seeds"] >= MIN_SEEDS].groupby(TYPE, dropna=False).size()
    reasons = comparison.arms["reason"].dropna().unique()
    return (
        _lacking(2, _most(models), "model", f"of one likelihood type with {MIN_SEEDS} seeds")
        or "; ".join(map(untested, reasons))
        or "The runs of a task saw different data"
    )


def _tasks(frame: pd.DataFrame) -> str:
    most = max((len(tasks) for tasks in whole_tasks(frame).values()), default=0)
    return (
        _lacking(MIN_TASKS, most, "task", "of one scale scored by fractions")
        or "No model has finished runs on all tasks of a scale"
    )


def _positions(frame: pd.DataFrame) -> Need:
    runs = frame[finished(frame) & (frame["objective"] == "causal_lm")]
    folders = [path for path in runs["path"] if Path(path).is_dir()]
    if not folders:
        return Need(reason="Needs a finished run of a causal model, in its folder: there is none")
    overrides = ("run=" + folders[0], "stretches=8", f"output={folders[0]}/{EVALUATED}")
    return Need(
        reason=f"No run was evaluated by position; for each of {plural(len(folders), 'causal run')}, as here",
        commands=(typed_command("evaluate", *overrides),),
    )
