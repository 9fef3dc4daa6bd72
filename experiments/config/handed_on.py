"""Pass the configurations of a sweep, which were composed to check them, to the launcher."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

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
    """Reads configurations for a launcher that executes the runs in this process.

    Composing a configuration takes a fifth of a second, and it was composed to check it.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        """Read with Hydra's loader what was not kept."""
        self._loader = loader
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def keep(self, overrides: Sequence[str], cfg: DictConfig) -> None:
        """Store the composed configuration of a run by its overrides."""
        self._composed[without_seed(overrides)] = cfg

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """Return the configuration of a run, as Hydra's loader does."""
        if (composed := self._composed.get(without_seed(sweep_overrides))) is None:
            return self._loader.load_sweep_config(master_config, list(sweep_overrides))
        cfg = copy.deepcopy(composed)
        with_seed(cfg, sweep_overrides)
        OmegaConf.set_readonly(cfg.hydra, None)  # as which it was checked
        OmegaConf.copy_cache(from_config=master_config, to_config=cfg)  # as Hydra does
        return cfg
