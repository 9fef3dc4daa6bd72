"""Tables as text: for the terminal, for the README, and as Markdown.

``render_tables`` is a pure function of the results frame, of fixed width and
without colour, so the same runs always give the same characters.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from io import StringIO

import pandas as pd
from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.stats import against_variable as against
from analysis.stats import likelihood_gap as gap
from analysis.stats import solve_rates as solved
from analysis.stats.arms import TASK_SCALE, arm_table, likelihood_group, matched_line
from analysis.stats.comparisons import ALL_PAIRS, BASELINE, comparisons, verdict_of
from analysis.stats.extra_tests import further_grid, further_scores, published
from analysis.stats.performance_profile import NOTE, across_tasks, profile_grid
from analysis.stats.steps_to_loss import steps_grid
from analysis.stats.verdict_test import BETTER, EQUIVALENT, WORSE
from analysis.stats.versus_baseline import (
    DIFFERENCES,
    DIFFERENCES_NOTE,
    difference_cells,
    verdict_words,
    with_differences,
)
from analysis.stats.warnings import study_warnings
from analysis.tables.format import flops, seconds, si, size

WIDTH = 122
"""Columns of the plain text."""
ARM = 24
"""Least width of the column of models, where a table is too wide."""

HEADERS = (
    "model", "score (n)", "likelihood", "non-emb.", "total", "active", "FLOPs", "tokens", "sec", "tok/s",
    "memory", "state",
)  # fmt: skip
"""Headers of a table: mean score over n seeds, likelihood type, parameters (three columns), training
FLOPs, tokens, seconds and tokens per second, peak memory, decoding state at 2048 tokens."""


def render_tables(frame: pd.DataFrame) -> str:
    """Return the tables of a study as plain text, ``WIDTH`` columns wide. A pure function of the frame."""
    text = StringIO()
    # The height is given because Rich ignores a lone width on a dumb terminal.
    console = Console(file=text, width=WIDTH, height=1000, color_system=None, force_terminal=False)
    console.print(study_text(frame))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n") + "\n"


def study_text(frame: pd.DataFrame) -> RenderableType:
    """Return the tables of a study for a Rich console."""
    arms, pairs = with_differences(frame), comparisons(frame)
    parts: list[RenderableType] = [Text(f"Warning: {w}.", style="yellow") for w in study_warnings(frame)]
    parts += [Text(line) for line in (counts_line(frame), matched_line(frame))]
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        parts.append(Text(f"\n{title(rows)}", style="bold"))
        parts.append(_rich_table(rows))
        here = (pairs["task"] == task) & (pairs["scale"] == scale)
        if (body := [[row["arm"], *difference_cells(row)] for _, row in _compared(rows)]) and here.any():
            parts.append(_rich_grid(["model", *DIFFERENCES], body, left=("verdict",)))
        parts += [Text(f"  {line}") for line in how_compared(pairs[here], DIFFERENCES_NOTE)]
        for name, head, body, note in more_tables(frame, task, scale):
            parts += [Text(f"\n{name}", style="bold"), _rich_grid(head, body)]
            parts += [Text(f"  {note}")] * bool(note)
    for _, rows in across_tasks(frame).groupby("scale", sort=True):
        name, head, body = profile_grid(rows)
        parts += [Text(f"\n{name}", style="bold"), _rich_grid(head, body), Text(f"  {NOTE}")]
    return Group(*parts, *(Text(f"\nPublished: {line}") for line in published(frame)))


def render_markdown(frame: pd.DataFrame) -> str:
    """Return the same tables as Markdown."""
    arms, pairs = with_differences(frame), comparisons(frame)
    head = [*HEADERS, *DIFFERENCES]
    lines = [f"- Warning: {w}." for w in study_warnings(frame)]
    lines += [f"- {line}" for line in (counts_line(frame), matched_line(frame))]
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        lines += ["", f"## {title(rows)}", "", _markdown_row(head), "|" + " --- |" * len(head)]
        lines += [_markdown_row(cells(row) + difference_cells(row)) for _, row in rows.iterrows()]
        here = (pairs["task"] == task) & (pairs["scale"] == scale)
        lines += ["", *(f"- {line}" for line in how_compared(pairs[here], DIFFERENCES_NOTE))]
        for name, head, body, note in more_tables(frame, task, scale):
            lines += ["", f"### {name}", "", _markdown_row(head), "|" + " --- |" * len(head)]
            lines += [_markdown_row(row) for row in body]
            lines += ["", note] * bool(note)
    for _, rows in across_tasks(frame).groupby("scale", sort=True):
        name, head, body = profile_grid(rows)
        lines += ["", f"## {name}", "", _markdown_row(head), "|" + " --- |" * len(head)]
        lines += [*map(_markdown_row, body), "", NOTE]
    lines += ["", "## Published"] * bool(published(frame)) + [f"- {line}" for line in published(frame)]
    return "\n".join(lines) + "\n"


def more_tables(
    frame: pd.DataFrame, task: str, scale: str
) -> list[tuple[str, list[str], list[list[str]], str]]:
    """Return title, header, rows and note of each further table that a study asks for about one task."""
    found = []
    here = frame[(frame["task"] == task) & (frame["scale"] == scale)]
    if not (tests := further_scores(here)).empty:
        name = title(arm_table(here))
        found.append((f"Extra evaluations, {name}", *further_grid(tests), ""))
    if not (rows := gap.gaps(here)).empty:
        found.append((gap.gap_title(rows), *gap.gap_grid(rows), gap.NOTE))
    if not (rows := against.against_scores(here)).empty:
        found.append((against.against_title(rows), *against.against_grid(rows), against.NOTE))
    if not (rows := solved.solve_rates(here)).empty:
        found.append((solved.solved_title(rows), *solved.solved_grid(rows), solved.NOTE))
    if (steps := steps_grid(here, task, scale)) is not None:
        found.append((*steps, ""))
    return found


def counts_line(frame: pd.DataFrame) -> str:
    """Return how many runs, run configurations and seeds a study has."""
    arms = len(frame.groupby(["cell", "digest"]))
    seeds = ", ".join(str(s) for s in sorted(frame["seed"].unique()))
    complete = int((frame["status"] == "complete").sum())
    study = frame["study"].iloc[0]
    return (
        f"Study {study}: {complete} of {len(frame)} runs complete; {arms} run configurations; seeds {seeds}."
    )


def title(rows: pd.DataFrame) -> str:
    """Return the heading of one table."""
    first = rows.iloc[0]
    if not isinstance(first["metric"], str):
        return f"{first['task']}, {first['scale']}: no scores yet"
    name = first["metric"].replace("_", " ")
    mixed = f"; {first['mixed']} ranked as one (--allow-mixed)" if isinstance(first["mixed"], str) else ""
    return f"{first['task']}, {first['scale']}: {name} on test, {first['direction']} is better{mixed}"


def verdicts(rows: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Return, for each likelihood type, its models against the baseline or the best one, in words.

    Args:
        rows: the arms of one task and scale, in order, as from ``arm_table``.
        pairs: their comparisons.
    """
    lines = []
    shown = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
    for likelihood in shown["mixed"].where(shown["mixed"].notna(), shown["likelihood"]).unique():
        same = (pairs["likelihood"] == likelihood) | (pairs["likelihood"].isna() & pd.isna(likelihood))
        found = pairs[same]
        if found.empty:
            continue
        against = found["family"] == BASELINE
        order = [arm for arm in rows["arm"] if arm in {*found["model"], *found["other"]}]
        best = str(found[against]["other"].iloc[0]) if against.any() else order[0]
        among = "" if pd.isna(likelihood) else f"{likelihood}: "
        for other in [arm for arm in order if arm != best]:
            # The baseline stands second; the best model, where there is none, first.
            two = (other, best) if against.any() else (best, other)
            if (pair := verdict_of(found, *two)) is not None:
                lines.append(among + verdict(pair))
    return lines + how_compared(pairs) * bool(lines)


