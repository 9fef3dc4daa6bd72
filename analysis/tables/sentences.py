"""The answers of a comparison as sentences, which stand before every table and on top of the report.

For each task and likelihood type: what is best, by how much and how surely, what that costs, and what is
undecided with the seeds that would decide it. Everything is a function of the rows that
``analysis.stats.versus_baseline.with_differences`` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

import pandas as pd

from analysis.stats.arms import BELOW, TASK_SCALE, likelihood_group, ranked
from analysis.stats.solve_rates import SOLVED
from analysis.stats.verdicts.family import MIN_SEEDS
from analysis.tables.columns import interval, p_text
from experiments.runtime.console import plural

TYPES = {
    "exact": "exact likelihoods",
    "conditional": "conditional likelihoods",
    "bound": "bounds on the likelihood",
    "pseudo": "pseudo-likelihoods",
}
"""Likelihood types as a sentence has them; a score that is no likelihood has none."""
COSTS = {
    "training_flops": "training FLOPs",
    "training_tokens_per_second": "tokens per second",
    "state_bytes_2k": "decoding state",
}
ALIKE = 0.02
"""Costs that differ by less are said to be equal."""
MOST_NAMES = 6
"""Models that a sentence names at most."""


def answers(arms: pd.DataFrame) -> list[str]:
    """Return the sentences of all tasks, one string for each task and likelihood type.

    Args:
        arms: from ``with_differences``.
    """
    found = []
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        scored = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
        groups = [likelihood_group(row) for _, row in scored.iterrows()]
        for group in dict.fromkeys(groups):
            own = scored[[each == group for each in groups]]
            among = f", {TYPES[group]}" if group in TYPES else ""
            found.append(f"{task}, {scale}{among}: {' '.join(_sentences(own))}")
        if scored.empty:
            found.append(f"{task}, {scale}: no model has a score yet.")
    return found


def _sentences(rows: pd.DataFrame) -> list[str]:
    """Return the sentences about the models of one likelihood type."""
    first, unlearned = rows[ranked(rows)], rows[~ranked(rows)]
    lines = _lines(unlearned, "no_better_than")
    if first.empty:
        return [f"no model has learned the task: none is better than {_joined(lines)}."]
    missed = []
    if not unlearned.empty:
        who = f"{_names(unlearned['arm'])} {_has(unlearned)} not learned the task"
        missed.append(f"{who} and {_is(unlearned)} not ranked: no better than {_joined(lines)}.")
    return [*_verdicts(rows), *missed, *_beyond(first)]


def _beyond(rows: pd.DataFrame) -> list[str]:
    """Return the reference lines that models which have learned the task do not beat.

    That is a line which none of them beats, such as a compressor. A shallow baseline that some models do not
    beat is named with these: they have not shown more than it does. A bound that lies above a line does not
    show that the model is worse than it.
    """
    names = rows["below"].map(_line_names)
    missed = {line: rows.loc[[line in own for own in names], "arm"] for line in _lines(rows, "below")}
    by_all = [line for line, arms in missed.items() if len(arms) == len(rows)]
    none = "No bound is below" if rows["likelihood"].eq("bound").all() else "None is better than"
    found = [f"{none} the reference{'s' * (len(by_all) > 1)} {_joined(by_all)}."] * bool(by_all)
    for line, arms in missed.items():
        if line not in by_all and rows["unit"].eq("share").all():
            found.append(f"{_names(arms)} {_is(arms)} no better than {line}, a reference line.")
    return found


def _verdicts(rows: pd.DataFrame) -> list[str]:
    """Return what wins, how surely, what it costs, and what is undecided.

    Args:
        rows: the models of one likelihood type, of which at least one is ranked. Those that are not are in
            no sentence, but for the baseline that a study names.
    """
    baseline, models = str(rows["baseline"].iloc[0]), len(rows)
    rows = rows[ranked(rows) | rows["arm"].eq(baseline)]
    base = rows[rows["arm"] == baseline].iloc[0]
    others = rows[(rows["arm"] != baseline) & rows["verdict"].notna()]
    left = rows[(rows["arm"] != baseline) & rows["verdict"].isna()]
    reasons = left.assign(why=[_why_not_compared(row, base) for _, row in left.iterrows()])
    apart = [
        f"{_names(own['arm'])} {_is(own)} not compared: {why}."
        for why, own in reasons.groupby("why", sort=False)
    ]
    if others.empty:
        first = rows[ranked(rows)].iloc[0]
        alone = "there is nothing of its type to compare it with"
        if models > 1:
            alone = f"no other model {'is compared with it' if apart else 'has learned the task'}"
        return [f"{first['arm']} has {_score(first)}, and {alone}.", *apart]
    rows = rows.drop(left.index)
    kinds = {kind: _by_size(others[others["verdict"] == kind]) for kind in KINDS}
    lead = _lead(rows, base, kinds, all_others=len(rows) == models)
    sentences = [lead, *_rest(kinds, baseline), *_undecided(kinds["undecided"], baseline), *apart]
    if len(kinds["better"]):
        sentences.insert(1, _cost(kinds["better"].iloc[0], base))
    elif len(kinds["worse"]) and kinds["undecided"].empty:
        sentences.insert(1, _cost(base, kinds["worse"].iloc[0]))
    return [sentence for sentence in sentences if sentence]


def _why_not_compared(row: pd.Series, base: pd.Series) -> str:
    """Return why a model with a score has no verdict against the baseline."""
    if row["seeds"] < row["runs"]:
        return "runs are missing"
    if row["metric"] != base["metric"]:
        return "another metric"
    if base["seeds"] < base["runs"]:
        return f"runs of {base['arm']} are missing"
    return "the runs saw different data"


KINDS = ("better", "worse", "equivalent", "undecided")


def _by_size(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values("gain", ascending=False, kind="stable")


def _lead(rows: pd.DataFrame, base: pd.Series, kinds: dict[str, pd.DataFrame], *, all_others: bool) -> str:
    """Return the first sentence: the winner, or that none is decided.

    Args:
        rows: the models that are compared, the best first.
        base: the baseline's row of them.
        kinds: the others by verdict.
        all_others: True where these are all models of the likelihood type.
    """
    better, worse, undecided, baseline = kinds["better"], kinds["worse"], kinds["undecided"], base["arm"]
    if len(better):
        first, more = better.iloc[0], better.iloc[1:]
        too = f"; so {_is(more)} {_listed(more)}" if len(more) else ""
        return f"{first['arm']} wins with {_score(first)}, better than {baseline} by {_by(first)}{too}."
    if len(undecided):
        lead = rows.iloc[0]
        solved = rows[rows["direction"].eq("higher") & rows["unit"].eq("share")]
        solved = solved[solved["score"] >= solved["solved_from"].astype(float).fillna(SOLVED)]
        if len(solved) > 1:
            first = f"{_names(solved['arm'])} solve the task"
        else:
            first = "No winner is decided"
        return f"{first}. {lead['arm']} has the best mean, {_score(lead)}."
    if len(worse) and not len(kinds["equivalent"]):
        others = "all others are worse" if all_others else "all that are compared with it are worse"
        return f"{baseline} wins with {_score(base)}: {others}."
    return f"Nothing is better than {baseline}, which has {_score(base)}."


def _rest(kinds: dict[str, pd.DataFrame], baseline: str) -> list[str]:
    """Return the sentences on models that are worse than the baseline, or equivalent to it."""
    found = []
    if len(worse := kinds["worse"]):
        found.append(f"Worse than {baseline}: {_listed(worse)}.")
    if len(same := kinds["equivalent"]):
        margin = f" within {float(same['margin'].iloc[0]):g}" if "margin" in same else ""
        found.append(f"Equivalent to {baseline}{margin}: {_names(same['arm'])}.")
    return found


def _undecided(rows: pd.DataFrame, baseline: str) -> list[str]:
    """Return what stays undecided, with the seeds that would decide it or why nothing was tested."""
    if rows.empty:
        return []
    needed = rows.assign(needed=[_needed(row) for _, row in rows.iterrows()])
    parts = [f"{_names(own['arm'])} ({words})" for words, own in needed.groupby("needed", sort=False)]
    return [f"Undecided against {baseline}: {'; '.join(parts)}."]


def _needed(row: pd.Series) -> str:
    """Return what would decide a model, in words."""
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
    """Return what a model costs beside another."""
    parts, alike = [], []
    for key, words in COSTS.items():
        own, other = float(row[key]), float(base[key])
        if not (own > 0 and other > 0):
            continue
        if abs(own / other - 1) < ALIKE:
            alike.append(words)
        else:
            parts.append(f"{_times(own / other)} the {words}")
    if not parts:
        return f"It has the same {_joined(alike)} as {base['arm']}." if alike else ""
    same = f", and the same {_joined(alike)}" if alike else ""
    return f"It has {_joined(parts)} of {base['arm']}{same}."


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times" if ratio < 10 else f"{ratio:.0f} times"


def _score(row: pd.Series) -> str:
    words = str(row["metric"]).replace("_", " ")
    return f"{interval(row['score'], row['low'], row['high'], 3)} {words} ({plural(row['seeds'], 'seed')})"


def _by(row: pd.Series) -> str:
    """Return the size of a difference, with its interval and p-value."""
    sign = 1 if row["gain"] >= 0 else -1
    low, high = sorted((sign * row["gain_low"], sign * row["gain_high"]))
    p = "" if pd.isna(row["gain_p"]) else f" (p {p_text(row['gain_p'])})"
    of = " in solve rate" if "solve rate" in str(row["test"]) else ""
    return interval(sign * row["gain"], low, high, 3) + of + p


def _listed(rows: pd.DataFrame) -> str:
    shown = [f"{row['arm']} by {_by(row)}" for _, row in rows.head(MOST_NAMES).iterrows()]
    return _joined([*shown, *_more(len(rows))])


def _names(arms: Iterable[str]) -> str:
    names = list(map(str, arms))
    return _joined([*names[:MOST_NAMES], *_more(len(names))])


def _more(count: int) -> list[str]:
    return [f"{count - MOST_NAMES} more"] if count > MOST_NAMES else []


def _lines(rows: pd.DataFrame, column: str) -> list[str]:
    """Return the names of reference lines in a column of some models, each once."""
    return list(dict.fromkeys(name for names in rows[column] for name in _line_names(names)))


def _line_names(names: str | None) -> list[str]:
    return names.split(BELOW) if isinstance(names, str) else []


def _has(models: Sized) -> str:
    return "has" if len(models) == 1 else "have"


def _is(models: Sized) -> str:
    return "is" if len(models) == 1 else "are"


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
