"""Options, the check of the API key, and failures of W&B, shared by the commands for Weights & Biases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.wandb import NO_KEY, signed_in


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """A study and its project in Weights & Biases."""

    study: str = "compare"
    """The study, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""
    project: str = ""
    """W&B project; by default that of the runs' own settings, else the name of the study."""
    entity: str = ""
    """W&B user or team; by default that of the account."""


def require_key(remedy: str = "") -> None:
    """Raise ConfigError where there is no API key; ``remedy`` is what else can be done."""
    if not signed_in():
        raise ConfigError(f"{NO_KEY}{remedy}")


@contextlib.contextmanager
def wandb_failures() -> Iterator[None]:
    """Turn errors of W&B and of the network, which are of many kinds, into a RunError of one line."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        reason = " ".join(redact(f"{type(error).__name__}: {error}").split())
        raise RunError(f"W&B failed: {reason}; the same command goes on where it stopped") from error
