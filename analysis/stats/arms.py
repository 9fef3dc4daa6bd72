"""From runs to arms: means over seeds, with their intervals and reference lines.

All functions take the frame that ``analysis.load.study.load_study`` returns. An arm, called model in
tables, is one run configuration under multiple seeds; a table holds the arms of one task at one scale.
Arms are ranked within a likelihood type only, unless the frame's column ``allow_mixed`` is set
(``analysis.compare --allow-mixed``).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from archbench.analysis.load.object_columns import with_objects
from archbench.analysis.load.run_record import NUMBERS
from archbench.analysis.load.scale_order import scale_groups
from archbench.analysis.stats.intervals import (
    Estimate,
    binomial_error,
    is_share,
    mean_interval,
    share_interval,
)
from archbench.analysis.stats.trusted_speeds import with_trusted_speeds
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.experiments.tasks.metrics import LIKELIHOOD_TYPES, Reference

AXIS_WORDS = {
    "non_embedding": "non-embedding parameters",
    "active_non_embedding": "active non-embedding parameters",
    "total": "total parameters",
    "flops": "FLOPs per token",
}
"""Label of each value of ``scale.axis``."""

GUESSES = ("chance", "random ", "majority", "uniform", "unigram", "bigram")
"""Prefixes of the names of trivial baselines; lines with the note ``chance`` are trivial, too. A model is
ranked only if it beats them. The remaining lines, such as a nearest mean or a compressor, are printed for
comparison only."""
SURE = 1.96
"""Standard errors over test items by which a fraction must exceed a guess: 95%, two-sided."""
NOT_OF_THE_TEXT = ("conditional", "pseudo")
"""Likelihood types that do not encode the full text, so that they are not compared with compressors."""
BELOW = "; "
"""Separator of the names of reference lines in the columns ``below`` and ``no_better_than``."""


USED = {
    "task", "scale", "arm", "cell", "digest", "backbone", "objective", "likelihood", "metric", "unit",
    "direction", "status", "seed", "message", "fingerprint", "references", "score", "score_items",
    "score_clusters", "score_standard_error", "solved", "allow_mixed", *NUMBERS,
}  # fmt: skip
"""Columns of the frame that ``arm_table`` reads."""


def finished(frame: pd.DataFrame) -> pd.Series:
    """Return True for the runs that are complete and have a finite score."""
    return (frame["status"] == "complete") & frame["score"].map(math.isfinite)


def arm_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm, then one for each reference line, for each task and scale.

    Columns: ``task scale kind`` (``arm`` or ``reference``) ``arm cell digest
    backbone objective likelihood metric unit direction``; ``score`` (mean over
    seeds), ``low`` and ``high`` (its 95% interval over seeds: Student's, of the logit for
    fractions), ``half_width`` (of the t-interval; all three NaN below
    ``MIN_SEEDS``), ``few_scores`` (the scores of seeds without an interval, as text),
    ``seeds`` (finished runs), ``runs``, ``status`` (``complete`` if
    all are), ``message``; ``item_se`` (standard error over test items, averaged over
    runs: variation of the text, not of the seed), ``items`` and ``clusters`` (number of test items
    and of their clusters); ``solved_from`` (``study.solved``); ``below`` (the arm's reference
    lines that its mean does not beat), ``no_better_than`` (the trivial baselines among
    them, with their scores), ``learned`` (True if there are none of the latter); and the means of
    the number columns of ``load_study``; measured times are NaN where other work disturbed the runs.
    Arms are sorted by likelihood type, then score, the best first. If types are mixed,
    they are sorted by score only, and ``mixed`` lists the types.
    """
    rows = []
    frame = with_trusted_speeds(frame)
    # Groups of a frame with all columns take several times as long.
    frame = with_objects(frame[[column for column in frame if column in USED]])
    for (task, scale), group in scale_groups(frame):
        mixed = mixed_likelihoods(group)
        arms = sorted(
            (_arm(runs, mixed) for _, runs in group.groupby(["cell", "digest"])), key=lambda arm: arm.order
        )
        table = [arm.columns() for arm in arms] + reference_rows(group)
        rows += [{"task": task, "scale": scale, **row} for row in table]
    return pd.DataFrame(rows)


