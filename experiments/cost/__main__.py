"""Prints what a model costs: parameters, FLOPs, memory of weights and of the decoding state. Builds nothing.

archbench cost backbone=llama2_70b sequence_length=4096 batch_size=1 precision=bf16
archbench cost backbone=deepseek_v3 memory_gib=1128 output=deepseek.json
archbench cost backbone=mamba scale=small sequence_length=65536
"""

from __future__ import annotations

import sys

from experiments.config.hydra_app import start

if __name__ == "__main__":  # before the imports below: see experiments.config.hydra_app
    start("experiments.cost.__main__.cost", "cost")
    sys.exit()

from pathlib import Path
from typing import Any

import rich.console
from omegaconf import DictConfig

from architectures.backbone import Backbone
from experiments.config.schema import ScaleConfig
from experiments.config.sections import plain_tree, with_target
from experiments.config.structured import component, typed
from experiments.cost.model_cost import CostConfig, Pricing
from experiments.cost.tables import render
from experiments.runtime.atomic_io import write_json
from experiments.runtime.errors import ConfigError


def cost(cfg: DictConfig) -> None:
    report = price(cfg)
    rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else 150).print(render(report))
    if cfg.output is not None:
        write_json(Path(cfg.output), report)


def price(cfg: DictConfig) -> dict[str, Any]:
    """The numbers of a composed configuration. Raises ConfigError."""
    tree = plain_tree(cfg)
    cls, config = component(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    scale = typed(ScaleConfig, with_target(tree["scale"]), "scale")
    own = {key: value for key, value in tree.items() if key not in ("backbone", "scale", "objective")}
    asked = typed(CostConfig, own, "")
    if asked.output is not None and not Path(asked.output).parent.is_dir():
        raise ConfigError(
            f"output={asked.output}: there is no folder {Path(asked.output).parent}; make it first"
        )
    try:
        return Pricing(cls, config, scale, asked).report()
    except ConfigError:
        raise
    except ValueError as error:  # widths that do not go together
        raise ConfigError(f"backbone: {error}") from None
