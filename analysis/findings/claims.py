"""Records of claims: a sentence of the literature, what would refute it here, and which runs decide it.

Each YAML in ``docs/findings/`` is one record, committed before its confirming runs. It holds no number of
ours and no verdict: ``analysis.findings`` computes both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.runtime.errors import nearest

BETTER, EQUAL = "better", "equal"
RELATIONS = (BETTER, EQUAL)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of one source, as it is tested here."""

    claim: str = ""
    """The claim in one sentence."""
    source: str = ""
    """Authors, year, identifier, and where in it."""
    refuted_by: str = ""
    """The outcome that would refute the claim at this size, in words."""
    known: str = ""
    """What was known when the record was written: pilots, earlier studies."""
    setting: str = ""
    """Models, size, budget, and how learning rates are chosen."""
    not_shown: str = ""
    """What must not be concluded from the verdict."""
    effect: float = 0.0
    """Smallest difference of interest, in the unit of the score."""
    relation: str = BETTER
    """``better``: ``model`` beats ``other`` by ``effect`` or more; ``equal``: they lie within it."""
    track: str = ""
    """The track whose runs decide it; empty for a study."""
    frame: str = ""
    """The study whose runs decide it, in ``docs/results/FRAME.parquet``; empty for a track."""
    workload: str = ""
    """Name of the task in the frame."""
    test: str = ""
    """The extra evaluation that counts, such as ``sequence_length=256``; empty for the workload's score."""
    model: dict[str, str] = field(default_factory=dict)
    """The runs that are said to be better: column and value."""
    other: dict[str, str] = field(default_factory=dict)
    """The runs they are compared with."""
    seeds: int = 5
    """Seeds of each; fewer decide nothing."""
    commands: list[str] = field(default_factory=list)
    """What trains the runs of a study's claim; a track's are known."""

    def __post_init__(self) -> None:
        for key in ("claim", "source", "refuted_by", "known", "setting", "not_shown", "workload"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty: a record says it")
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
        """The commands that train the runs anew, whatever results are kept."""
        if self.frame:
            return self.commands
        backbones = ",".join(side["backbone"] for side in (self.model, self.other))
        return [f"archbench track {self.track} workloads={self.workload} backbones={backbones} --own-runs"]
