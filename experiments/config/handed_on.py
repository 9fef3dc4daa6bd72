"""Hands the configurations of a sweep, composed to check it, on to the launcher instead of composing anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

MOST = 200
"""Configurations that are kept at a time."""


class HandedOn:
    """Stands in for Hydra's loader of configurations in a launcher that runs the cells in this process.

    Composing a cell takes a tenth of a second. Each that was composed is kept until it begins, ``MOST`` at a
    time, since one takes some hundred kilobytes; what is beyond is composed anew.
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
            self._kept[tuple(words)] = copy.deepcopy(cfg)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """Return the configuration of a cell, as Hydra's loader does."""
        cfg = self._kept.pop(tuple(sweep_overrides), None)
        if cfg is None:
            anew: DictConfig = self._loader.load_sweep_config(master_config, list(sweep_overrides))
            return anew
        OmegaConf.copy_cache(from_config=master_config, to_config=cfg)  # as Hydra does
        return cfg
