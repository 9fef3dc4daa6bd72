"""Settings of tracking: where the metrics of a run are mirrored."""

from __future__ import annotations

from dataclasses import dataclass, field

SINKS = {
    "online": "experiments.tracking.wandb.WandbSink",
    "offline": "experiments.tracking.wandb.WandbSink",
    "tensorboard": "experiments.tracking.tensorboard.TensorBoardSink",
}
"""The class behind each mode; it is imported when it is asked for. A new one is a file, a YAML and a line."""


MODES = ("off", *SINKS)


TAG_KINDS = ("arch", "objective", "task", "size", "stage", "status")
"""Kinds of the tags that a run gets by itself, as in ``arch:mamba``: one of each."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where the metrics of a run are mirrored."""

    mode: str = "off"
    """``off``; ``online`` (uploads to W&B while training), ``offline`` (W&B's files in the run folder) or
    ``tensorboard`` (event files in the run folder)."""
    project: str | None = None
    """W&B project; None takes the name of the study."""
    entity: str | None = None
    """W&B user or team; None takes the default of the account."""
    tags: list[str] = field(default_factory=list)
    """W&B tags of your own, beside those that every run has."""
    artifacts: bool = False
    """Log the final model of a complete run as an artifact of W&B: its weights are uploaded."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(
                f"tracking.mode={self.mode!r} is not one of {', '.join(MODES)} "
                f'(in YAML, put "off" in quotes: the bare word means false)'
            )
        for tag in self.tags:
            if tag.partition(":")[0] in TAG_KINDS and ":" in tag:
                raise ValueError(
                    f"tracking.tags={tag!r}: tags that begin like this are set by the run itself"
                )
