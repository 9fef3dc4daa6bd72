"""The paired tables of study=canon: each mixer without convolution, with its own, and with canon layers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.figures.style import PALETTE, SYMBOLS, make_panels
from archbench.analysis.stats.compute.multipliers import Budget, shared_lead
from archbench.analysis.stats.intervals import mean_interval
from archbench.analysis.tables import markdown

FORMS = {
    "decoder": ("decoder", "", "decoder_canon", ""),
    "gated_deltanet": (
        "gated_deltanet_no_convolution", "gated_deltanet", "gated_deltanet_canon_only",
        "gated_deltanet_canon",
    ),
    "mamba": ("mamba_no_convolution", "mamba", "mamba_canon_only", "mamba_canon"),
    "s4": ("s4", "", "s4_canon", ""),
    "encoder": ("encoder", "", "encoder_canon", ""),
}  # fmt: skip
"""Models of each mixer: without short convolution, with its own, with canon layers instead, with both."""
HEAD = ["mixer", "no short convolution", "its own", "canon layers", "both"]
MIXERS = ("mamba", "gated_deltanet", "s4")
"""Mixers with exact likelihoods, which are compared with the decoder."""


def scores(frame: pd.DataFrame, task: str, model: str) -> np.ndarray:
    """Return the scores of the seeds of a model, in the order of the seeds."""
    runs = frame[(frame["task"] == task) & (frame["backbone"] == model)].sort_values("seed")
    assert runs["seed"].tolist() == [0, 1, 2], model
    return runs["score"].to_numpy(dtype=float)


def form_rows(frame: pd.DataFrame, task: str) -> list[list[str]]:
    """Return the mean and standard deviation over seeds of each model."""
    rows = []
    for mixer, models in FORMS.items():
        cells = [scores(frame, task, model) if model else None for model in models]
        name = f"{mixer} (pseudo-likelihood)" if mixer == "encoder" and task == "text" else mixer
        rows.append([name, *("-" if c is None else f"{c.mean():.3f} ({c.std(ddof=1):.3f})" for c in cells)])
    return rows


def lead(better: np.ndarray, worse: np.ndarray) -> str:
    """Return by how much the second model's loss is larger, paired by seed, with its 95% interval."""
    estimate = mean_interval((worse - better).tolist())
    return f"{estimate.mean:+.3f} ± {estimate.half_width:.3f}"


def lead_rows(frame: pd.DataFrame) -> list[list[str]]:
    """Return the leads of each mixer over the decoder on text, and how much of them canon layers explain."""
    decoder, with_canon = scores(frame, "text", "decoder"), scores(frame, "text", "decoder_canon")
    rows = []
    for mixer in MIXERS:
        none, own, canon, _ = (scores(frame, "text", name) if name else None for name in FORMS[mixer])
        assert none is not None
        assert canon is not None
        published = none if own is None else own
        share = shared_lead(*(_budget(part) for part in (with_canon, published, decoder)))
        text = "-" if math.isnan(share.value) else f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"
        rows.append([mixer, lead(none, decoder), lead(published, decoder), lead(canon, with_canon), text])
    return rows


def _budget(values: np.ndarray) -> Budget:
    return Budget(flops=1.0, scores=values.tolist(), seconds=1.0)


def canon_block(frame: pd.DataFrame) -> str:
    """Return the tables of docs/models/canon.md."""
    leads = ["mixer", "neither has one", "as published", "both have canon layers", "fraction of as published"]
    return "\n".join(
        [
            "Text, bits per byte on the test split: mean over three seeds (standard deviation)", "",
            *markdown.table(HEAD, form_rows(frame, "text")), "",
            "Lead over the decoder on text (bits per byte, 95% interval of the differences by seed), and the",
            "fraction of the lead as published that the decoder with canon layers has:", "",
            *markdown.table(leads, lead_rows(frame)), "",
            "Recall of eight pairs, accuracy:", "",
            *markdown.table(HEAD, form_rows(frame, "recall_8_pairs")), "",
        ]
    )  # fmt: skip


def canon_figure(frame: pd.DataFrame) -> go.Figure:
    """Draw the scores of text: a line for each mixer, a mark for each form, the seeds as small dots."""
    figure, [cell] = make_panels([""])
    for form, label in enumerate(HEAD[1:]):
        lines = [line for line, models in enumerate(FORMS.values()) if models[form]]
        values = [scores(frame, "text", models[form]) for models in FORMS.values() if models[form]]
        heights = [line + 0.12 * (form - 1.5) for line in lines]
        colour = {"color": PALETTE[form]}
        seeds = go.Scatter(
            x=np.concatenate(values).tolist(), y=np.repeat(heights, 3).tolist(), mode="markers",
            marker=colour | {"size": 4}, showlegend=False,
        )  # fmt: skip
        means = go.Scatter(
            x=[seeds.mean() for seeds in values], y=heights, mode="markers", name=label,
            marker=colour | {"symbol": SYMBOLS[form], "size": 13},
        )  # fmt: skip
        figure.add_traces([seeds, means])
    names = [f"{name} (pseudo)" * (name == "encoder") or name for name in FORMS]
    figure.update_yaxes(
        tickvals=list(range(len(FORMS))), ticktext=names, autorange="reversed", showgrid=False, **cell
    )
    figure.update_xaxes(title_text="bits per byte of text on the test split (lower is better)", **cell)
    return figure.update_layout(width=800, height=320)
