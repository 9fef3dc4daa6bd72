"""The tables of a track as Markdown, which its page holds between two marks, and as text for the terminal."""

from __future__ import annotations

import math

import pandas as pd

from analysis.stats.comparisons import comparisons
from analysis.stats.targets.target_profiles import FACTORS, performance_profiles, to_target
from analysis.stats.text_slices import slice_table
from analysis.stats.verdicts.verdict_test import BETTER, EQUIVALENT, UNDECIDED, WORSE
from analysis.stats.versus_baseline import with_differences
from analysis.tables.format import si
from analysis.tables.markdown import escaped, table
from analysis.tables.sentences import answers
from analysis.tables.slices import slice_grids
from analysis.track.families import cells, fronts, strengths, undecided
from analysis.track.results import carried_over, held_out, tally
from analysis.track.rules import Track
from experiments.runtime.console import plural

BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"
NOT_RUN = "not run"
REFERENCE = "decoder"
"""The model whose gains and losses by slice of a text the others are shown against."""
ALONE = 4
"""Columns of a table of slices that has no model but its baseline."""


def track_markdown(track: Track, runs: pd.DataFrame, tuning: pd.DataFrame) -> str:
    """Return the results of a track.

    Args:
        runs: from ``analysis.track.results.scored_runs``.
        tuning: the chosen learning rates, from ``analysis.track.tuning.write_rates``.
    """
    lines = [_state(track, runs)]
    if (runs["status"] == "complete").any():
        reached = to_target(runs, {w.name: w.target for w in track.workloads if w.target is not None})
        if not comparisons(runs).empty:
            lines += ["", f"![Models by workloads]({track.page.replace('.md', '.svg')})"]
        lines += ["", "### Answers", "", *(f"- {escaped(line)}" for line in answers(with_differences(runs)))]
        lines += ["", "### Strengths of each model", "", *_strengths(track, runs)]
        lines += ["", "### Scores", "", *_scores(track, runs)]
        lines += ["", "### Verdicts", "", *_tally(comparisons(runs))]
        lines += ["", "### Undecided pairs", "", *_undecided(runs)]
        lines += ["", "### Score against decoding state", "", *_fronts(track, runs)]
        lines += ["", "### Tokens and FLOPs to the target", "", *_targets(reached)]
        lines += ["", "### Performance profiles", "", *_profiles(reached)]
        if slices := _slices(runs):
            lines += ["", "### What a language model has learned", "", *slices]
        lines += ["", "### Held-out variants", "", *_held_out(track, runs)]
    if not tuning.empty:
        lines += ["", "### Learning rates", "", *_rates(tuning)]
    return "\n".join(lines) + "\n"


