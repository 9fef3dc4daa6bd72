"""Warnings that affect how a study's results may be read. Every output of the analysis has them.

All functions take the frame that ``analysis.load.study.load_study`` returns.
"""

from __future__ import annotations

import json
from itertools import product

import pandas as pd

from archbench.analysis.load.joined_studies import mixed_packages
from archbench.analysis.load.scale_order import TASK_SCALE, in_table, scale_groups, task_label
from archbench.analysis.stats.arms import (
    finished,
    in_finished_arms,
    mixed_data,
    mixed_likelihoods,
    run_notes,
)
from archbench.analysis.stats.learning_rates.sensitivity import rate_warnings
from archbench.analysis.stats.score_warnings import score_warnings
from archbench.analysis.stats.trusted_speeds import speed_warnings
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.analysis.stats.verdicts.verdict import SEED_COUNTS
from archbench.experiments.config.study import RULES
from archbench.experiments.runtime.console import count, plural
from archbench.experiments.tasks.metrics import LIKELIHOOD_TYPES

RESIDUAL_LIMIT = 0.01
"""Relative mismatch of a budget above which a warning is printed."""


def study_warnings(frame: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Return all warnings of a study, the most severe first.

    Args:
        frame: runs.
        table: their ``arm_table``.
    """
    of_tasks = [
        line
        for (task, scale), group in scale_groups(frame)
        for line in _of_task(task_label(task, scale), group, in_table(table, task, scale))
    ]
    return [
        *_left_out(frame),
        *_chosen_baseline(frame),
        *of_tasks,
        *_unlike(frame),
        *_mixed(frame),
        *_disturbed(frame),
        *_unmatched(frame),
        *speed_warnings(frame),
        *rate_warnings(frame),
    ]


def _chosen_baseline(frame: pd.DataFrame) -> list[str]:
    """Return a warning if the study declares another baseline, or none."""
    if "baseline_chosen" not in frame or not frame["baseline_chosen"].any():
        return []
    return [
        f"the study does not declare the baseline {frame['baseline'].iloc[0]}: p-values hold if it was "
        "chosen before results were seen"
    ]


def condition_warnings(frame: pd.DataFrame) -> list[str]:
    """Return warnings about failures, different data and different conditions."""
    warnings = _left_out(frame)
    for (task, scale), group in scale_groups(frame):
        label = task_label(task, scale)
        warnings += _missing(label, group) + _other_code(label, group) + _other_data(label, group)
    return [*warnings, *_mixed(frame), *_disturbed(frame)]


def with_warnings(table: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """Return the table with a column ``warnings``: all warnings, joined, in each row."""
    return table.assign(warnings=" | ".join(warnings))


def _of_task(label: str, group: pd.DataFrame, arms: pd.DataFrame) -> list[str]:
    """Return the warnings about one task at one scale."""
    warnings = _missing(label, group) + _other_code(label, group)
    types = sorted(group["likelihood"].dropna().unique(), key=list(LIKELIHOOD_TYPES).index)
    if (mixed := mixed_likelihoods(group)) is not None:
        warnings.append(
            f"{label}: likelihood types are ranked against each other ({mixed}), as --allow-mixed asks: "
            "their scores are not comparable"
        )
    elif len(types) > 1:
        warnings.append(
            f"{label}: scores of several likelihood types ({', '.join(types)}) are not comparable, so each "
            "type is ranked separately"
        )
    return [
        *warnings,
        *_other_data(label, group),
        *_few_seeds(label, group),
        *_unequal(label, group),
        *score_warnings(label, group, arms),
    ]


def _missing(label: str, group: pd.DataFrame) -> list[str]:
    """Arms with an unfinished run, and arms without a seed that another arm has."""
    warnings = []
    for _, runs in group[~finished(group)].groupby(["cell", "digest"]):
        notes = "; ".join(run_notes(runs))
        warnings.append(f"{label}: {runs['arm'].iloc[0]} is not compared, as runs are missing ({notes})")
    seeds = {str(model): set(runs["seed"]) for model, runs in group.groupby("arm", sort=True)}
    all_seeds = set.union(*seeds.values())
    lacking = [
        f"{model} {', '.join(map(str, sorted(all_seeds - model_seeds)))}"
        for model, model_seeds in seeds.items()
        if all_seeds - model_seeds
    ]
    if lacking:
        warnings.append(f"{label}: seeds that other models have are missing: {'; '.join(lacking)}")
    return warnings


def _left_out(frame: pd.DataFrame) -> list[str]:
    """Folders of the study that look like its runs but are not."""
    folders = frame[["study", "left_out"]].dropna().drop_duplicates().itertuples(index=False)
    names = [f"{study}/{name}" for study, text in folders for name in json.loads(text)]
    foreign = [name for name in names if " of study=" in name]
    copies = [name for name in names if name not in foreign]
    warnings = []
    if copies:
        warnings.append(f"left out, as their names are not CELL-DIGEST/sSEED: {', '.join(copies)}")
    if foreign:
        remedy = "move them back, or remove them"
        warnings.append(f"left out, as they are runs of another study ({remedy}): {', '.join(foreign)}")
    return warnings


def _other_code(label: str, group: pd.DataFrame) -> list[str]:
    """Arms with seeds that were trained by different code."""
    runs = group[finished(group)]
    warnings = []
    for model, model_runs in runs.groupby("arm", sort=True):
        versions = model_runs.groupby(model_runs["git_code"].fillna(model_runs["git_commit"]))["seed"].agg(
            sorted
        )
        if len(versions) > 1:
            seeds = " and ".join(f"seeds {', '.join(map(str, same_code))}" for same_code in sorted(versions))
            changed = ", ".join(_changed_code(model_runs)) or "nobody recorded which"
            warnings.append(
                f"{label}: seeds of {model} were trained by different code ({changed}), not of one model: "
                f"{seeds}"
            )
    return warnings


def _other_data(label: str, group: pd.DataFrame) -> list[str]:
    warning = f"{label}: mixed fingerprints, the runs saw different data: no models are compared"
    return [warning] if mixed_data(group) else []


def _few_seeds(label: str, group: pd.DataFrame) -> list[str]:
    seeds = group[in_finished_arms(group)].groupby("arm")["seed"].nunique()
    few = seeds[seeds < MIN_SEEDS]
    if len(few) and len(few) == len(seeds):
        most = SEED_COUNTS[int(seeds.max())]
        most = most if seeds.nunique() == 1 else f"at most {most}"
        return [f"{label}: {most}: no model is called better, which takes {MIN_SEEDS} seeds"]
    if len(few):
        return [f"{label}: fewer than {MIN_SEEDS} seeds, so not called better: {', '.join(few.index)}"]
    return []


def _unequal(label: str, group: pd.DataFrame) -> list[str]:
    """Arms of one size with different training budgets, both in tokens and in FLOPs."""
    for _, runs in group[finished(group)].groupby("matched_target", dropna=False):
        means = runs.groupby("arm")[["training_tokens", "training_flops"]].mean()
        low, high = means.min(), means.max()
        if (high > low * (1 + RESIDUAL_LIMIT)).all():
            units = {"training_tokens": "tokens", "training_flops": "FLOPs"}
            spans = [f"{count(low[key])} to {count(high[key])} {unit}" for key, unit in units.items()]
            ranges = " and ".join(spans)
            return [f"{label}: unmatched budgets, the models were trained on {ranges}"]
    return []


def _unlike(frame: pd.DataFrame) -> list[str]:
    """Scores of one table and likelihood type with different metrics, units, or parts of the split."""
    labels = {
        "unit": "units", "direction": "directions", "averaging": "averagings", "score_items": "items",
        "score_setting": "parts of the split",
    }  # fmt: skip
    # The number of items of generated tasks depends on the requested standard error.
    frame = frame.assign(
        score_items=frame["score_items"].where(frame["score_setting"] != "generated examples")
    )
    warnings = []
    for (task, scale, likelihood), runs in frame[finished(frame)].groupby(
        [*TASK_SCALE, "likelihood"], dropna=False
    ):
        of_type = "" if pd.isna(likelihood) else f" of {likelihood}"
        names = sorted(runs["metric"].dropna().unique())
        if len(names) > 1:
            warnings.append(
                f"{task_label(task, scale)}: different metrics{of_type}, which are not compared: "
                f"{', '.join(names)}"
            )
        for name, column in product(names, labels):
            values = runs[runs["metric"] == name][column].dropna().unique()
            if len(values) > 1:
                listed = " and ".join(f"{v:g}" if column == "score_items" else str(v) for v in sorted(values))
                warnings.append(
                    f"{task_label(task, scale)}: {name}{of_type} over different {labels[column]}: {listed}"
                )
    return warnings


def _disturbed(frame: pd.DataFrame) -> list[str]:
    """Return warnings about skipped steps, and runs resumed with different code, libraries or devices."""
    warnings = []
    inexact = frame[frame["changed"] != "[]"]
    keys = sorted({key for text in inexact["changed"] for key in json.loads(text)})
    if keys:
        warnings.append(
            f"{plural(len(inexact), 'run')} continued after a change of {', '.join(keys)}: not exact"
        )
    for run in frame[frame["damaged"] != "[]"].itertuples():
        names = ", ".join(json.loads(str(run.damaged)))
        warnings.append(
            f"{run.arm} seed {run.seed}: its record is damaged, {names} changed after the run had ended: "
            "not exact"
        )
    if frame["skipped_steps"].sum() > 0:
        runs = plural((frame["skipped_steps"] > 0).sum(), "run")
        steps = plural(frame["skipped_steps"].sum(), "step")
        warnings.append(f"{runs} left out {steps}, as the loss was no finite number")
    return warnings


def _mixed(frame: pd.DataFrame) -> list[str]:
    """Conditions that differ between the runs."""
    runs = frame[~frame["status"].isin(["incomplete", "refused", "unreadable"])]
    warnings = []
    versions = runs["rules"].dropna().unique() if "rules" in runs else []  # earlier frames have none
    if others := sorted(set(versions) - {RULES}):
        warnings.append(
            f"runs by rules {', '.join(others)}, which are not those of this version of archbench ({RULES})"
        )
    if changed := _changed_code(runs):
        warnings.append(f"mixed code ({', '.join(changed)}): scores and speed are perhaps not comparable")
    # Commits add no information if the code of all runs was recorded, or is the same.
    code_is_known = runs["code"].notna().all() and (runs["code"] != "{}").all()
    code_is_known |= runs["git_code"].notna().all() and runs["git_code"].nunique() == 1
    labels = {
        "git_commit": "commits of the code", "device_name": "devices", "device_processor": "processors",
        "device_threads": "thread counts", "device_precision": "precisions",
        "device_instruction_set": "instruction sets of the C++ kernels",
        "device_compiler": "compilers of the C++ kernels",
        "device_pytorch_instruction_set": "instruction sets of PyTorch",
        "device_library_settings": "settings of numerical libraries",
    }  # fmt: skip
    for column, label in labels.items():
        if column not in runs or (column == "git_commit" and code_is_known):
            continue  # earlier frames have fewer columns
        values = sorted(str(v) for v in runs[column].dropna().unique())
        if len(values) > 1:
            listed = ", ".join(value[:24] or "none" for value in values)
            warnings.append(f"mixed {label} ({listed}): speed, and perhaps more, is not comparable")
    if packages := mixed_packages(runs):
        warnings.append(
            f"mixed package versions ({', '.join(packages)}): speed, and perhaps more, is not comparable"
        )
    for part, paths in _kernels(runs).items():
        if len(paths) > 1:
            warnings.append(
                f"mixed kernels of {part} ({', '.join(paths)}): speed and last digits differ by them"
            )
    dirty = int((runs["git_dirty"] == True).sum())  # noqa: E712 -- the column also holds None
    if dirty:
        warnings.append(f"{dirty} of {plural(len(frame), 'run')} used code with uncommitted changes")
    corrupt = int(frame["corrupt_lines"].sum())
    if corrupt:
        warnings.append(f"unreadable lines of metrics.jsonl, skipped: {corrupt} (a killed run ends mid-line)")
    return warnings


def _changed_code(runs: pd.DataFrame) -> list[str]:
    """Return the packages and modules of which the runs used different versions."""
    versions: dict[str, set[str]] = {}
    for text in runs["code"].dropna().unique():
        for name, version in json.loads(text).items():
            versions.setdefault(name, set()).add(version)
    return sorted(name for name, used in versions.items() if len(used) > 1)


def _kernels(runs: pd.DataFrame) -> dict[str, list[str]]:
    """Return the kernel paths of each part of a model over the runs.

    Decoding is listed per backbone: some backbones have only one path, and training does not depend on it.
    """
    paths_of_part: dict[str, set[str]] = {}
    for backbone, text in runs[["backbone", "kernels"]].dropna().drop_duplicates().itertuples(index=False):
        for part, path in json.loads(text).items():
            paths_of_part.setdefault(f"{part} of {backbone}" if part == "decoding" else part, set()).add(
                str(path)
            )
    return {part: sorted(paths) for part, paths in sorted(paths_of_part.items())}


def _unmatched(frame: pd.DataFrame) -> list[str]:
    complete = frame[frame["status"] == "complete"]
    warnings = []
    missing = int(complete["matched_axis"].isna().sum())
    if missing:
        verb = "was" if missing == 1 else "were"
        warnings.append(f"{missing} of {plural(len(complete), 'complete run')} {verb} matched to no budget")
    axes = sorted(complete["matched_axis"].dropna().unique())
    if len(axes) > 1:
        warnings.append(f"runs were matched on different axes: {', '.join(axes)}")
    elif (complete.groupby(TASK_SCALE)["matched_target"].nunique() > 1).any():
        warnings.append("runs of one task were matched to different targets")
    loose = sorted(complete[complete["matched_residual"].abs() > RESIDUAL_LIMIT]["arm"].unique())
    if loose:
        warnings.append(f"matched to worse than {RESIDUAL_LIMIT:.0%}: {', '.join(loose)}")
    noted = complete[["arm", "matched_note"]].dropna().drop_duplicates("arm").sort_values("arm")
    return [
        *warnings,
        *(f"what is held equal of {model} {note}" for model, note in noted.itertuples(index=False)),
    ]
