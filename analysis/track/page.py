"""The results of a track as Markdown, which is written between two marks of its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from archbench.analysis.declared.tracks import Track
from archbench.analysis.stats.arms import ranked
from archbench.analysis.stats.targets.target_profiles import FACTORS, performance_profiles
from archbench.analysis.stats.verdicts.verdict import BETTER, UNDECIDED
from archbench.analysis.tables.markdown import escaped, table
from archbench.analysis.track.results import both_directions, unbeaten
from archbench.experiments.runtime.console import plural

BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class TrackResults:
    """All tables of a track, for its page and its CSV files."""

    runs: pd.DataFrame
    """From ``analysis.declared.scored_runs.scored_runs``."""
    arms: pd.DataFrame
    """From ``analysis.stats.arms.arm_table``."""
    pairs: pd.DataFrame
    """From ``analysis.stats.pairs.pair_verdicts``."""
    scores: pd.DataFrame
    """From ``analysis.track.results.score_table``."""
    reached: pd.DataFrame
    """From ``analysis.stats.targets.target_profiles.to_target``."""
    carried: pd.DataFrame
    """From ``analysis.track.results.carried_over``."""
    early: pd.DataFrame
    """From ``analysis.track.early.early_decisions``."""
    slices: pd.DataFrame
    """From ``analysis.stats.text_slices.slice_table``."""


def track_markdown(track: Track, results: TrackResults) -> str:
    """Return the results of a track: a sentence, the figure, and the tables that are on the page."""
    counts = ", ".join(f"{n} {status}" for status, n in results.runs["status"].value_counts().items())
    missing = [
        workload.name for workload in track.workloads if workload.name not in set(results.runs["task"])
    ]
    counts += f"; {NOT_RUN}: {', '.join(missing)}" * bool(missing)
    lines = [f"Runs with test seeds: {escaped(counts)}."]
    if (results.runs["status"] == "complete").any():
        compared = both_directions(results.pairs)
        if not compared.empty:
            figure = f"![Models by workloads]({track.name}.svg)"
            summary = _summary(track, results, compared)
            undefeated = unbeaten(compared, results.arms)
            listed = ", ".join(f"{model} {count}" for model, count in undefeated.items())
            sentence = (
                f"Workloads (of {len(track.workloads)}) that a model has learned, and on which "
                f"no model of the same likelihood type is better: {listed}."
            )
            lines = [sentence, "", figure, "", *lines, "", *summary]
        lines += ["", "## Scores", "", *_scores(track, results)]
        lines += ["", "## Performance profiles", "", *_profiles(results.reached)]
        lines += ["", "## Held-out variants", "", *_held_out(results.carried)]
        lines += ["", "## Decisions before the end", "", *_early(results.early)]
        lines += ["", "## Data", "", *_files(track, results)]
    return "\n".join(lines) + "\n"


def fill_page(page: str, tables: str) -> str:
    """Return a page with its tables replaced. Raises ValueError if it has no marks for them."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page has no lines {BEGIN} and {END} for the tables")
    head, rest = page.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{tables}{END}{rest.split(END, 1)[1]}"


def verdict_lines(pairs: pd.DataFrame, models: Sequence[str]) -> list[str]:
    """Return a line for each comparison (``TrackResults.pairs``) that one of the models is part of."""
    chosen = pairs[pairs["model"].isin(models) | pairs["other"].isin(models)]
    return [
        f"{row.task}: {row.model} against {row.other}: {row.verdict}, "
        f"{row.difference:+.3g} [{row.low:.3g}, {row.high:.3g}]"
        for row in chosen.itertuples()
    ]


def _summary(track: Track, results: TrackResults, compared: pd.DataFrame) -> list[str]:
    """Return a table of the best model of each workload and likelihood type, with its verdicts."""
    arms = results.arms[ranked(results.arms)]
    rows = []
    for workload in track.workloads:
        task_arms = arms[arms["task"] == workload.name]
        for likelihood, group in task_arms.groupby("likelihood", dropna=False, sort=True):
            best_model = group.iloc[0]
            against = compared[(compared["task"] == workload.name) & (compared["model"] == best_model["arm"])]
            open_ = against[against["verdict"] != BETTER]["other"].sort_values()
            # A pseudo-likelihood does not encode the text, so no compressor is comparable.
            references = results.arms[
                (results.arms["kind"] == "reference") & (results.arms["task"] == workload.name)
            ]
            line = "-"
            if likelihood != "pseudo" and len(references):
                line = f"{references.iloc[-1]['score']:.3f} {references.iloc[-1]['arm']}"
            type_ = likelihood if isinstance(likelihood, str) else "-"
            better = f"{len(against) - len(open_)} of {len(against)}"
            names = ", ".join(open_) or "-"
            score, low, high = best_model[["score", "low", "high"]]
            score_text = f"{score:.3f}" + ("" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]")
            rows.append([workload.name, type_, best_model["arm"], score_text, better, names, line])
    head = ["workload", "likelihood", "best model", "score", "better than", "not better than", "reference"]
    note = (
        "Score: mean over seeds with its 95% interval. Reference: the best of chance, shallow baselines and "
        "compressors. Verdicts: [statistics](../statistics.md)."
    )
    return [*table(head, rows), "", note]