def ranked(arms: pd.DataFrame) -> pd.Series:
    """Return True for the rows of ``arm_table`` that are ranked: arms that have a score and learned the task.

    Every table, sentence and figure uses this function.
    """
    return arms["kind"].eq("arm") & arms["seeds"].gt(0) & arms["learned"].eq(True)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A row of ``arm_table``, whose columns are in the order of these fields."""

    kind: str = "arm"
    arm: str
    cell: str
    digest: str
    backbone: str
    objective: str
    likelihood: str | None
    metric: str | None
    unit: str | None
    direction: str | None
    score: float
    half_width: float
    low: float
    high: float
    few_scores: str | None
    item_se: float
    items: float
    clusters: float
    solved_from: str | None
    seeds: int
    runs: int
    status: str
    message: str | None
    numbers: Mapping[str, float]
    """Means of the number columns, which are columns of the table, too."""
    below: str | None
    no_better_than: str | None
    learned: bool
    mixed: str | None

    def columns(self) -> dict[str, object]:
        """Return the columns of the row."""
        columns: dict[str, object] = {}
        for name, value in vars(self).items():
            columns |= value if name == "numbers" else {name: value}
        return columns

    @property
    def order(self) -> tuple[int, float, str]:
        """Sort key: likelihood type, then score, the best first; arms without a score come last."""
        types = list(LIKELIHOOD_TYPES)
        if not self.seeds:
            return len(types) + 1, 0.0, self.arm
        type_index = types.index(self.likelihood) if self.likelihood in types else len(types)
        score = -self.score if self.direction == "higher" else self.score
        return 0 if self.mixed is not None else type_index, score, self.arm


def _arm(runs: pd.DataFrame, mixed: str | None) -> Arm:
    """Return the row of one arm; ``mixed`` lists the likelihood types if they are ranked together."""
    counts = finished(runs)
    good = runs if counts.all() else runs[counts]
    unfinished = runs[~counts]
    notes = run_notes(unfinished)
    scores = good["score"].tolist()
    if mixed_data(good):
        scores = []  # a mean over runs on different data has no meaning
        seeds = good.groupby("fingerprint", dropna=False)["seed"].agg(
            lambda seed_list: ", ".join(map(str, sorted(seed_list)))
        )
        seeds_by_data = "; ".join(f"{fingerprint}: {seed_list}" for fingerprint, seed_list in seeds.items())
        notes.append(f"not averaged, as the seeds saw different data: {seeds_by_data}")
    estimate = mean_interval(scores)
    has_interval = estimate.half_width is not None and estimate.n >= MIN_SEEDS  # that of two spans the axis
    half_width = estimate.half_width if has_interval and estimate.half_width is not None else math.nan
    low, high = estimate.mean - half_width, estimate.mean + half_width
    items = float(good["score_items"].mean())
    if has_interval and is_share(_first(good["unit"]), scores):
        low, high = share_interval(scores, items)
    described = runs if good.empty else good
    measures = {key: _first(described[key]) for key in ("likelihood", "metric", "unit", "direction")}
    error = float(good["score_standard_error"].mean())
    below, guesses = _not_beaten(_references(runs), estimate, items=items, error=error, **measures)
    return Arm(
        **{key: _first(runs[key]) for key in ("arm", "cell", "digest", "backbone", "objective")},
        **measures, score=estimate.mean, half_width=half_width, low=low, high=high,
        few_scores=None if has_interval else ", ".join(f"{score:.3f}" for score in scores) or None,
        item_se=error,
        items=items, clusters=float(good["score_clusters"].mean()),
        solved_from=study_setting(runs, "solved"), seeds=estimate.n, runs=len(runs),
        status="complete" if unfinished.empty else ", ".join(sorted(set(unfinished["status"]))),
        message="; ".join(notes) or None,
        numbers=described[[column for column in NUMBERS if column in described]].mean().to_dict(),
        below=BELOW.join(dict.fromkeys(below)) or None,
        no_better_than=BELOW.join(dict.fromkeys(guesses)) or None, learned=not guesses, mixed=mixed,
    )  # fmt: skip


def _not_beaten(
    lines: list[Reference],
    estimate: Estimate,
    *,
    items: float,
    error: float,
    metric: str | None,
    unit: str | None,
    direction: str | None,
    likelihood: str | None,
) -> tuple[list[str], list[str]]:
    """Return the names of the reference lines that an arm does not beat, and the guesses with their scores.

    A fraction must exceed a guess by ``SURE`` standard errors over test items, because a model that guesses
    exceeds it in half of all cases. An interval over seeds is not used: it is wide if only some seeds solve
    the task.
    """
    sign = 1 if direction == "higher" else -1
    if math.isnan(error) and unit == "share":
        error = binomial_error(estimate.mean, items)
    margin = SURE * error if unit == "share" and math.isfinite(error) else 0.0
    below, guesses = [], []
    for line in lines:
        if not estimate.n or line.metric != metric:
            continue
        lead = sign * (estimate.mean - line.value)
        if is_guess(line):
            if lead <= margin:
                guesses.append(f"{line.name} ({line.value:.3f} {line.metric.replace('_', ' ')})")
                below.append(line.name)
        elif lead <= 0 and likelihood not in NOT_OF_THE_TEXT:
            below.append(line.name)
    return below, guesses


def is_guess(line: Reference) -> bool:
    """Return True for a trivial baseline: chance, the most frequent class, a unigram or bigram.

    A model that does not beat such a line has not learned the task. A line that was fitted to the training
    split or follows a rule, such as a nearest mean, is for comparison only: a good model may not reach it.
    """
    return line.name.startswith(GUESSES) or line.note == "chance"


def _references(runs: pd.DataFrame) -> list[Reference]:
    """Return the distinct reference lines of the runs for the test split."""
    lines = [Reference(**line) for text in runs["references"].unique() for line in json.loads(text)]
    return [line for line in {(r.name, r.value): r for r in lines}.values() if line.split == "test"]


def reference_rows(group: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the reference lines of a task in the metric of its table, best last.

    If the values of a line differ between models, as with different tokenizers, each name is followed by
    the models that it applies to.
    """
    metric, direction = _first(group["metric"]), _first(group["direction"])
    models: dict[tuple[str, float], list[str]] = {}
    for model, runs in group.groupby("arm", sort=True):
        for line in _references(runs):
            if line.metric == metric:
                models.setdefault((line.name, float(line.value)), []).append(str(model))
    notes = {(line.name, float(line.value)): line.note for line in _references(group)}
    names = Counter(name for name, _ in models)
    return [
        {
            "kind": "reference",
            "arm": name if names[name] == 1 else f"{name} ({', '.join(models[name, value])})",
            "metric": metric, "score": value, "direction": direction, "message": notes[name, value] or None,
            "half_width": math.nan, "seeds": 0, "runs": 0,
        }
        for name, value in sorted(models, key=lambda line: line[1], reverse=direction == "lower")
    ]  # fmt: skip


