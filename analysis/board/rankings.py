"""The rankings of the board: models with their scores on one workload, of one likelihood type and source.

Scores of two rankings are never ranked against each other: they differ in the likelihood type, or in data,
budget or scoring.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from archbench.analysis.board.families import family
from archbench.analysis.board.sources import SUBMISSION, Source
from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.percent_axis import PercentAxis
from archbench.analysis.figures.style import styles
from archbench.analysis.load.arm_names import split_name
from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups
from archbench.analysis.stats.arms import NOT_OF_THE_TEXT, finished, is_guess, likelihood_group
from archbench.analysis.tables.body import GROUPS
from archbench.experiments.tasks.metrics import LIKELIHOOD_TYPES, Reference

NO_LIKELIHOOD = "accuracy"
"""The type of scores that are no likelihoods."""
TYPES = (*LIKELIHOOD_TYPES, NO_LIKELIHOOD)
COSTS = (
    "training_flops",
    "training_tokens",
    "parameters_total",
    "state_bytes_2k",
    "training_tokens_per_second",
)
"""Columns of ``arm_table`` that a line has."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A model, or a reference such as chance, with its score in a ranking. Missing numbers are NaN."""

    name: str
    model: str
    """Name of the model's page; empty for a reference."""
    family: str
    colour: str
    score: float
    low: float
    high: float
    """Ends of the 95% interval over seeds; NaN where there are too few of them."""
    seed_scores: tuple[float, ...]
    runs: int
    rank: str
    """Range of the ranks that the verdicts allow; empty for a line that is not ranked."""
    learned: bool
    """True for a model that is better than the trivial baselines of its task."""
    note: str
    """Reason why it has no score or no rank; the note of a reference."""
    submission: str
    training_flops: float = math.nan
    training_tokens: float = math.nan
    parameters_total: float = math.nan
    state_bytes_2k: float = math.nan
    training_tokens_per_second: float = math.nan

    @property
    def is_reference(self) -> bool:
        """Return True for a line that is no model."""
        return not self.model


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Lines that are compared, the best score first; then those without a score."""

    source: str
    workload: str
    scale: str
    likelihood: str
    """Of ``TYPES``."""
    metric: str
    direction: str
    lines: tuple[Line, ...]

    @property
    def name(self) -> str:
        """Return the name in links."""
        parts = (self.source, self.workload, self.scale, self.likelihood)
        return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")

    @property
    def title(self) -> str:
        """Return the likelihood type in full."""
        return GROUPS.get(self.likelihood, self.metric)

    @property
    def models(self) -> list[Line]:
        """Return the lines of models with a score."""
        return [line for line in self.lines if not line.is_reference and math.isfinite(line.score)]

    @property
    def budget(self) -> float:
        """Return the mean training FLOPs of the models; NaN if they are unknown."""
        values = [line.training_flops for line in self.models if math.isfinite(line.training_flops)]
        return sum(values) / len(values) if values else math.nan

    @property
    def axis(self) -> PercentAxis:
        """Return an axis with the scores of the models."""
        values = [v for line in self.models for v in (line.score, line.low, line.high, *line.seed_scores)]
        return PercentAxis.around(values)


def rankings(sources: Sequence[Source]) -> list[Ranking]:
    """Return the rankings of all sources in their order; text and large budgets come first in each."""
    return [
        ranking
        for source in sources
        for ranking in sorted(
            _rankings(source),
            key=_order,
        )
    ]


def _order(ranking: Ranking) -> tuple[bool, str, int, float]:
    """Return the key by which the rankings of a source are sorted."""
    budget = ranking.budget if math.isfinite(ranking.budget) else 0.0
    return (
        not ranking.workload.startswith("text"), ranking.workload, TYPES.index(ranking.likelihood), -budget,
    )  # fmt: skip


def _rankings(source: Source) -> Iterator[Ranking]:
    frame = source.frame
    table = Comparison(frame).arms
    scores = frame[finished(frame)].groupby([*TASK_SCALE, "cell", "digest"])["score"].agg(tuple)
    colours = {arm: look["color"] for arm, look in styles(frame).items()}
    submissions = frame.groupby("arm")[SUBMISSION].first().to_dict()
    for (task, scale), rows in scale_groups(table):
        scored = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
        types = [_type(row) for _, row in scored.iterrows()]
        for index, kind in enumerate(sorted(set(types), key=TYPES.index)):
            of_type = scored[[other == kind for other in types]]
            lines = [
                _model(row, scores.loc[task, scale, row["cell"], row["digest"]], colours, submissions)
                for _, row in of_type.iterrows()
            ]
            lines += [
                _reference(row)
                for _, row in rows[rows["kind"] == "reference"].iterrows()
                if _shown(row, kind)
            ]
            sign = -1 if of_type["direction"].iloc[0] == "higher" else 1
            lines.sort(key=lambda line, sign=sign: sign * line.score)  # type: ignore[misc]
            if index == 0:  # the type of a run without a score is unknown
                without = rows[(rows["kind"] == "arm") & (rows["seeds"] == 0)]
                lines += [_model(row, (), colours, submissions) for _, row in without.iterrows()]
            yield Ranking(
                source=source.name, workload=str(task), scale=str(scale), likelihood=kind,
                metric=str(of_type["metric"].iloc[0]).replace("_", " "),
                direction=str(of_type["direction"].iloc[0]), lines=tuple(lines),
            )  # fmt: skip


def _type(row: pd.Series) -> str:
    group = likelihood_group(row)
    return group if group in LIKELIHOOD_TYPES else NO_LIKELIHOOD


def _shown(row: pd.Series, kind: str) -> bool:
    """Return True for a reference that models of a likelihood type are compared with."""
    reference = Reference(
        name=row["arm"], metric=row["metric"], value=row["score"], note=row["message"] or "", split="test"
    )
    return is_guess(reference) or kind not in NOT_OF_THE_TEXT


def _model(
    row: pd.Series,
    seed_scores: tuple[float, ...],
    colours: dict[str, str],
    submissions: dict[str, str],
) -> Line:
    name = str(row["arm"])
    message = row["message"].partition(". ")[0] if isinstance(row["message"], str) else ""
    if not row["learned"]:
        message = f"no better than {row['no_better_than']}"
    return Line(
        name=name, model=split_name(name)[0], family=family(str(row["backbone"])), colour=colours[name],
        score=row["score"], low=row["low"], high=row["high"], seed_scores=seed_scores, runs=int(row["runs"]),
        rank=row["rank"] if isinstance(row["rank"], str) else "", learned=bool(row["learned"]),
        note=message or ("" if row["seeds"] else str(row["status"])),
        submission=submissions[name], **{column: float(row[column]) for column in COSTS},
    )  # fmt: skip


def _reference(row: pd.Series) -> Line:
    return Line(
        name=str(row["arm"]), model="", family="reference", colour="", score=row["score"], low=math.nan,
        high=math.nan, seed_scores=(), runs=0, rank="", learned=False,
        submission="",
        note=row["message"] if isinstance(row["message"], str) else "reference",
    )  # fmt: skip


def score_frame(ranked: Sequence[Ranking]) -> pd.DataFrame:
    """Return a row for each line, for the files to download."""
    rows = [
        {
            "source": ranking.source, "workload": ranking.workload, "scale": ranking.scale,
            "likelihood": ranking.likelihood, "metric": ranking.metric, "direction": ranking.direction,
            "model": line.name, "family": line.family, "submission": line.submission, "score": line.score,
            "low": line.low, "high": line.high, "seeds": len(line.seed_scores), "runs": line.runs,
            "rank": line.rank, "note": line.note, **{column: getattr(line, column) for column in COSTS},
        }
        for ranking in ranked
        for line in ranking.lines
    ]  # fmt: skip
    return pd.DataFrame(rows)