def fill_page(page: str, tables: str) -> str:
    """Return a page with its tables replaced. Raises ValueError where it has no marks for them."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page has no lines {BEGIN} and {END} for the tables")
    head, rest = page.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{tables}{END}{rest.split(END, 1)[1]}"


def _state(track: Track, runs: pd.DataFrame) -> str:
    """Return how much of the track has been run."""
    parts = []
    for workload in track.workloads:
        own = runs[runs["task"] == workload.name]
        done = int((own["status"] == "complete").sum())
        others = own[own["status"] != "complete"]["status"].value_counts()
        more = "".join(f", {count} {status}" for status, count in others.items())
        parts.append(f"{workload.name} {f'{done} complete{more}' if len(own) else NOT_RUN}")
    return f"Runs with test seeds: {escaped('; '.join(parts))}."


def _scores(track: Track, runs: pd.DataFrame) -> list[str]:
    """Return a table of mean scores: a model a row, a workload a column; then the cells without a score."""
    arms = with_differences(runs)
    names = [w.name for w in track.workloads if w.name in set(runs["task"])]
    models = [*dict.fromkeys([*track.backbones, *sorted(runs["arm"].unique())])]
    rows = []
    for model in [m for m in models if m in set(runs["arm"])]:
        own = arms[(arms["kind"] == "arm") & (arms["arm"] == model)].set_index("task")
        rows.append([model, *(_score(own.loc[name]) if name in own.index else NOT_RUN for name in names)])
    rows.append(["best reference", *(_line(arms, name) for name in names)])
    lines = [*table(["model", *names], rows), ""]
    lines.append(
        "Mean over seeds with its 95% interval; in brackets: no better than what needs no learning, and so "
        "not ranked. Best reference: chance, a shallow baseline or a compressor. "
        "Bits per byte of different likelihood types (p: pseudo, b: bound, c: conditional) are not compared."
    )
    missing = runs[runs["status"] != "complete"]
    for (task, arm), own in missing.groupby(["task", "arm"], sort=True):
        reason = " ".join(str(own["message"].iloc[0] or "").split()).partition(". ")[0]
        line = f"{arm} on {task}: {own['status'].iloc[0]} ({plural(len(own), 'run')}): {reason}"
        lines.append(f"- {escaped(line)}")
    return lines


def _score(row: pd.Series) -> str:
    if not row["seeds"]:
        return str(row["status"])
    kind = {"pseudo": " p", "bound": " b", "conditional": " c"}.get(str(row["likelihood"]), "")
    bytes_ = row["metric"] == "bits_per_byte"
    text = f"{row['score']:.3f}"
    if not math.isnan(row["low"]):
        text += f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{text}{kind * bytes_}" if row["learned"] else f"({text}){kind * bytes_}"


def _line(arms: pd.DataFrame, task: str) -> str:
    """Return the best reference line of a workload."""
    own = arms[(arms["kind"] == "reference") & (arms["task"] == task)]
    if own.empty:
        return "-"
    best = own.iloc[-1]
    return f"{best['score']:.3f} {best['arm']}"


def _strengths(track: Track, runs: pd.DataFrame) -> list[str]:
    found = strengths(track, with_differences(runs), comparisons(runs))
    head = ["model", "reaches the target of", "leads on", "between", "behind on", "open"]
    note = (
        "Leads: better than more models of its likelihood type than it is worse than; behind: the other way "
        "round; open: undecided against all, or the only one of its type."
    )
    return [*table(head, cells(found)), "", note]


def _undecided(runs: pd.DataFrame) -> list[str]:
    return [f"- {escaped(line)}" for line in undecided(comparisons(runs))] or ["None."]


def _fronts(track: Track, runs: pd.DataFrame) -> list[str]:
    found = fronts(track, with_differences(runs))
    note = (
        "Models that no other of their likelihood type beats in both score and bytes of decoding state after "
        "2,048 tokens (Pareto front), from the smallest state to the largest. Models that have not learned "
        "the workload and those without a decoding state are left out."
    )
    return [*table(["workload", "likelihood", "front"], cells(found)), "", note]


def _tally(pairs: pd.DataFrame) -> list[str]:
    counts = tally(pairs)
    if counts.empty:
        return ["No two models can be compared yet."]
    words = [word for word in (BETTER, WORSE, EQUIVALENT, UNDECIDED) if word in counts]
    order = counts.sort_values(["task", "likelihood", words[0]], ascending=[True, True, False])
    rows = [
        [row["task"], row["likelihood"] if isinstance(row["likelihood"], str) else "-", row["model"],
         *(str(row[word]) for word in words)]
        for _, row in order.iterrows()
    ]  # fmt: skip
    note = (
        "Of the other models of its likelihood type, how many a model is better than, and so on. Two models "
        "of which neither has learned the workload are not compared."
    )
    return [*table(["workload", "likelihood", "model", *words], rows), "", note]


def _targets(reached: pd.DataFrame) -> list[str]:
    rows = [
        [
            row["task"], f"{row['target']:g}", row["arm"], f"{row['reached']} of {row['runs']}",
            *(si(row[cost]) if math.isfinite(row[cost]) else "not reached" for cost in ("tokens", "flops")),
        ]
        for _, row in reached.sort_values(["task", "flops", "arm"]).iterrows()
    ]  # fmt: skip
    note = (
        "Medians over runs; a run that never reaches the target counts as infinite. On the validation split."
    )
    return [*table(["workload", "target", "model", "runs", "tokens", "FLOPs"], rows), "", note]


def _profiles(reached: pd.DataFrame) -> list[str]:
    profiles = performance_profiles(reached)
    rows = [
        [row["arm"], str(row["workloads"]), *(f"{row[factor]:.2f}" for factor in FACTORS)]
        for _, row in profiles.iterrows()
    ]
    head = ["model", "workloads", *(f"within {factor:g}" for factor in FACTORS)]
    note = (
        "Fraction of the workloads whose target somebody reaches on which a model reaches it with at most so "
        "many times the FLOPs of the cheapest (performance profile)."
    )
    return [*table(head, rows), "", note]


def _slices(runs: pd.DataFrame) -> list[str]:
    """Return for each text the gains on its slices over ``REFERENCE``, or else the best of the type."""
    lines: list[str] = []
    for name, head, body, note in slice_grids(slice_table(runs.assign(baseline=REFERENCE))):
        if len(head) > ALONE:
            lines += [f"{escaped(name)}:", "", *table(head, body), "", escaped(note), ""]
    return lines[:-1]


def _held_out(track: Track, runs: pd.DataFrame) -> list[str]:
    scores = held_out(track, runs)
    if scores.empty:
        return ["None has been scored yet."]
    lines = []
    wide = scores.pivot_table(index="arm", columns=["task", "variant"], values="score")
    head = ["model", *(f"{task}: {variant}" for task, variant in wide.columns)]
    rows = [
        [str(arm), *("-" if math.isnan(value) else f"{value:.3f}" for value in values)]
        for arm, values in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    lines += [*table(head, rows), ""]
    carried = carried_over(track, runs)
    rows = [[str(value) for value in row] for row in carried.itertuples(index=False)]
    head = ["workload", "variant", "decided pairs", "same verdict", "reversed", "undecided there"]
    return lines + table(head, rows)


def _rates(best: pd.DataFrame) -> list[str]:
    names = list(dict.fromkeys(best["task"]))
    rows = []
    for arm, own in best.groupby("backbone", sort=True):
        found = {r["task"]: f"{r['learning_rate']:g}{'*' if r['edge'] else ''}" for _, r in own.iterrows()}
        rows.append([str(arm), *(found.get(name, "-") for name in names)])
    return [
        *table(["model", *names], rows),
        "",
        "\\*: at the edge of the grid, which is the same for every model.",
    ]
