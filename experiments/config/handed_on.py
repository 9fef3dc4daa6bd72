"""Hands the configurations of a sweep, composed to check it, on to the launcher instead of composing anew."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

MOST = 200
"""Configurations that are kept, since one takes some hundred kilobytes."""
SEED = re.compile(r"\bseed=(\d+)")


def without_seed(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a cell with the seed left open: the rest is composed alike for every seed."""
    return tuple("seed" if SEED.fullmatch(word) else word for word in words)


class HandedOn:
    """Stands in for Hydra's loader of configurations in a launcher that runs the cells in this process.

    Composing a cell takes a fifth of a second. So it is composed once for all seeds.
    """

    def __init__(self, sweeper: Sweeper) -> None:
        # Hydra loads its plugins anew when it starts: imported before, it would be another class.
        from hydra._internal.core_plugins.basic_launcher import BasicLauncher

        self._kept: dict[tuple[str, ...], DictConfig] = {}
        launcher = getattr(sweeper, "launcher", None)
        self._used = isinstance(launcher, BasicLauncher)
        """Launchers that start other processes would send them all that is kept; they compose anew."""
        if self._used:
            assert launcher is not None
            assert sweeper.hydra_context is not None
            self._loader: Any = sweeper.hydra_context.config_loader
            launcher.hydra_context = HydraContext(
                config_loader=self,  # type: ignore[arg-type]
                callbacks=sweeper.hydra_context.callbacks,
            )

    def keep(self, words: Sequence[str], cfg: DictConfig) -> None:
        """Keep the composed configuration of a cell, by its words."""
        if self._used and len(self._kept) < MOST:
            self._kept[without_seed(words)] = copy.deepcopy(cfg)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """Return the configuration of a cell, as Hydra's loader does."""
        kept = self._kept.get(without_seed(sweep_overrides))
        if kept is None:
            anew: DictConfig = self._loader.load_sweep_config(master_config, list(sweep_overrides))
            return anew
        cfg = copy.deepcopy(kept)
        for word in sweep_overrides:
            if (seed := SEED.fullmatch(word)) is not None:
                _set_seed(cfg, int(seed[1]))
        OmegaConf.copy_cache(from_config=master_config, to_config=cfg)  # as Hydra does
        return cfg


def _set_seed(cfg: DictConfig, seed: int) -> None:
    """Make a composed configuration that of another seed, with what Hydra notes about the words."""
    with open_dict(cfg), read_write(cfg.hydra):
        cfg.seed = seed
        words = [f"seed={seed}" if SEED.fullmatch(word) else word for word in cfg.hydra.overrides.task]
        cfg.hydra.overrides.task = words
        cfg.hydra.job.override_dirname = SEED.sub(f"seed={seed}", cfg.hydra.job.override_dirname)
