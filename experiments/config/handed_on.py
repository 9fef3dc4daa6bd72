"""Pass the configurations of a sweep, which were composed to check them, to the launcher."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from archbench.experiments.config.hydra_internals import basic_launcher

MOST = 200
"""Maximum number of stored configurations, since each needs some hundred kilobytes."""
SEED = re.compile(r"\bseed=(\d+)")


def without_seed(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of a run without the value of the seed, which composing does not depend on."""
    return tuple("seed" if SEED.fullmatch(override) else override for override in overrides)


def typed_overrides(cfg: DictConfig) -> list[str]:
    """Return the overrides as they were typed: the value of ``${oc.env:NAME}`` may be a secret."""
    overrides = OmegaConf.to_container(cfg.hydra.overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return [str(override) for override in overrides]


def with_seed(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Set the seed of a composed configuration to that of the overrides of a run."""
    typed = typed_overrides(cfg)
    for seed in filter(SEED.fullmatch, overrides):
        with open_dict(cfg), read_write(cfg.hydra):
            cfg.seed = int(seed.removeprefix("seed="))
            cfg.hydra.overrides.task = [seed if SEED.fullmatch(text) else text for text in typed]
            cfg.hydra.job.override_dirname = SEED.sub(seed, cfg.hydra.job.override_dirname)


class HandedOn:
    """Replaces Hydra's loader of configurations in a launcher that executes the runs in this process.

    Composing a configuration takes a fifth of a second, so it is composed once for all seeds.
    """

    def __init__(self, sweeper: Sweeper) -> None:
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        launcher = getattr(sweeper, "launcher", None)
        self._used = isinstance(launcher, basic_launcher())
        """False for launchers that start processes: they would send all configurations to each."""
        if self._used:
            assert launcher is not None
            assert sweeper.hydra_context is not None
            self._loader: Any = sweeper.hydra_context.config_loader
            launcher.hydra_context = HydraContext(
                config_loader=self,  # type: ignore[arg-type]
                callbacks=sweeper.hydra_context.callbacks,
            )

    def keep(self, overrides: Sequence[str], cfg: DictConfig) -> None:
        """Store the composed configuration of a run by its overrides."""
        if self._used and len(self._composed) < MOST:
            self._composed[without_seed(overrides)] = copy.deepcopy(cfg)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """Return the configuration of a run, as Hydra's loader does."""
        if (composed := self._composed.get(without_seed(sweep_overrides))) is None:
            cfg: DictConfig = self._loader.load_sweep_config(master_config, list(sweep_overrides))
            return cfg
        cfg = copy.deepcopy(composed)
        with_seed(cfg, sweep_overrides)
        OmegaConf.copy_cache(from_config=master_config, to_config=cfg)  # as Hydra does
        return cfg
