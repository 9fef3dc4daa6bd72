"""The tables of ``analysis.experts``: tidy frames, and short grids that are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from archbench.analysis.experts.measures import (
    MIN_OCCURRENCES,
    chance,
    coactivation,
    composition,
    specialisation,
    visits,
)
from archbench.analysis.experts.recordings import LayerTokens
from archbench.analysis.experts.token_kinds import KINDS
from archbench.analysis.tables import markdown

SIDES = ("input", "predicted")
"""Token by which vocabulary specialisation is counted: the input token, or the most likely next token."""
SHOWN_TOKENS = 5
"""Tokens of the vocabulary that are printed for an expert."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A short table with a title."""

    title: str
    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [f"### {markdown.escaped(self.title)}", "", *markdown.table(self.head, self.rows)]
        return "\n".join(lines) + "\n"

    def text(self, width: int) -> str:
        """Return the table as plain text."""
        table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        for index, name in enumerate(self.head):
            table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0)
        for row in self.rows:
            table.add_row(*row)
        text = StringIO()
        console = Console(
            file=text, width=width, height=1000, color_system=None, force_terminal=False, markup=False
        )
        console.print(f"\n{self.title}", table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n") + "\n"


def coactivation_frame(layers: Sequence[LayerTokens]) -> pd.DataFrame:
    """Return the frame of co-activation: the fraction of the tokens of ``expert`` that also chose ``other``.

    Columns: ``layer expert other share chance``.
    """
    rows = []
    for layer in layers:
        visits_NX = visits(layer.expert_NK, layer.num_experts)
        share_XX = coactivation(visits_NX)
        # By chance, the k - 1 other choices of a token are uniform over the X - 1 other experts.
        even = (visits_NX.sum(1).mean() - 1) / max(1, layer.num_experts - 1)
        for i, j in zip(*np.nonzero(~np.eye(layer.num_experts, dtype=bool)), strict=True):
            rows.append(
                {
                    "layer": layer.layer,
                    "expert": int(i),
                    "other": int(j),
                    "share": share_XX[i, j],
                    "chance": even,
                }
            )
    return pd.DataFrame(rows, columns=["layer", "expert", "other", "share", "chance"])


def group_frame(layer: LayerTokens, group_N: np.ndarray, names: Sequence[str], column: str) -> pd.DataFrame:
    """Return one row for each expert and group that has tokens.

    Columns: ``layer COLUMN tokens expert share of_expert chance``. ``share`` is N_{X,G}/N_G, the fraction of
    the group's tokens that chose the expert; ``of_expert`` is N_{X,G}/N_X. ``column`` has the group's name.
    """
    visits_NX = visits(layer.expert_NK, layer.num_experts)
    share_GX = specialisation(visits_NX, group_N, len(names))
    composition_GX = composition(visits_NX, group_N, len(names))
    count_G = np.bincount(group_N, minlength=len(names))
    group_M, expert_M = np.nonzero(np.broadcast_to(count_G[:, None] > 0, share_GX.shape))
    return pd.DataFrame(
        {
            "layer": layer.layer,
            column: [names[int(g)] for g in group_M],
            "tokens": count_G[group_M],
            "expert": expert_M,
            "share": share_GX[group_M, expert_M],
            "of_expert": composition_GX[group_M, expert_M],
            "chance": chance(visits_NX),
        }
    )


def kinds_frame(layers: Sequence[LayerTokens]) -> pd.DataFrame:
    """Return ``group_frame`` by word class; empty without text."""
    return _joined(
        [group_frame(layer, layer.kind_N, KINDS, "kind") for layer in layers if layer.kind_N is not None]
    )


def domains_frame(domains: dict[str, list[LayerTokens]]) -> pd.DataFrame:
    """Return ``group_frame`` by domain, then by lines of code and of prose over all domains."""
    frames = []
    names = list(domains)
    for parts in zip(*domains.values(), strict=True):
        sizes = [len(part.expert_NK) for part in parts]
        merged = LayerTokens(
            layer=parts[0].layer,
            num_experts=parts[0].num_experts,
            expert_NK=np.concatenate([part.expert_NK for part in parts]),
            token_N=np.concatenate([part.token_N for part in parts]),
            predicted_N=None,
            kind_N=None,
            code_N=np.concatenate([part.code_N for part in parts if part.code_N is not None]),
        )
        assert merged.code_N is not None
        frames.append(group_frame(merged, np.repeat(np.arange(len(names)), sizes), names, "domain"))
        frames.append(
            group_frame(merged, merged.code_N.astype(int), ["lines of prose", "lines of code"], "domain")
        )
    return _joined(frames)


def vocabulary_frame(layers: Sequence[LayerTokens], texts: Sequence[str]) -> pd.DataFrame:
    """Return ``group_frame`` by vocabulary token with ``MIN_OCCURRENCES`` or more, with a column ``side``.

    Args:
        layers: the tokens of each layer.
        texts: representation of each token in a table.
    """
    frames = []
    for layer in layers:
        for role, token_N in zip(SIDES, (layer.token_N, layer.predicted_N), strict=True):
            if token_N is None:
                continue
            has_token = token_N >= 0
            part = LayerTokens(
                layer=layer.layer,
                num_experts=layer.num_experts,
                expert_NK=layer.expert_NK[has_token],
                token_N=token_N[has_token],
                predicted_N=None,
                kind_N=None,
                code_N=None,
            )
            frame = group_frame(part, part.token_N, texts, "token").assign(side=role)
            frames.append(frame[frame["tokens"] >= MIN_OCCURRENCES])
    return _joined(frames)


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def training_grid(history: pd.DataFrame) -> Grid:
    """Return the first, middle and last recording of each layer."""
    rows = []
    for layer, recordings in history.groupby("layer", sort=False):
        for index in dict.fromkeys((0, len(recordings) // 2, len(recordings) - 1)):
            row = recordings.iloc[index]
            rows.append(
                [
                    str(layer), f"{row['step']:,}", f"{row['saturation']:.2f} ({row['chance']:.2f})",
                    *(f"{row[name]:.3f}" for name in (
                        "load_entropy", "max_violation", "mean_violation", "dropped_share",
                        "dropped_in_training", "gate_mean", "router_entropy", "logit_norm",
                    )),
                ]
            )  # fmt: skip
    head = [
        "layer", "step", "saturation (chance)", "load entropy", "max violation", "mean violation", "dropped",
        "in training", "gate", "router entropy", "logit norm",
    ]  # fmt: skip
    return Grid(title="Routing during training (first, middle and last recording)", head=head, rows=rows)


def share_grids(frame: pd.DataFrame, group: str, title: str) -> list[Grid]:
    """Return a grid for each layer with N_{X,G}/N_G: groups as rows, experts as columns."""
    grids = []
    for layer, rows in frame.groupby("layer", sort=False):
        shares = rows.pivot_table(index=group, columns="expert", values="share", sort=False)
        tokens = rows.groupby(group, sort=False)["tokens"].first()
        head = [group, "tokens", *(f"expert {x}" for x in shares.columns)]
        body = [[str(g), f"{tokens[g]:,}", *(f"{v:.2f}" for v in shares.loc[g])] for g in shares.index]
        even = rows["chance"].iloc[0]
        grids.append(Grid(title=f"{title}, {layer} (by chance {even:.2f})", head=head, rows=body))
    return grids


def vocabulary_grid(frame: pd.DataFrame) -> Grid:
    """Return for each layer and side the mean highest fraction of a token at one expert, and top tokens."""
    rows = []
    for (layer, role), part in frame.groupby(["layer", "side"], sort=False):
        highest = part.groupby("token")["share"].max().mean()
        tokens_of_experts = [
            f"{expert}: " + " ".join(expert_rows.nlargest(SHOWN_TOKENS, "share")["token"])
            for expert, expert_rows in part.groupby("expert")
        ]
        rows.append(
            [str(layer), str(role), f"{part['token'].nunique()}", f"{highest:.2f}",
             f"{part['chance'].iloc[0]:.2f}", "; ".join(tokens_of_experts)]
        )  # fmt: skip
    return Grid(
        title=f"Vocabulary specialisation (tokens with {MIN_OCCURRENCES} or more occurrences)",
        head=[
            "layer",
            "token",
            "tokens",
            "mean of highest share",
            "by chance",
            "most specialised, by expert",
        ],
        rows=rows,
    )


def coactivation_grid(frame: pd.DataFrame) -> Grid:
    """Return the most frequent pair of experts of each layer."""
    rows = []
    for layer, pairs in frame.groupby("layer", sort=False):
        closest = pairs.loc[pairs["share"].idxmax()] if pairs["share"].notna().any() else pairs.iloc[0]
        rows.append(
            [
                str(layer),
                f"{closest['expert']} with {closest['other']}",
                f"{closest['share']:.2f}",
                f"{closest['chance']:.2f}",
            ]
        )
    head = ["layer", "closest pair", "share of the first's tokens", "by chance"]
    return Grid(title="Co-activation", head=head, rows=rows)
