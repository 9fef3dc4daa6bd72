"""Records of claims: a statement from the literature, the outcome that refutes it, and the runs that test it.

Each YAML in ``docs/findings/`` is one record, committed before its confirming runs. It contains no results
and no verdict: ``analysis.findings`` computes both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from archbench.experiments.runtime.errors import nearest

BETTER, EQUAL = "better", "equal"
RELATIONS = (BETTER, EQUAL)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of one source, and how it is tested."""

    claim: str = ""
    """The claim in one sentence."""
    source: str = ""
    """Authors, year, identifier, and section."""
    refuted_by: str = ""
    """Description of the outcome that would refute the claim at this size."""
    known: str = ""
    """Evidence that existed when the record was written: pilots, earlier studies."""
    setting: str = ""
    """Models, size, budget, and how learning rates are chosen."""
    not_shown: str = ""
    """What must not be concluded from the verdict."""
    effect: float = 0.0
    """Smallest difference of interest, in the unit of the score."""
    relation: str = BETTER
    """``better``: ``model`` beats ``other`` by ``effect`` or more; ``equal``: they differ by less."""
    track: str = ""
    """The track whose runs decide it; empty for a study."""
    frame: str = ""
    """The study whose runs decide it, in ``docs/results/FRAME.parquet``; empty for a track."""
    workload: str = ""
    """Name of the task in the frame."""
    test: str = ""
    """The extra evaluation that counts, such as ``sequence_length=256``; empty for the workload's score."""
    model: dict[str, str] = field(default_factory=dict)
    """The runs that are claimed to be better: column and value."""
    other: dict[str, str] = field(default_factory=dict)
    """The runs that they are compared with."""
    seeds: int = 5
    """Minimum number of seeds of each for a verdict."""
    commands: list[str] = field(default_factory=list)
    """Commands that train the runs of a study's claim; those of a track are derived."""
    withdrawn: str = ""
    """Reason why the runs do not answer the question by the rules of a later protocol; empty if they do."""

    def __post_init__(self) -> None:
        for key in ("claim", "source", "refuted_by", "known", "setting", "not_shown", "workload"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty: a record needs it")
        if self.relation not in RELATIONS:
            raise ValueError(f"relation={self.relation!r}{nearest(self.relation, RELATIONS)}")
        if self.effect <= 0:
            raise ValueError(f"effect={self.effect}: name the smallest difference of interest, above 0")
        if bool(self.track) == bool(self.frame):
            raise ValueError("name the runs that decide it: track or frame, and not both")
        if not self.model or not self.other or self.model == self.other:
            raise ValueError("model and other name two different groups of runs, each by column and value")
        if bool(self.frame) != bool(self.commands):
            raise ValueError("commands: name what trains the runs of a study, and leave them out for a track")
        if self.seeds < 3:
            raise ValueError(f"seeds={self.seeds}: a verdict takes 3 or more")

    @property
    def training_commands(self) -> list[str]:
        """Return the commands that train the runs, regardless of stored results."""
        if self.frame:
            return self.commands
        backbones = ",".join(selection["backbone"] for selection in (self.model, self.other))
        return [f"archbench track {self.track} workloads={self.workload} backbones={backbones} --own-runs"]
