"""The table and the curve of ``experiments.evaluation.sample_quality``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich.table import Table

from archbench.experiments.runtime.console import plain_table, plus_minus
from archbench.experiments.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Row:
    """A point of the curve of quality against steps."""

    text: str
    """``samples``, or ``real`` for text of the test split."""
    steps: int | None
    """Requested steps; None where there are none to choose."""
    passes: float | None
    """Forward passes for a batch, on average."""
    tokens_per_second: float | None
    """Tokens generated for all samples, over the seconds it took."""
    perplexity: float
    """exp of the nats per token of the judge, over all texts."""
    perplexity_error: float
    """Its standard error over texts."""
    bits_per_byte: float
    """The judge's bits over all bytes: it depends on no tokenizer."""
    entropy: float
    """Mean over texts of the entropy of the token counts in a text, nats."""
    entropy_error: float
    """Its standard error over texts."""
    distinct_1: float
    """Different tokens over all tokens, of all texts."""
    distinct_2: float
    """The same of pairs of tokens."""
    distinct_3: float
    """The same of triples."""
    tokens: int
    """Tokens of all texts."""


def render(rows: Sequence[Row]) -> Table:
    """Return the table."""
    distinct = ("dist-1", "dist-2", "dist-3")
    table = plain_table(
        "text", "steps", "passes", "tok/s", "gen. perplexity", "bits/byte", "entropy", *distinct
    )
    for row in rows:
        steps, passes = ("" if x is None else f"{x:g}" for x in (row.steps, row.passes))
        table.add_row(
            row.text, steps, passes, "" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}",
            f"{row.perplexity:.2f}{plus_minus(row.perplexity_error, 2)}", f"{row.bits_per_byte:.3f}",
            f"{row.entropy:.3f}{plus_minus(row.entropy_error, 3)}",
            *(f"{value:.3f}" for value in (row.distinct_1, row.distinct_2, row.distinct_3)),
        )  # fmt: skip
    return table


def write(rows: Sequence[Row], folder: Path, title: str) -> None:
    """quality.csv and quality.html. Raises ConfigError where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "quality.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, [f.name for f in fields(Row)])
            table.writeheader()
            table.writerows(asdict(row) for row in rows)
        curve(rows, title).write_html(folder / "quality.html", include_plotlyjs=True)
    except OSError as error:
        raise ConfigError(f"output={folder}: cannot be written: {error}") from error


def curve(rows: Sequence[Row], title: str):  # type: ignore[no-untyped-def]
    """Perplexity and entropy against steps and against speed, real text as a line across."""
    from plotly.subplots import make_subplots  # imports in a second, which would delay every command

    figure = make_subplots(rows=2, cols=2, shared_yaxes=True, vertical_spacing=0.08)
    samples = [row for row in rows if row.text == "samples"]
    for line, name in enumerate(("perplexity", "entropy"), start=1):
        for column, axis in enumerate(("passes", "tokens_per_second"), start=1):
            figure.add_scatter(
                x=[getattr(row, axis) for row in samples],
                y=[getattr(row, name) for row in samples],
                error_y={"array": [getattr(row, f"{name}_error") for row in samples]},
                text=[f"{row.steps} steps" for row in samples],
                mode="lines+markers",
                marker={"color": "#0072B2"},
                row=line,
                col=column,
            )
            for real in (row for row in rows if row.text == "real"):
                figure.add_hline(getattr(real, name), line_dash="dot", row=line, col=column)
            figure.update_xaxes(title_text=axis.replace("_", " "), type="log", row=line, col=column)
        figure.update_yaxes(title_text=name, row=line, col=1)
    figure.update_layout(title={"text": title, "font": {"size": 12}}, showlegend=False, height=700)
    return figure