def how_compared(pairs: pd.DataFrame, *notes: str) -> list[str]:
    """Return how the pairs of one task and scale were compared, then the notes; empty without pairs."""
    if pairs.empty:
        return []
    margin, unit = pairs.iloc[0][["margin", "unit"]]
    families = " and ".join(FAMILIES[name] for name in pairs["family"].unique())
    tests = ", ".join(name for name in pairs["test"].unique() if name != "none") or "none"
    how = f"Test: {tests}; p and 95% intervals corrected for {families} of a likelihood type"
    return [f"{how}; margin {margin:g}{'' if unit == 'share' else f' {unit}'}.", *notes]


FAMILIES = {BASELINE: "all models against the baseline", ALL_PAIRS: "all pairs"}
"""Words for the families of ``comparisons``."""


def _compared(rows: pd.DataFrame) -> Iterator[tuple[Hashable, pd.Series]]:
    """Return the rows of ``with_differences`` that have a baseline."""
    return rows[rows["baseline"].notna()].iterrows()


def verdict(pair: pd.Series) -> str:
    """Return one comparison in words."""
    model, other = pair["model"], pair["other"]
    ends = "" if pd.isna(pair["low"]) else f" [{pair['low']:+.4f}, {pair['high']:+.4f}]"
    size = f"{pair['difference']:+.4f}{ends}" + " of solve rates" * ("solve rate" in pair["test"])
    seeds = f"{pair['seeds']} seed" + "s" * int(pair["seeds"] != 1)
    if pair["verdict"] in (BETTER, WORSE):
        return f"{model} is {pair['verdict']} than {other}: {size} (p = {pair['p']:.2g}, {seeds})."
    if pair["verdict"] == EQUIVALENT:
        return f"{model} and {other} are equivalent within {pair['margin']:g}: {size} ({seeds})."
    return f"{model} and {other}: {verdict_words(pair)}; difference {size}, {seeds}."


