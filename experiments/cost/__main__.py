"""Print the cost of a model without building it: parameters, FLOPs, memory of weights and decoding state.

archbench cost backbone=llama2_70b sequence_length=4096 batch_size=1 precision=bf16
archbench cost backbone=deepseek_v3 memory_gib=1128 output=deepseek.json
archbench cost backbone=mamba scale=small sequence_length=65536
"""

from __future__ import annotations

import sys

from archbench.experiments.config.hydra_app import start

if __name__ == "__main__":  # before the imports below: see archbench.experiments.config.hydra_app
    start("archbench.experiments.cost.__main__.cost", "cost")
    sys.exit()

from pathlib import Path

from omegaconf import DictConfig

from archbench.architectures.backbone import Backbone
from archbench.experiments.config.schema import ScaleConfig
from archbench.experiments.config.sections import plain_tree, with_target
from archbench.experiments.config.structured import component, typed
from archbench.experiments.cost.model_cost import CostConfig, CostReport, Pricing
from archbench.experiments.cost.tables import render
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.console import print_tables
from archbench.experiments.runtime.errors import ConfigError


def cost(cfg: DictConfig) -> None:
    """Print the cost of a composed configuration, and write it to ``output``."""
    report = price(cfg)
    print_tables(render(report))
    if cfg.output is not None:
        write_json(Path(cfg.output), report.tree())


def price(cfg: DictConfig) -> CostReport:
    """Return the cost of a composed configuration. Raises ConfigError."""
    tree = plain_tree(cfg)
    cls, config = component(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    scale = typed(ScaleConfig, with_target(tree["scale"]), "scale")
    options = {key: value for key, value in tree.items() if key not in ("backbone", "scale", "objective")}
    request = typed(CostConfig, options, "")
    if request.output is not None and not Path(request.output).parent.is_dir():
        raise ConfigError(
            f"output={request.output}: there is no folder {Path(request.output).parent}; make it first"
        )
    try:
        return Pricing(cls, config, scale, request).report()
    except ConfigError:
        raise
    except ValueError as error:  # incompatible widths
        raise ConfigError(f"backbone: {error}") from None
