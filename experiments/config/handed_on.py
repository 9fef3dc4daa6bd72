"""Hands the configurations of a sweep, composed to check it, on to the launcher instead of composing anew."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf


class HandedOn:
    """Stands in for Hydra's loader of configurations in a launcher that runs the cells in this process.

    Composing a cell takes a tenth of a second, reading a composed one back 3 ms. Each is kept as some 35 kB
    of pickle until its cell begins; as objects it would take many times that.
    """

    def __init__(self, sweeper: Sweeper) -> None:
        # Hydra loads its plugins anew when it starts: imported before, it would be another class.
        from hydra._internal.core_plugins.basic_launcher import BasicLauncher

        self._kept: dict[tuple[str, ...], bytes] = {}
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
        if self._used:
            self._kept[tuple(words)] = pickle.dumps(cfg, pickle.HIGHEST_PROTOCOL)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """Return the configuration of a cell, as Hydra's loader does."""
        kept = self._kept.pop(tuple(sweep_overrides), None)
        if kept is None:
            return self._loader.load_sweep_config(master_config, list(sweep_overrides))
        cfg: DictConfig = pickle.loads(kept)
        OmegaConf.copy_cache(from_config=master_config, to_config=cfg)  # as Hydra does
        return cfg
