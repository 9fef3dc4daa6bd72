"""Records of published results: the values that a source reports, and the runs that reproduce them.

Each YAML in ``docs/results/published/`` is one record: a table, a figure or a sentence of one source, with
the study that reproduces it. A record contains no results of ours and no verdict: ``analysis.findings``
computes both from the stored frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from archbench.experiments.runtime.errors import nearest

TIERS = ("C", "G", "cluster")
"""Hardware: two cores for minutes; one GPU for hours; more than that."""
DIRECTIONS = ("higher", "lower", "none")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A value of the source."""

    name: str = ""
    """The measured quantity, as named by the source."""
    published: float | None = None
    """The value, in the unit of the record; null if the source gives no value for this row."""
    up_to: float | None = None
    """The upper end of a published range."""
    words: str = ""
    """Statement of the source if it gives no value, such as ``solves every length``."""
    where: dict[str, str] = field(default_factory=dict)
    """Our runs in the frame: column and value. Empty if there are none."""
    over: dict[str, str] = field(default_factory=dict)
    """The value is a ratio to the runs with these column values, paired by seed."""
    test: str = ""
    """An extra evaluation of these runs, such as ``sequence_length=256``; empty for the test as trained."""
    tolerance: float | None = None
    """Allowed distance of our mean from the value or the range; null if only an order is claimed."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a row has no name: say what was measured")
        if self.published is None and (self.tolerance is not None or self.up_to is not None):
            raise ValueError(f"row '{self.name}': a tolerance and up_to need a published number")
        if self.up_to is not None and self.published is not None and self.up_to < self.published:
            raise ValueError(f"row '{self.name}': up_to={self.up_to} lies below published={self.published}")
        if self.tolerance is not None and self.tolerance < 0:
            raise ValueError(f"row '{self.name}': tolerance={self.tolerance} must not be negative")


@dataclass(frozen=True, kw_only=True)
class Order:
    """A claim that each row of ``better`` is better than each row of ``worse``."""

    claim: str = ""
    """The claim in one sentence."""
    better: list[str] = field(default_factory=list)
    """Names of rows."""
    worse: list[str] = field(default_factory=list)
    """Names of rows."""

    def __post_init__(self) -> None:
        if not (self.claim and self.better and self.worse):
            raise ValueError("an order needs claim, better and worse")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Results of one source, and the study that reproduces them."""

    title: str = ""
    """Short description of the question."""
    source: str = ""
    """Authors, year, identifier."""
    place: str = ""
    """Table, figure or section."""
    setting: str = ""
    """The published setting: data, model, training, metric, how runs were chosen."""
    differs: str = ""
    """Differences of our setting; ``nothing`` if there are none."""
    tier: str = ""
    """Hardware that our study needs: ``C``, ``G`` or ``cluster``."""
    command: str = ""
    """Command that runs our study, or prints our results."""
    frame: str = ""
    """``docs/results/FRAME.parquet``, named like its study unless ``where`` names one; empty if not run."""
    unit: str = ""
    """Unit of all values of the record."""
    direction: str = "higher"
    """``higher`` or ``lower`` values are better; ``none`` for constants of a fit."""
    where: dict[str, str] = field(default_factory=dict)
    """Column and value that all rows share."""
    offset: float = 0.0
    """Our value is (score - offset) * factor; for example chance, for an accuracy above chance."""
    factor: float = 1.0
    """See offset; for example ln 2, to convert bits to nats."""
    digits: int = 3
    """Digits after the decimal point."""
    rows: list[Row] = field(default_factory=list)
    """The published values."""
    orders: list[Order] = field(default_factory=list)
    """Orders that the source claims."""

    def __post_init__(self) -> None:
        for key in ("title", "source", "place", "setting", "differs", "command", "unit"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty: a record needs it")
        for key, options in (("tier", TIERS), ("direction", DIRECTIONS)):
            if getattr(self, key) not in options:
                raise ValueError(f"{key}={getattr(self, key)!r}{nearest(getattr(self, key), options)}")
        names = [row.name for row in self.rows]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"rows need names of their own, there are: {', '.join(names) or 'none'}")
        if self.orders and self.direction == "none":
            raise ValueError("direction=none: an order needs to know which values are better")
        for name in (name for order in self.orders for name in (*order.better, *order.worse)):
            if name not in names:
                raise ValueError(f"orders: there is no row '{name}'{nearest(name, names)}")


def in_order(records: Mapping[str, Record]) -> dict[str, Record]:
    """Return records in the order of tiers and names."""
    return dict(sorted(records.items(), key=lambda item: (TIERS.index(item[1].tier), item[0])))
