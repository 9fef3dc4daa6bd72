"""Warnings that a reader of a study's numbers must know first. Every output of the analysis has them.

Everything here is a function of the frame that ``analysis.load.study.load_study`` returns.
"""

from __future__ import annotations

import json
from itertools import product

import pandas as pd

from analysis.load.joined_studies import mixed_packages
from analysis.stats.arms import (
    TASK_SCALE,
    finished,
    in_finished_arms,
    mixed_data,
    mixed_likelihoods,
    run_notes,
)
from analysis.stats.learning_rates.sensitivity import rate_warnings
from analysis.stats.score_warnings import score_warnings
from analysis.stats.verdicts.family import MIN_SEEDS
from analysis.stats.verdicts.verdict_test import SEED_WORDS
from experiments.runtime.console import count, plural
from experiments.tasks.likelihood import LIKELIHOOD_TYPES

RESIDUAL_LIMIT = 0.01
"""A budget matched less closely than this is warned about."""


def study_warnings(frame: pd.DataFrame) -> list[str]:
    """Return all warnings of a study, the gravest first."""
    tasks = [(f"{task}, {scale}", group) for (task, scale), group in frame.groupby(TASK_SCALE, sort=True)]
    found = [line for where, group in tasks for line in _of_task(where, group)]
    return [
        *_left_out(frame),
        *found,
        *_unlike(frame),
        *_mixed(frame),
        *_disturbed(frame),
        *_unmatched(frame),
        *rate_warnings(frame),
    ]


def condition_warnings(frame: pd.DataFrame) -> list[str]:
    """Return warnings about failures, different data and different conditions."""
    found = _left_out(frame)
    for (task, scale), group in frame.groupby(TASK_SCALE, sort=True):
        where = f"{task}, {scale}"
        found += _missing(where, group) + _other_code(where, group) + _other_data(where, group)
    return [*found, *_mixed(frame), *_disturbed(frame)]


