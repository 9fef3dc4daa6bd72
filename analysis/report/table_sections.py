"""The report's parts that are tables and words: scores, speed, every pair, every run, provenance."""

from __future__ import annotations

from html import escape

import pandas as pd

from analysis.figures.style import styles
from analysis.load.arm_names import config_differences
from analysis.report.html import bullets, dot, grid, text_row
from analysis.stats.arms import TASK_SCALE, arm_table, comparisons, likelihood_group
from analysis.stats.performance_profile import NOTE, across_tasks, profile_grid
from analysis.stats.ranks import ranks
from analysis.stats.run_costs import COST_HEAD, COST_NOTE, cost_rows
from analysis.tables.format import flops, seconds, si, size
from analysis.tables.text import HEADERS, cells, title, verdict, verdicts
from experiments.tasks.likelihood import LIKELIHOOD_TYPES


def verdict_tables(frame: pd.DataFrame) -> str:
    arms, pairs, style = arm_table(frame), comparisons(frame), styles(frame)
    parts = [
        "<p>Click a header to sort. <em>rank</em>: the range of ranks within the likelihood type that the "
        "separated pairs allow.</p>"
    ]
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        here_pairs = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        place, lines, before = ranks(rows, here_pairs), [], None
        noted = bool(rows[rows["kind"] == "arm"]["message"].notna().any())
        for _, row in rows.iterrows():
            here = likelihood_group(row)
            css = "reference " * (here == "reference") + "class" * (before not in (None, here))
            before = here
            name, *text = (escape(c) for c in cells(row))
            name = dot(style.get(row["arm"], {}).get("color", "transparent")) + name
            note = escape(row["message"]) if isinstance(row["message"], str) else ""
            last = f'<td class="wide">{note}</td>' * noted
            if here == "reference":  # it has a score and no more: what it is stands in the empty cells
                text, empty = text[:2], len(text) - 2 + noted
                last = f'<td class="spread" colspan="{empty}">{note}</td>'
            line = "".join(f"<td>{c}</td>" for c in (name, place.get(row["arm"], ""), *text))
            lines.append(f'<tr class="{css}">{line}{last}</tr>')
        table = grid([HEADERS[0], "rank", *HEADERS[1:], *["note"] * noted], lines, "sortable")
        parts.append(f"<h3>{escape(title(rows))}</h3>{table}")
        parts.append(bullets(verdicts(rows, here_pairs), "verdicts"))
    return "".join(parts)


def speed_table(frame: pd.DataFrame) -> str:
    lines = []
    arms = arm_table(frame)
    for _, row in arms[arms["kind"] == "arm"].iterrows():
        share = row["training_data_share"]
        values = [
            row["arm"], f"{row['task']}, {row['scale']}", si(row["training_tokens_per_second"]),
            seconds(row["training_seconds"]), flops(row["training_flops"] / row["training_seconds"]),
            flops(row["flops_per_token"]), "-" if pd.isna(share) else f"{share:.1%}",
            size(row["training_peak_memory_bytes"]),
            "none" if row["state_bytes_2k"] == 0 else size(row["state_bytes_2k"]),
        ]  # fmt: skip
        lines.append(text_row(values))
    head = [
        "model", "task", "tokens/s", "seconds", "FLOP/s", "FLOPs per token", "waiting for data",
        "peak memory", "decoding state at 2048 tokens",
    ]  # fmt: skip
    return f"<p>Training, means over seeds.</p>{grid(head, lines)}"


def meanings() -> str:
    items = "".join(f"<li><strong>{k}</strong>: {escape(v)}.</li>" for k, v in LIKELIHOOD_TYPES.items())
    return (
        f"<h3>Likelihood types</h3><ul>{items}</ul>"
        "<p>Scores of different types are not comparable and are not ranked against each other, unless a "
        "table says so. Answer accuracy is not a likelihood, so all models are in one ranking.</p>"
    )


def every_pair(frame: pd.DataFrame) -> str:
    pairs = comparisons(frame)
    items = [f"{p['task']}, {p['scale']}: {verdict(p)}" for _, p in pairs.iterrows()]
    summary = f"<summary>{len(items)} comparisons</summary>"
    return f"<h3>Every pair</h3><details>{summary}{bullets(items, 'pairs')}</details>"


def every_run(frame: pd.DataFrame) -> str:
    lines = []
    for _, run in frame.iterrows():
        score = "-" if pd.isna(run["score"]) else f"{run['score']:.6f}"
        message = run["message"] if isinstance(run["message"], str) else ""
        place = f"{run['task']}, {run['scale']}"
        values = [run["arm"], place, str(run["seed"]), run["status"], score, run["digest"], message]
        lines.append(text_row(values))
    head = ["model", "task", "seed", "status", "score", "digest", "message"]
    summary = f"<summary>{len(frame)} runs</summary>"
    return f"<h3>Every run</h3><details>{summary}{grid(head, lines)}</details>"


def provenance(frame: pd.DataFrame) -> str:
    labels = {
        "git_commit": "commit", "git_dirty": "uncommitted changes", "fingerprint": "data",
        "device_name": "device", "device_processor": "processor", "device_threads": "threads",
        "device_precision": "precision", "versions": "versions", "kernels": "kernels", "command": "command",
    }  # fmt: skip
    lines = []
    for column, label in labels.items():
        counts = frame[column].dropna().astype(str).value_counts(sort=True)
        found = "<br>".join(
            f'{escape(str(value))} <span class="soft">({n} runs)</span>' for value, n in counts.items()
        )
        lines.append(f'<tr><td>{label}</td><td class="wide">{found or "not recorded"}</td></tr>')
    return f"<h3>Provenance</h3>{grid(['', ''], lines)}"


def differences(frame: pd.DataFrame) -> str:
    """Return the settings in which models of one table differ: a table for each task, a model a column."""
    found = config_differences(frame)
    if found.empty:
        return '<p class="soft">The runs left no configurations, or all models have the same.</p>'
    parts = []
    for (task, scale), rows in found.groupby(TASK_SCALE, sort=True):
        arms = [c for c in rows.columns if c not in (*TASK_SCALE, "setting") and c in frame["arm"].tolist()]
        arms = [arm for arm in arms if rows[arm].notna().any()]
        lines = [
            text_row([row["setting"], *("-" if pd.isna(row[arm]) else str(row[arm]) for arm in arms)])
            for row in rows.astype(object).to_dict("records")
        ]
        parts.append(f"<h3>{escape(f'{task}, {scale}')}</h3>{grid(['setting', *arms], lines)}")
    return f"<details><summary>{len(found)} settings</summary>{''.join(parts)}</details>"


def over_tasks(frame: pd.DataFrame) -> str:
    """Return interquartile means over tasks; empty below three tasks scored by fractions."""
    parts = []
    for _, rows in across_tasks(frame).groupby("scale", sort=True):
        name, head, body = profile_grid(rows)
        table = grid(head, [text_row(row) for row in body], "sortable")
        parts.append(f"<h3>{escape(name)}</h3>{table}<p>{escape(NOTE)}</p>")
    return "".join(parts)


def costs(frame: pd.DataFrame) -> str:
    """Return the table of outcomes and costs of the runs."""
    table = grid(COST_HEAD, [text_row(row) for row in cost_rows(frame)], "sortable")
    return f"{table}<p>{escape(COST_NOTE)}</p>"
