"""Trains one cell, or every missing cell of a sweep.

    python -m experiments.train backbone=mamba task=recall scale=nano seed=0
    python -m experiments.train -m backbone=decoder,mamba seed=0,1,2
    python -m experiments.train study=compare
    torchrun --nproc-per-node 2 -m experiments.train backbone=decoder parallel=fsdp

A cell that is complete is not trained again; one that was interrupted continues.
"""

from __future__ import annotations

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.config.hydra_app import start
from experiments.config.sections import read_sections
from experiments.runtime.errors import ConfigError
from experiments.runtime.rank import process_rank
from experiments.tracking.run_folder import RunFolder


def train(cfg: DictConfig) -> float:
    """Trains the cell and gives what a sweeper that searches may minimise: its score on validation."""
    sections = read_sections(cfg)
    processes = process_rank().size
    if processes > 1 and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise ConfigError(
            f"a sweep (-m, or a study) with {processes} processes: they train one cell together, so start "
            "torchrun for each cell"
        )
    # Only now, for this imports torch.
    from experiments.run.execute import execute
    from experiments.run.settings import read_settings
    from experiments.training.parallel import collectives

    try:
        settings = read_settings(sections)
        execute(settings)
    finally:
        collectives.stop()
    return RunFolder(settings.folder).loss()


if __name__ == "__main__":
    start(train)