def cells(row: pd.Series) -> list[str]:
    """Return one row of ``arm_table`` as text, a cell for each header."""
    if row["kind"] == "reference":
        return [row["arm"], f"{row['score']:.3f}", "reference", *[""] * (len(HEADERS) - 3)]
    likelihood = row["likelihood"] if isinstance(row["likelihood"], str) else "-"
    return [
        row["arm"], score_text(row), likelihood,
        si(row["parameters_body"]), si(row["parameters_total"]), si(row["parameters_active"]),
        flops(row["training_flops"]), si(row["training_tokens"]), seconds(row["training_seconds"]),
        si(row["training_tokens_per_second"]), size(row["training_peak_memory_bytes"]),
        "none" if row["state_bytes_2k"] == 0 else size(row["state_bytes_2k"]),
    ]  # fmt: skip


def score_text(row: pd.Series) -> str:
    """Mean, interval and seeds; the status of an arm without any score."""
    if not row["seeds"]:
        return f"{row['status']} (0 of {row['runs']})"
    interval = "" if pd.isna(row["half_width"]) else f" ± {row['half_width']:.3f}"
    count = str(row["seeds"]) if row["seeds"] == row["runs"] else f"{row['seeds']} of {row['runs']}"
    return f"{row['score']:.3f}{interval} ({count})"


def _rich_table(rows: pd.DataFrame) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(HEADERS):
        side: JustifyMethod = "left" if index in (0, 2) else "right"
        table.add_column(name, justify=side, no_wrap=index > 0, overflow="fold")
    group = None
    for _, row in rows.iterrows():
        here = likelihood_group(row)
        if group is not None and here != group:
            table.add_section()
        group = here
        table.add_row(*cells(row), style="dim" if here == "reference" else None)
    return table


def _rich_grid(head: list[str], rows: list[list[str]], left: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(head):
        if index == 0:
            table.add_column(name, overflow="fold", min_width=min(ARM, max(len(row[0]) for row in rows)))
        else:
            table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _markdown_row(values: list[str]) -> str:
    return "| " + " | ".join(v.replace("|", "\\|") for v in values) + " |"