def with_warnings(table: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """Return a table with the column ``warnings``, which has them all in each row; empty without any."""
    return table.assign(warnings=" | ".join(warnings))


def _of_task(where: str, group: pd.DataFrame) -> list[str]:
    """Return the warnings about one task at one scale."""
    found = _missing(where, group) + _other_code(where, group)
    classes = sorted(group["likelihood"].dropna().unique(), key=list(LIKELIHOOD_TYPES).index)
    if (mixed := mixed_likelihoods(group)) is not None:
        found.append(
            f"{where}: likelihood types are ranked against each other ({mixed}), as --allow-mixed asks: "
            "their scores are not comparable"
        )
    elif len(classes) > 1:
        found.append(
            f"{where}: scores of several likelihood types ({', '.join(classes)}) are not comparable, so each "
            "type is ranked separately"
        )
    return [
        *found,
        *_other_data(where, group),
        *_few_seeds(where, group),
        *_unequal(where, group),
        *score_warnings(where, group),
    ]


def _missing(where: str, group: pd.DataFrame) -> list[str]:
    """Arms with a run that did not finish, and those short of a seed that others have."""
    found = []
    for _, runs in group[~finished(group)].groupby(["cell", "digest"]):
        notes = "; ".join(run_notes(runs))
        found.append(f"{where}: {runs['arm'].iloc[0]} is not compared, as runs are missing ({notes})")
    seeds = {str(arm): set(runs["seed"]) for arm, runs in group.groupby("arm", sort=True)}
    every = set.union(*seeds.values())
    lacking = [
        f"{arm} {', '.join(map(str, sorted(every - own)))}" for arm, own in seeds.items() if every - own
    ]
    if lacking:
        found.append(f"{where}: seeds that other models have are missing: {'; '.join(lacking)}")
    return found


def _left_out(frame: pd.DataFrame) -> list[str]:
    """Folders of the study that look like runs and are none."""
    known = frame[["study", "left_out"]].dropna().drop_duplicates().itertuples(index=False)
    names = [f"{study}/{name}" for study, text in known for name in json.loads(text)]
    return [f"left out, as their names are not CELL-DIGEST/sSEED: {', '.join(names)}"] if names else []


def _other_code(where: str, group: pd.DataFrame) -> list[str]:
    """Arms whose seeds were trained by different code."""
    runs = group[finished(group)]
    found = []
    for arm, own in runs.groupby("arm", sort=True):
        versions = own.groupby(own["git_code"].fillna(own["git_commit"]))["seed"].agg(sorted)
        if len(versions) > 1:
            seeds = " and ".join(f"seeds {', '.join(map(str, each))}" for each in sorted(versions))
            changed = ", ".join(_changed_code(own)) or "nobody recorded which"
            found.append(
                f"{where}: seeds of {arm} were trained by different code ({changed}), not of one model: "
                f"{seeds}"
            )
    return found


def _other_data(where: str, group: pd.DataFrame) -> list[str]:
    words = f"{where}: mixed fingerprints, the runs saw different data: no models are compared"
    return [words] if mixed_data(group) else []


def _few_seeds(where: str, group: pd.DataFrame) -> list[str]:
    seeds = group[in_finished_arms(group)].groupby("arm")["seed"].nunique()
    few = seeds[seeds < MIN_SEEDS]
    if len(few) and len(few) == len(seeds):
        most = SEED_WORDS[int(seeds.max())]
        most = most if seeds.nunique() == 1 else f"at most {most}"
        return [f"{where}: {most}: no model is called better, which takes {MIN_SEEDS} seeds"]
    if len(few):
        return [f"{where}: fewer than {MIN_SEEDS} seeds, so not called better: {', '.join(few.index)}"]
    return []


def _unequal(where: str, group: pd.DataFrame) -> list[str]:
    """Arms of one size that were trained on neither equal tokens nor equal FLOPs."""
    for _, runs in group[finished(group)].groupby("matched_target", dropna=False):
        means = runs.groupby("arm")[["training_tokens", "training_flops"]].mean()
        low, high = means.min(), means.max()
        if (high > low * (1 + RESIDUAL_LIMIT)).all():
            words = {"training_tokens": "tokens", "training_flops": "FLOPs"}
            spans = [f"{count(low[key])} to {count(high[key])} {word}" for key, word in words.items()]
            shown = " and ".join(spans)
            return [f"{where}: unmatched budgets, the models were trained on {shown}"]
    return []


def _unlike(frame: pd.DataFrame) -> list[str]:
    """Scores of one table and class that are not the same measure, or not of the same part of the split."""
    labels = {
        "unit": "units", "direction": "directions", "averaging": "averagings", "score_items": "items",
        "score_setting": "parts of the split",
    }  # fmt: skip
    # Generated tasks are scored on as many items as the error asks for.
    frame = frame.assign(
        score_items=frame["score_items"].where(frame["score_setting"] != "generated examples")
    )
    found = []
    for (task, scale, likelihood), runs in frame[finished(frame)].groupby(
        [*TASK_SCALE, "likelihood"], dropna=False
    ):
        of = "" if pd.isna(likelihood) else f" of {likelihood}"
        names = sorted(runs["metric"].dropna().unique())
        if len(names) > 1:
            found.append(
                f"{task}, {scale}: different metrics{of}, which are not compared: {', '.join(names)}"
            )
        for name, column in product(names, labels):
            values = runs[runs["metric"] == name][column].dropna().unique()
            if len(values) > 1:
                shown = " and ".join(f"{v:g}" if column == "score_items" else str(v) for v in sorted(values))
                found.append(f"{task}, {scale}: {name}{of} over different {labels[column]}: {shown}")
    return found


def _disturbed(frame: pd.DataFrame) -> list[str]:
    """Return warnings about runs that resumed under other code, libraries or machine, or skipped steps."""
    found = []
    inexact = frame[frame["changed"] != "[]"]
    keys = sorted({key for text in inexact["changed"] for key in json.loads(text)})
    if keys:
        found.append(
            f"{plural(len(inexact), 'run')} continued after a change of {', '.join(keys)}: not exact"
        )
    for run in frame[frame["damaged"] != "[]"].itertuples():
        names = ", ".join(json.loads(str(run.damaged)))
        found.append(
            f"{run.arm} seed {run.seed}: its record is damaged, {names} changed after the run had ended: "
            "not exact"
        )
    if frame["skipped_steps"].sum() > 0:
        runs = plural((frame["skipped_steps"] > 0).sum(), "run")
        steps = plural(frame["skipped_steps"].sum(), "step")
        found.append(f"{runs} left out {steps}, as the loss was no finite number")
    return found


def _mixed(frame: pd.DataFrame) -> list[str]:
    """Conditions that differ between the runs."""
    known = frame[~frame["status"].isin(["incomplete", "refused", "unreadable"])]
    found = []
    if changed := _changed_code(known):
        found.append(f"mixed code ({', '.join(changed)}): scores and speed are perhaps not comparable")
    labels = {
        "git_commit": "commits of the code", "device_name": "devices", "device_processor": "processors",
        "device_threads": "thread counts", "device_precision": "precisions",
    }  # fmt: skip
    for column, label in labels.items():
        if column == "git_commit" and _code_is_known(known):
            continue
        values = sorted(str(v) for v in known[column].dropna().unique())
        if len(values) > 1:
            shown = ", ".join(value[:24] for value in values)
            found.append(f"mixed {label} ({shown}): speed, and perhaps more, is not comparable")
    if packages := mixed_packages(known):
        found.append(
            f"mixed package versions ({', '.join(packages)}): speed, and perhaps more, is not comparable"
        )
    for part, paths in _kernels(known).items():
        if len(paths) > 1:
            found.append(
                f"mixed kernels of {part} ({', '.join(paths)}): speed and last digits differ by them"
            )
    dirty = int((known["git_dirty"] == True).sum())  # noqa: E712 -- the column also holds None
    if dirty:
        found.append(f"{dirty} of {plural(len(frame), 'run')} used code with uncommitted changes")
    corrupt = int(frame["corrupt_lines"].sum())
    if corrupt:
        found.append(f"unreadable lines of metrics.jsonl, skipped: {corrupt} (a killed run ends mid-line)")
    return found


def _changed_code(known: pd.DataFrame) -> list[str]:
    """Return the packages and modules of which some runs used another version than others."""
    versions: dict[str, set[str]] = {}
    for text in known["code"].dropna().unique():
        for name, version in json.loads(text).items():
            versions.setdefault(name, set()).add(version)
    return sorted(name for name, used in versions.items() if len(used) > 1)


def _code_is_known(known: pd.DataFrame) -> bool:
    """Return True if commits say nothing more: the code of all runs was recorded, or all used the same."""
    if known["code"].notna().all() and (known["code"] != "{}").all():
        return True
    return known["git_code"].notna().all() and known["git_code"].nunique() == 1


def _kernels(known: pd.DataFrame) -> dict[str, list[str]]:
    """Return the kernel paths that each part of a model took in the runs that have it.

    Decoding is each backbone's own part: some have no faster path there, and no training depends on it.
    """
    found: dict[str, set[str]] = {}
    for backbone, text in known[["backbone", "kernels"]].dropna().drop_duplicates().itertuples(index=False):
        for part, path in json.loads(text).items():
            found.setdefault(f"{part} of {backbone}" if part == "decoding" else part, set()).add(str(path))
    return {part: sorted(paths) for part, paths in sorted(found.items())}


def _unmatched(frame: pd.DataFrame) -> list[str]:
    known = frame[frame["status"] == "complete"]
    found = []
    missing = int(known["matched_axis"].isna().sum())
    if missing:
        word = "was" if missing == 1 else "were"
        found.append(f"{missing} of {plural(len(known), 'complete run')} {word} matched to no budget")
    axes = sorted(known["matched_axis"].dropna().unique())
    if len(axes) > 1:
        found.append(f"runs were matched on different axes: {', '.join(axes)}")
    elif (known.groupby(TASK_SCALE)["matched_target"].nunique() > 1).any():
        found.append("runs of one task were matched to different targets")
    loose = sorted(known[known["matched_residual"].abs() > RESIDUAL_LIMIT]["arm"].unique())
    if loose:
        found.append(f"matched to worse than {RESIDUAL_LIMIT:.0%}: {', '.join(loose)}")
    noted = known[["arm", "matched_note"]].dropna().drop_duplicates("arm").sort_values("arm")
    return [*found, *(f"what is held equal of {arm} {note}" for arm, note in noted.itertuples(index=False))]
