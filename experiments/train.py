"""Trains one cell, or every missing cell of a sweep.

    python -m experiments.train backbone=mamba task=recall scale=nano seed=0
    python -m experiments.train -m backbone=decoder,mamba seed=0,1,2
    python -m experiments.train study=compare

A cell that is complete is not trained again; one that was interrupted continues.
"""

from __future__ import annotations

from omegaconf import DictConfig

from experiments.app import start
from experiments.run import execute
from experiments.settings import read_settings


def train(cfg: DictConfig) -> None:
    execute(read_settings(cfg))


if __name__ == "__main__":
    start(train)