def _scores(track: Track, results: TrackResults) -> list[str]:
    """Return a table of mean scores by model and workload, and the reasons of missing scores."""
    runs, arms = results.runs, results.arms[results.arms["kind"] == "arm"]
    names = [workload.name for workload in track.workloads if workload.name in set(runs["task"])]
    models = [*dict.fromkeys([*track.backbones, *sorted(runs["arm"].unique())])]
    rows = []
    for model in [m for m in models if m in set(runs["arm"])]:
        cells = arms[arms["arm"] == model].set_index("task")
        rows.append([model, *(_cell(cells.loc[name]) if name in cells.index else NOT_RUN for name in names)])
    file = f"{track.name}_scores.csv"
    note = (
        f"Means over seeds; [{file}]({file}) has the intervals. In brackets: no better than a baseline "
        "without learning, and not ranked. Bits per byte of different likelihood types (p: pseudo, "
        "b: bound, c: conditional) are not compared."
    )
    lines = [*table(["model", *names], rows), "", note]
    missing = runs[runs["status"] != "complete"]
    for (task, model_name), failed in missing.groupby(["task", "arm"], sort=True):
        reason = " ".join(str(failed["message"].iloc[0] or "").split()).partition(". ")[0]
        line = f"{model_name} on {task}: {failed['status'].iloc[0]} ({plural(len(failed), 'run')}): {reason}"
        lines.append(f"- {escaped(line)}")
    return lines


def _cell(row: pd.Series) -> str:
    """Return a score with the mark of its likelihood type, or the status of runs without a score."""
    if not row["seeds"]:
        return str(row["status"])
    mark = {"pseudo": " p", "bound": " b", "conditional": " c"}.get(str(row["likelihood"]), "")
    text = f"{row['score']:.3f}" if row["learned"] else f"({row['score']:.3f})"
    return f"{text}{mark}" if row["metric"] == "bits_per_byte" else text


def _profiles(reached: pd.DataFrame) -> list[str]:
    profiles = performance_profiles(reached)
    rows = [
        [row["arm"], str(row["workloads"]), *(f"{row[factor]:.2f}" for factor in FACTORS)]
        for _, row in profiles.iterrows()
    ]
    head = ["model", "workloads", *(f"within {factor:g}" for factor in FACTORS)]
    note = (
        "Fraction of the workloads on which a model reaches the target within this multiple of the FLOPs of "
        "the cheapest model."
    )
    return [*table(head, rows), "", note]


def _held_out(carried: pd.DataFrame) -> list[str]:
    if carried.empty:
        return ["No variant has been scored yet."]
    rows = [[str(value) for value in row] for row in carried.itertuples(index=False)]
    head = ["workload", "variant", "decided pairs", "same verdict", "reversed", UNDECIDED]
    return [*table(head, rows), "", "Verdicts on the variant, of pairs that are decided on the workload."]


def _early(early: pd.DataFrame) -> list[str]:
    """Return a table of how well scores before the end of training predict the order of models."""
    if early.empty:
        return ["No workload has three models with validation scores before the end."]
    fractions = sorted(early["fraction"].unique())
    rows = []
    for (task, likelihood), group in early.groupby(["task", "likelihood"], dropna=False, sort=False):
        first, by_fraction = group.iloc[0], group.set_index("fraction")
        ratio = first["signal_to_noise"]
        order = [_of(by_fraction.loc[f, "same_order"], first["pairs"]) for f in fractions]
        decided = [_of(by_fraction.loc[f, "decided_same"], first["decided"]) for f in fractions]
        type_ = likelihood if isinstance(likelihood, str) else "-"
        ratio_text = "-" if math.isnan(ratio) else f"{ratio:.1f}"
        rows.append([str(task), type_, str(first["models"]), ratio_text, *order, *decided])
    head = ["workload", "likelihood", "models", "signal to noise"]
    head += [f"same order at {f:.0%}" for f in fractions] + [f"decided pairs at {f:.0%}" for f in fractions]
    note = (
        "Signal to noise: range of the models' mean scores over the standard deviation between seeds. Same "
        "order: pairs of models whose mean validation scores after this fraction of the steps have the "
        "order of their final scores (ties count as half); decided pairs: the same for pairs with a "
        "verdict. Learning rates have not decayed at these points, so a run of this length may do better."
    )
    return [*table(head, rows), "", note]


def _of(count: float, total: float) -> str:
    return f"{count / total:.0%} of {total:.0f}" if total else "-"


def _files(track: Track, results: TrackResults) -> list[str]:
    """Return the list of CSV files."""
    files = {
        "pairs": "every comparison of two models: difference, interval, p, verdict, minimum detectable "
        "difference, and seeds that would decide it",
        "scores": "every model on every workload and held-out variant: score, interval, decoding state, "
        "learning rate (`edge`: at an edge of the grid), tokens and FLOPs to the target (medians over runs; "
        "`inf`: most runs do not reach it)",
        "slices": "bits per token of each slice of a text, and the gain over the decoder, otherwise over the "
        "best model of the likelihood type",
    }
    names = {key: f"{track.name}_{key}.csv" for key in files if not getattr(results, key).empty}
    return [f"- [{name}]({name}): {files[key]}." for key, name in names.items()]
