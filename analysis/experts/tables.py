"""The tables of ``analysis.experts``, each a tidy frame, and the short ones that are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.experts.measures import (
    MIN_OCCURRENCES,
    chance,
    coactivation,
    composition,
    specialisation,
    visits,
)
from analysis.experts.recordings import LayerTokens
from analysis.experts.token_kinds import KINDS
from analysis.tables import markdown

SIDES = ("input", "predicted")
"""By which token vocabulary specialisation is counted: the one that is read, or the most likely next."""
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
        """As plain text."""
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
    """``layer expert other share chance``: of the tokens of ``expert``, those that chose ``other`` too."""
    rows = []
    for layer in layers:
        visits_NX = visits(layer.expert_NK, layer.num_experts)
        share_XX = coactivation(visits_NX)
        # By chance, the k - 1 other choices of a token fall evenly on the X - 1 other experts.
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


def group_frame(layer: LayerTokens, group_N: np.ndarray, names: Sequence[str], what: str) -> pd.DataFrame:
    """``layer WHAT tokens expert share of_expert chance`` for every group that has tokens.

    ``share`` is N_{X,G}/N_G, of the group's tokens those that chose the expert; ``of_expert`` is N_{X,G}/N_X.
    """
    visits_NX = visits(layer.expert_NK, layer.num_experts)
    share_GX = specialisation(visits_NX, group_N, len(names))
    part_GX = composition(visits_NX, group_N, len(names))
    count_G = np.bincount(group_N, minlength=len(names))
    group_M, expert_M = np.nonzero(np.broadcast_to(count_G[:, None] > 0, share_GX.shape))
    return pd.DataFrame(
        {
            "layer": layer.layer,
            what: [names[int(g)] for g in group_M],
            "tokens": count_G[group_M],
            "expert": expert_M,
            "share": share_GX[group_M, expert_M],
            "of_expert": part_GX[group_M, expert_M],
            "chance": chance(visits_NX),
        }
    )


def kinds_frame(layers: Sequence[LayerTokens]) -> pd.DataFrame:
    """``group_frame`` by kind of word; empty where there is no text."""
    return _joined(
        [group_frame(each, each.kind_N, KINDS, "kind") for each in layers if each.kind_N is not None]
    )


def domains_frame(domains: dict[str, list[LayerTokens]]) -> pd.DataFrame:
    """``group_frame`` by domain, then by lines of code and of prose in all domains together."""
    frames = []
    names = list(domains)
    for parts in zip(*domains.values(), strict=True):
        sizes = [len(part.expert_NK) for part in parts]
        whole = LayerTokens(
            layer=parts[0].layer,
            num_experts=parts[0].num_experts,
            expert_NK=np.concatenate([part.expert_NK for part in parts]),
            token_N=np.concatenate([part.token_N for part in parts]),
            predicted_N=None,
            kind_N=None,
            code_N=np.concatenate([part.code_N for part in parts if part.code_N is not None]),
        )
        assert whole.code_N is not None
        frames.append(group_frame(whole, np.repeat(np.arange(len(names)), sizes), names, "domain"))
        frames.append(
            group_frame(whole, whole.code_N.astype(int), ["lines of prose", "lines of code"], "domain")
        )
    return _joined(frames)


def vocabulary_frame(layers: Sequence[LayerTokens], texts: Sequence[str]) -> pd.DataFrame:
    """``group_frame`` by token of the vocabulary, those of ``MIN_OCCURRENCES`` or more, with its ``side``.

    Args:
        texts: how each token is written in a table.
    """
    frames = []
    for layer in layers:
        for side, token_N in zip(SIDES, (layer.token_N, layer.predicted_N), strict=True):
            if token_N is None:
                continue
            known = token_N >= 0
            part = LayerTokens(
                layer=layer.layer,
                num_experts=layer.num_experts,
                expert_NK=layer.expert_NK[known],
                token_N=token_N[known],
                predicted_N=None,
                kind_N=None,
                code_N=None,
            )
            frame = group_frame(part, part.token_N, texts, "token").assign(side=side)
            frames.append(frame[frame["tokens"] >= MIN_OCCURRENCES])
    return _joined(frames)


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def training_grid(history: pd.DataFrame) -> Grid:
    """The first, middle and last recording of each layer."""
    rows = []
    for layer, found in history.groupby("layer", sort=False):
        for place in dict.fromkeys((0, len(found) // 2, len(found) - 1)):
            one = found.iloc[place]
            rows.append(
                [
                    str(layer), f"{one['step']:,}", f"{one['saturation']:.2f} ({one['chance']:.2f})",
                    *(f"{one[name]:.3f}" for name in (
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
    """A grid for each layer: groups down, experts across, shares N_{X,G}/N_G."""
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
    """For each layer and side, how much of a token goes to the expert it chooses most; and which go where."""
    rows = []
    for (layer, side), part in frame.groupby(["layer", "side"], sort=False):
        highest = part.groupby("token")["share"].max().mean()
        first = [
            f"{expert}: " + " ".join(own.nlargest(SHOWN_TOKENS, "share")["token"])
            for expert, own in part.groupby("expert")
        ]
        rows.append(
            [str(layer), str(side), f"{part['token'].nunique()}", f"{highest:.2f}",
             f"{part['chance'].iloc[0]:.2f}", "; ".join(first)]
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
    """The most frequent pair of each layer."""
    rows = []
    for layer, pairs in frame.groupby("layer", sort=False):
        best = pairs.loc[pairs["share"].idxmax()] if pairs["share"].notna().any() else pairs.iloc[0]
        rows.append(
            [
                str(layer),
                f"{best['expert']} with {best['other']}",
                f"{best['share']:.2f}",
                f"{best['chance']:.2f}",
            ]
        )
    head = ["layer", "closest pair", "share of the first's tokens", "by chance"]
    return Grid(title="Co-activation", head=head, rows=rows)
