"""The results of a comparison as sentences, printed before every table and at the top of the report.

For each task and likelihood type: the best model, its lead with interval and p-value, its cost, and the
undecided models with the seeds that would decide them. All functions take rows of
``analysis.stats.versus_baseline.with_differences``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass

import pandas as pd

from archbench.analysis.load.scale_order import scale_groups, task_label
from archbench.analysis.stats.arms import BELOW, likelihood_group, ranked
from archbench.analysis.stats.solve_rates import SOLVED
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.analysis.tables.columns import interval, mean_text, p_text
from archbench.experiments.runtime.console import plural

TYPES = {
    "exact": "exact likelihoods",
    "conditional": "conditional likelihoods",
    "bound": "bounds on the likelihood",
    "pseudo": "pseudo-likelihoods",
}
"""Likelihood types as used in a sentence; scores that are not likelihoods have none."""
COSTS = {
    "training_flops": "training FLOPs",
    "training_tokens_per_second": "tokens per second",
    "state_bytes_2k": "decoding state",
}
ALIKE = 0.02
"""Relative difference of costs below which they are reported as equal."""
OTHER_DATA = "the runs saw different data"
MOST_NAMES = 6
"""Maximum number of models that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a task and likelihood type, in parts."""

    where: str
    lead: str
    """The first sentence."""
    rest: str


def answer(line: str) -> Answer:
    """Return a line of ``answers`` or ``over_compute`` in its parts."""
    where, _, sentences = line.partition(": ")
    lead, end, rest = sentences.partition(". ")
    return Answer(where=where, lead=lead + end.rstrip(), rest=rest)


def with_likelihood(label: str, likelihood: object) -> str:
    """Return the name of a table with the likelihood type of its scores, if they are likelihoods."""
    return f"{label}, {TYPES[str(likelihood)]}" if str(likelihood) in TYPES else label


def answers(arms: pd.DataFrame) -> list[str]:
    """Return the sentences of all tasks, one string for each task and likelihood type.

    Args:
        arms: from ``with_differences``.
    """
    sentences = []
    for (task, scale), rows in scale_groups(arms):
        scored = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
        groups = [likelihood_group(row) for _, row in scored.iterrows()]
        for group in dict.fromkeys(groups):
            group_rows = scored[[row_group == group for row_group in groups]]
            label = with_likelihood(task_label(task, scale), group)
            sentences.append(f"{label}: {' '.join(_sentences(group_rows))}")
        if scored.empty:
            sentences.append(f"{task_label(task, scale)}: no model has a score yet.")
    return sentences


def _sentences(rows: pd.DataFrame) -> list[str]:
    """Return the sentences about the models of one likelihood type."""
    learned, unlearned = rows[ranked(rows)], rows[~ranked(rows)]
    lines = _lines(unlearned, "no_better_than")
    if learned.empty:
        return [f"no model has learned the task: none is better than {enumerated(lines)}."]
    missed = []
    if not unlearned.empty:
        verb = "has" if len(unlearned) == 1 else "have"
        subject = f"{_names(unlearned['arm'])} {verb} not learned the task"
        missed.append(f"{subject} and {_is(unlearned)} not ranked: no better than {enumerated(lines)}.")
    return [*_verdicts(rows), *missed, *_beyond(learned)]


def _beyond(rows: pd.DataFrame) -> list[str]:
    """Return sentences about reference lines that models which have learned the task do not beat.

    A line that no model beats, such as a compressor, is named once. A shallow baseline is named with the
    models that do not beat it. A bound above a line does not imply that the model is worse than the line.
    """
    names = rows["below"].map(_line_names)
    missed = {
        line: rows.loc[[line in names_below for names_below in names], "arm"]
        for line in _lines(rows, "below")
    }
    by_all = [line for line, arms in missed.items() if len(arms) == len(rows)]
    subject = "No bound is below" if rows["likelihood"].eq("bound").all() else "None is better than"
    sentences = [f"{subject} the reference{'s' * (len(by_all) > 1)} {enumerated(by_all)}."] * bool(by_all)
    for line, arms in missed.items():
        if line not in by_all and rows["unit"].eq("share").all():
            sentences.append(f"{_names(arms)} {_is(arms)} no better than {line}, a reference line.")
    return sentences


def _verdicts(rows: pd.DataFrame) -> list[str]:
    """Return sentences with the winner, its evidence and cost, and the undecided models.

    Args:
        rows: the models of one likelihood type, with at least one ranked. Unranked models are left out,
            except for the baseline that a study names.
    """
    baseline, models = str(rows["baseline"].iloc[0]), len(rows)
    rows = rows[ranked(rows) | rows["arm"].eq(baseline)]
    base = rows[rows["arm"] == baseline].iloc[0]
    compared = rows[(rows["arm"] != baseline) & rows["verdict"].notna()]
    untested = rows[(rows["arm"] != baseline) & rows["verdict"].isna()]
    reasons = untested.assign(why=[_why_not_compared(row, base) for _, row in untested.iterrows()])
    omitted = [
        f"{_names(same_reason['arm'])} {_is(same_reason)} not compared: {why}."
        for why, same_reason in reasons.groupby("why", sort=False)
    ]
    if compared.empty and OTHER_DATA in set(reasons["why"]):
        scores = [f"{row['arm']} {_score(row)}" for _, row in rows[ranked(rows)].head(MOST_NAMES).iterrows()]
        more = _more(int(ranked(rows).sum()))
        return [f"No verdict, as the runs saw different data: {enumerated([*scores, *more])}."]
    if compared.empty:
        only_ranked = rows[ranked(rows)].iloc[0]
        remark = "there is nothing of its type to compare it with"
        if models > 1:
            remark = f"no other model {'is compared with it' if omitted else 'has learned the task'}"
        return [f"{only_ranked['arm']} has {_score(only_ranked)}, and {remark}.", *omitted]
    rows = rows.drop(untested.index)
    compared = compared.sort_values("gain", ascending=False, kind="stable")
    by_verdict = {verdict: compared[compared["verdict"] == verdict] for verdict in VERDICTS}
    worse, undecided, equivalent = (by_verdict[v] for v in ("worse", "undecided", "equivalent"))
    sentences = [_lead(rows, base, by_verdict, all_others=len(rows) == models)]
    if len(by_verdict["better"]):
        sentences.append(_cost(by_verdict["better"].iloc[0], base))
    elif len(worse) and undecided.empty:
        sentences.append(_cost(base, worse.iloc[0]))
    if len(worse):
        sentences.append(f"Worse than {baseline}: {_listed(worse)}.")
    if len(equivalent):
        margin = f" within {float(equivalent['margin'].iloc[0]):g}" if "margin" in equivalent else ""
        sentences.append(f"Equivalent to {baseline}{margin}: {_names(equivalent['arm'])}.")
    if len(undecided):
        needed = undecided.assign(needed=[_needed(row) for _, row in undecided.iterrows()])
        parts = [f"{_names(group['arm'])} ({need})" for need, group in needed.groupby("needed", sort=False)]
        sentences.append(f"Undecided against {baseline}: {'; '.join(parts)}.")
    return [sentence for sentence in [*sentences, *omitted] if sentence]


def _why_not_compared(row: pd.Series, base: pd.Series) -> str:
    """Return the reason why a model with a score has no verdict against the baseline."""
    if row["seeds"] < row["runs"]:
        return "runs are missing"
    if row["metric"] != base["metric"]:
        return "another metric"
    if base["seeds"] < base["runs"]:
        return f"runs of {base['arm']} are missing"
    return OTHER_DATA


VERDICTS = ("better", "worse", "equivalent", "undecided")


def _lead(
    rows: pd.DataFrame, base: pd.Series, by_verdict: dict[str, pd.DataFrame], *, all_others: bool
) -> str:
    """Return the first sentence: the best model, or that no winner is decided.

    Args:
        rows: the models that are compared, the best first.
        base: the row of the baseline.
        by_verdict: the remaining rows by verdict.
        all_others: True if these are all models of the likelihood type.
    """
    better, worse, undecided = (by_verdict[verdict] for verdict in ("better", "worse", "undecided"))
    baseline = base["arm"]
    if len(better):
        winner, more = better.iloc[0], better.iloc[1:]
        suffix = f"; so {_is(more)} {_listed(more)}" if len(more) else ""
        best = f"{winner['arm']} has the best mean, {_score(winner)}"
        return f"{best}, and is better than {baseline} by {_by(winner)}{suffix}."
    if len(undecided):
        lead = rows.iloc[0]
        solved = rows[rows["direction"].eq("higher") & rows["unit"].eq("share")]
        solved = solved[solved["score"] >= solved["solved_from"].astype(float).fillna(SOLVED)]
        if len(solved) > 1:
            winner = f"{_names(solved['arm'])} solve the task"
        else:
            winner = "No winner is decided"
        return f"{winner}. {lead['arm']} has the best mean, {_score(lead)}."
    if len(worse) and not len(by_verdict["equivalent"]):
        who = "all others are worse" if all_others else "all that are compared with it are worse"
        return f"{baseline} wins with {_score(base)}: {who}."
    return f"Nothing is better than {baseline}, which has {_score(base)}."


def _needed(row: pd.Series) -> str:
    """Return what is needed to decide the verdict of a model."""
    reason = row["reason"] if isinstance(row["reason"], str) else ""
    if row["gain_seeds"] < MIN_SEEDS:
        return f"{reason}, and a verdict takes {MIN_SEEDS}"
    if reason:
        return reason
    if pd.isna(row["seeds_to_decide"]):
        return "more than 100 seeds would be needed"
    more = int(row["seeds_to_decide"]) - int(row["gain_seeds"])
    return f"{plural(more, 'more seed')} would decide" if more > 0 else "at the edge of a verdict"


def _cost(row: pd.Series, base: pd.Series) -> str:
    """Return the costs of a model relative to ``base``."""
    parts, equal = [], []
    for key, label in COSTS.items():
        value, base_value = float(row[key]), float(base[key])
        if not (value > 0 and base_value > 0):
            continue
        if abs(value / base_value - 1) < ALIKE:
            equal.append(label)
        else:
            ratio = value / base_value
            parts.append(f"{ratio:.{2 if ratio < 10 else 0}f} times the {label}")
    if not parts:
        return f"It has the same {enumerated(equal)} as {base['arm']}." if equal else ""
    suffix = f", and the same {enumerated(equal)}" if equal else ""
    return f"It has {enumerated(parts)} of {base['arm']}{suffix}."


def _score(row: pd.Series) -> str:
    metric = str(row["metric"]).replace("_", " ")
    return f"{mean_text(row)} {metric} ({plural(row['seeds'], 'seed')})"


def _by(row: pd.Series) -> str:
    """Return the size of a difference, with its interval and p-value."""
    sign = 1 if row["gain"] >= 0 else -1
    low, high = sorted((sign * row["gain_low"], sign * row["gain_high"]))
    p = "" if pd.isna(row["gain_p"]) else f" (p {p_text(row['gain_p'])})"
    unit = " in solve rate" if "solve rate" in str(row["test"]) else ""
    return interval(sign * row["gain"], low, high, 3) + unit + p


def _listed(rows: pd.DataFrame) -> str:
    items = [f"{row['arm']} by {_by(row)}" for _, row in rows.head(MOST_NAMES).iterrows()]
    return enumerated([*items, *_more(len(rows))])


def _names(arms: Iterable[str]) -> str:
    names = list(map(str, arms))
    return enumerated([*names[:MOST_NAMES], *_more(len(names))])


def _more(count: int) -> list[str]:
    return [f"{count - MOST_NAMES} more"] if count > MOST_NAMES else []


def _lines(rows: pd.DataFrame, column: str) -> list[str]:
    """Return the distinct names of reference lines in a column of ``rows``."""
    return list(dict.fromkeys(name for names in rows[column] for name in _line_names(names)))


def _line_names(names: str | None) -> list[str]:
    return names.split(BELOW) if isinstance(names, str) else []


def _is(models: Sized) -> str:
    return "is" if len(models) == 1 else "are"


def enumerated(parts: list[str]) -> str:
    """Return the parts with commas between them, and "and" before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
