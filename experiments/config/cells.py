"""The run configurations of a command line, composed in this process. Nothing is run."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

import archbench.experiments.config.schema  # noqa: F401  # registers what the YAML files extend
from archbench.experiments.config import CONF
from archbench.experiments.config.handed_on import typed_overrides, with_seed, without_seed
from archbench.experiments.config.hydra_internals import (
    Hydra,
    command_line,
    expanded,
    is_expandable,
    loaded,
)
from archbench.experiments.config.hydra_overrides import checked_words, explain, unmatched
from archbench.experiments.config.ineffective_overrides import check_words
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.secrets import redact

MOST_MISTAKES = 3
"""Mistakes that are printed where no run of a sweep can be composed."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run configuration of a command line."""

    words: tuple[str, ...]
    """Overrides that choose it, those of the sweep included."""
    composed: DictConfig
    """Its configuration with Hydra's section, perhaps with another seed; that of the sweep if it is wrong."""
    mistake: str = ""
    """Reason why it cannot be composed."""

    def report(self, error: Exception | str) -> None:
        """Print the reason why the run is rejected, without secrets."""
        sys.stderr.write(redact(f"error: {' '.join(self.words)}: {error}\n"))

    def select(self) -> DictConfig:
        """Return the configuration without Hydra's section, which ``HydraConfig`` holds from now on."""
        assert not self.mistake, self.mistake
        cfg = copy.deepcopy(self.composed)
        with_seed(cfg, self.words)
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            cfg.pop("hydra")
        return cfg


def cells(words: Sequence[str], config_name: str = "config") -> list[Cell]:
    """Return the run configurations of a command line of ``archbench train``, in the order of the sweep.

    Args:
        words: the command line without the command.
        config_name: the YAML of the root.

    Raises:
        ConfigError, HydraException: the words are wrong, or all of the configurations are.
    """
    line = command_line(checked_words(words, config_name))
    with loaded(line.config_dir, CONF) as hydra:
        if (sweep := sweep_config(hydra, config_name, line.overrides, line.multirun)) is None:
            return [single_cell(hydra, config_name, line.overrides)]
        if not is_expandable(sweep):
            raise ConfigError(
                "a search chooses its runs by their scores, so they cannot be listed: archbench train runs it"
            )
        return swept_cells(hydra, config_name, sweep)


def sweep_config(hydra: Hydra, config_name: str, overrides: list[str], multirun: bool) -> DictConfig | None:
    """Return the configuration that the runs of a command line share; None if it has only one.

    Args:
        hydra: from ``loaded``.
        config_name: the YAML of the root.
        overrides: those of the command line.
        multirun: it has the option ``-m``.
    """
    if not multirun and hydra.get_mode(config_name, overrides) != RunMode.MULTIRUN:
        return None
    words = [*overrides, "hydra.mode=MULTIRUN"]
    return hydra.compose_config(config_name, words, RunMode.MULTIRUN, with_log_configuration=False)


def single_cell(hydra: Hydra, config_name: str, overrides: list[str]) -> Cell:
    """Return the run configuration of a command line without a sweep. Raises ConfigError, HydraException."""
    is_given = any(word.startswith("hydra.mode=") for word in overrides)
    words = overrides if is_given else [*overrides, "hydra.mode=RUN"]
    cfg = hydra.compose_config(config_name, words, RunMode.RUN, with_log_configuration=False)
    HydraConfig.instance().set_config(cfg)
    check_words(_without_hydra(cfg), cfg.hydra, cfg.hydra.overrides.task, mode_is_given=is_given)
    return Cell(words=tuple(typed_overrides(cfg)), composed=cfg)


def swept_cells(hydra: Hydra, config_name: str, sweep: DictConfig) -> list[Cell]:
    """Return the run configurations of a sweep, in its order; those that are wrong have a ``mistake``.

    Raises:
        ConfigError, HydraException: the sweep is wrong, or all of its configurations are.
    """
    params = OmegaConf.to_container(sweep.hydra.sweeper).get("params") or {}  # type: ignore[union-attr]
    swept = [*(f"{key}={value}" for key, value in params.items()), *typed_overrides(sweep)]
    if (reason := unmatched(swept, hydra.config_loader)) is not None:
        raise ConfigError(reason)
    batch = expanded(OverridesParser.create(config_loader=hydra.config_loader).parse_overrides(swept))
    if not batch:
        raise ConfigError("the sweep has no runs: one of its settings has no values")
    composed = {without_seed(words): words for words in batch}
    found = {key: _composed(hydra, sweep, words) for key, words in composed.items()}
    mistakes = [cfg for cfg in found.values() if isinstance(cfg, Exception)]
    if len(mistakes) == len(found):
        texts = list(dict.fromkeys(explain(mistake, config_name) for mistake in mistakes))
        if len(texts) == 1:
            raise mistakes[0]
        more = f"; and {len(texts) - MOST_MISTAKES} more" * (len(texts) > MOST_MISTAKES)
        raise ConfigError(f"no run can be composed: {'; '.join(texts[:MOST_MISTAKES])}{more}")
    return [_cell(words, found[without_seed(words)], sweep, config_name) for words in batch]


def _composed(hydra: Hydra, sweep: DictConfig, words: list[str]) -> DictConfig | Exception:
    """Return the configuration of a run, or the mistake in its overrides. Its seed composes nothing."""
    try:
        cfg = hydra.config_loader.load_sweep_config(sweep, words)
        HydraConfig.instance().set_config(cfg)
        check_words(_without_hydra(cfg), cfg.hydra, words)
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        return error
    return cfg


def _cell(words: list[str], found: DictConfig | Exception, sweep: DictConfig, config_name: str) -> Cell:
    if isinstance(found, Exception):
        return Cell(words=tuple(words), composed=sweep, mistake=explain(found, config_name))
    return Cell(words=tuple(words), composed=found)


def _without_hydra(cfg: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
