"""The pages of the results board as HTML, for a folder of their own or for the documentation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from archbench.analysis.board.claims import ClaimEntry, about_model, about_workload, claim_entries
from archbench.analysis.board.rankings import TYPES, Line, Ranking, rankings, score_frame
from archbench.analysis.board.sources import read_sources
from archbench.analysis.files import csv_text, parquet
from archbench.analysis.load.descriptions import comment, description
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.analysis.tables.columns import interval
from archbench.analysis.tables.format import flops, si, size
from archbench.analysis.templates import environment
from archbench.experiments.config import CONF

HERE = Path(__file__).parent
TITLE = "Results board"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A column of costs."""

    head: str
    column: str

    def text(self, line: Line) -> str:
        """Return the cell of a line."""
        value = getattr(line, self.column)
        if self.column == "state_bytes_2k":
            return "none" if value == 0 else size(value)
        return flops(value) if self.column == "training_flops" else si(value)


COSTS = {
    cost.column: cost
    for cost in (
        Cost(head="FLOPs", column="training_flops"),
        Cost(head="params", column="parameters_total"),
        Cost(head="state", column="state_bytes_2k"),
        Cost(head="tok/s", column="training_tokens_per_second"),
    )
}
"""Training FLOPs, all parameters, decoding state at 2048 tokens, training tokens per second."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the board."""

    path: str
    """Path relative to the board, without ``.html``."""
    title: str
    body: str

    @property
    def root(self) -> str:
        """Return the relative path from the page to the board."""
        return "../" * self.path.count("/")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of a model in one of its rankings."""

    ranking: Ranking
    line: Line


@dataclass(frozen=True, kw_only=True)
class Board:
    """Everything that the pages show."""

    rankings: list[Ranking]
    claims: list[ClaimEntry]

    @property
    def models(self) -> list[str]:
        """Return the names of all models with a page."""
        return sorted({line.model for each in self.rankings for line in each.lines if line.model})

    @property
    def workloads(self) -> list[str]:
        """Return the names of all workloads, in the order of the board."""
        return list(dict.fromkeys(each.workload for each in self.rankings))


def read_board(docs: Path) -> Board:
    """Return the board of the frames and claims in a folder. Raises DataError."""
    return Board(rankings=rankings(read_sources(docs)), claims=claim_entries(docs))


def downloads(board: Board) -> dict[str, str | bytes]:
    """Return the files next to the pages: style, script, and the scores."""
    scores = score_frame(board.rankings)
    texts = {name: (HERE / name).read_text(encoding="utf-8") for name in ("board.css", "board.js")}
    return {**texts, "scores.csv": csv_text(scores), "scores.parquet": parquet(scores)}


def pages(board: Board, findings: str = "index.html") -> list[Page]:
    """Return all pages of a board.

    Args:
        board: its content.
        findings: the page of all claims, relative to the board.
    """
    return [
        _index(board),
        *(_workload(board, name) for name in board.workloads),
        *(_model(board, name) for name in board.models),
        *(_claim(board, claim, findings) for claim in board.claims),
    ]


def _index(board: Board) -> Page:
    count = sum(not line.is_reference for each in board.rankings for line in each.lines)
    families = {line.family for each in board.rankings for line in each.lines if not line.is_reference}
    filters = {
        "workload": board.workloads,
        "likelihood": [kind for kind in TYPES if any(each.likelihood == kind for each in board.rankings)],
        "family": sorted(families),
        "budget": sorted({budget(each) for each in board.rankings} - {""}, key=_exponent),
        "source": list(dict.fromkeys(each.source for each in board.rankings)),
    }
    return _page(
        "index", TITLE, "board", rankings=board.rankings, filters=filters, line_count=count,
        model_count=len(board.models), workload_count=len(board.workloads), models=board.models,
        workloads=board.workloads,
    )  # fmt: skip


def _workload(board: Board, name: str) -> Page:
    of_workload = [each for each in board.rankings if each.workload == name]
    return _page(
        f"workloads/{page_name(name)}", name, "workload", name=name, rankings=of_workload,
        description=_about_workload(name), claims=about_workload(board.claims, name),
    )  # fmt: skip


def _about_workload(name: str) -> str:
    """Return what a workload is: the comment of the YAML of its task, else of its workload in a track."""
    paths = sorted((CONF / "track").glob(f"*/{name}.yaml")) if name.isidentifier() else []
    return description("task", name) or (comment(paths[0]) if paths else "")


def _model(board: Board, name: str) -> Page:
    places = [
        Place(ranking=each, line=line) for each in board.rankings for line in each.lines if line.model == name
    ]
    return _page(
        f"models/{page_name(name)}", name, "model", name=name, places=places,
        description=description("backbone", name), facts=_facts([place.line for place in places]),
        claims=about_model(board.claims, name),
    )  # fmt: skip


def _facts(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return the family and the ranges of costs of a model."""
    facts = [("family", lines[0].family)]
    for column, cost in COSTS.items():
        with_value = [line for line in lines if math.isfinite(getattr(line, column))]
        if with_value:
            ends = [f(with_value, key=lambda line, c=column: getattr(line, c)) for f in (min, max)]  # type: ignore[misc,operator]
            facts.append((cost.head, " to ".join(dict.fromkeys(cost.text(line) for line in ends))))
    return facts


def _claim(board: Board, claim: ClaimEntry, findings: str) -> Page:
    decide = f"archbench findings claim={claim.name} --own-runs"
    return _page(
        f"claims/{claim.name}", claim.title, "claim", claim=claim, drawing=claim.drawing, facts=claim.facts,
        commands=[*claim.finding.claim.training_commands, decide],
        models=[name for name in claim.models if name in board.models], workload=claim.workload,
        has_workload=claim.workload in board.workloads, findings=findings,
    )  # fmt: skip


def _page(path: str, title: str, template: str, **values: object) -> Page:
    root = "../" * path.count("/")
    body = _templates().get_template(f"{template}.html.j2").render(root=root, costs=COSTS, **values)
    return Page(path=path, title=title, body=f'<link rel="stylesheet" href="{root}board.css">\n{body}')


def alone(page: Page) -> str:
    """Return a page as an HTML file of its own."""
    heading = TITLE if page.path == "index" else ""
    return (
        _templates()
        .get_template("page.html.j2")
        .render(title=page.title, heading=heading, body=Markup(page.body))
    )


def page_name(name: str) -> str:
    """Return a name in an address."""
    return re.sub(r"[^\w.-]+", "-", name)


def budget(ranking: Ranking) -> str:
    """Return the order of magnitude of the training FLOPs of a ranking; empty if they are unknown."""
    return f"1e{math.floor(math.log10(ranking.budget))} FLOPs" if ranking.budget > 0 else ""


def _exponent(text: str) -> int:
    return int(text.removesuffix(" FLOPs").removeprefix("1e"))


def score(line: Line) -> str:
    """Return a score with its interval; below ``MIN_SEEDS`` the score of each seed."""
    if 0 < len(line.seed_scores) < MIN_SEEDS:
        return ", ".join(f"{seed:.3f}" for seed in line.seed_scores)
    return interval(line.score, line.low, line.high, 3)


def number(line: Line, column: str) -> str:
    """Return a number by which lines are sorted; empty if it is missing."""
    value = getattr(line, column)
    return f"{value:.6g}" if math.isfinite(value) else ""


@cache
def _templates() -> Environment:
    """Return the templates of the board, with the functions that they call."""
    templates = environment(HERE / "templates")
    templates.globals |= {
        "page_name": page_name,
        "budget": budget,
        "score": score,
        "number": number,
        "flops": flops,
    }
    return templates