def _first(column: pd.Series) -> Any:
    values = column.dropna()
    return None if values.empty else values.iloc[0]


def study_setting(frame: pd.DataFrame, key: str) -> str | None:
    """Return the value of ``study.KEY``; None if the study does not set it."""
    return None if key not in frame else _first(frame[key])


def mixed_likelihoods(group: pd.DataFrame) -> str | None:
    """Return the likelihood types of one task that are ranked together; None if ranked separately."""
    types = sorted(group["likelihood"].dropna().unique(), key=list(LIKELIHOOD_TYPES).index)
    allowed = "allow_mixed" in group and bool(group["allow_mixed"].any())
    return ", ".join(types) if allowed and len(types) > 1 else None


def declared_baseline(runs: pd.DataFrame) -> str | None:
    """Return the model that ``study.baseline`` names, by its name or as the only model of a backbone.

    None if the study names no baseline, or a backbone without exactly one model in these runs.
    """
    baseline = study_setting(runs, "baseline")
    names = runs[["arm", "backbone"]].drop_duplicates()
    if baseline is None or baseline in names["arm"].tolist():
        return baseline
    models = names[names["backbone"] == baseline]["arm"]
    return str(models.iloc[0]) if len(models) == 1 else None


def run_notes(runs: pd.DataFrame) -> list[str]:
    """Return seeds, status and message of the given runs, one line for each status and message."""
    if runs.empty:  # the common case: sorting an empty frame for every arm would be slow
        return []
    fates: dict[str, list[str]] = {}
    for run in runs.sort_values("seed").itertuples():
        reason = " ".join(run.message.split()) if isinstance(run.message, str) else ""
        if run.status == "incomplete":
            reason = "no result yet, still going on or killed"
        elif run.status == "complete":
            reason = "no finite score"
        fates.setdefault(run.status + (f": {reason}" if reason else ""), []).append(str(run.seed))
    return [f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)} {fate}" for fate, seeds in fates.items()]


def likelihood_group(row: pd.Series) -> str:
    """Return the likelihood type within which a row is ranked, or ``reference``."""
    if row["kind"] == "reference":
        return "reference"
    return str(row["mixed"] if isinstance(row["mixed"], str) else row["likelihood"])


def matched_line(frame: pd.DataFrame) -> str:
    """Return a sentence with the quantities that were matched between models, and the largest mismatch."""
    matched = frame[frame["matched_axis"].notna()]
    if matched.empty:
        return "Held equal: nothing."
    axes = matched.groupby("matched_axis")["matched_target"].unique()
    parts = []
    for axis, targets in axes.items():
        parts.append(
            f"{AXIS_WORDS.get(str(axis), axis)} at {' and '.join(f'{t:,.0f}' for t in sorted(targets))}"
        )
    return f"Held equal: {'; '.join(parts)}; largest mismatch {matched['matched_residual'].abs().max():.2%}."


def in_finished_arms(group: pd.DataFrame) -> pd.Series:
    """Return True for the runs of arms of which all runs are finished."""
    return finished(group).groupby([group["cell"], group["digest"]]).transform("all")


def mixed_data(group: pd.DataFrame) -> bool:
    """Return True if the runs of one task saw different data."""
    return bool(group[finished(group)]["fingerprint"].nunique(dropna=False) > 1)
