"""The numbers that a reader asks of every run: the shape of its model, and how it is trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from architectures.backbone import BackboneConfig
from experiments.run.settings import Settings
from experiments.tasks.task import Task
from experiments.tracking.run_files import RunSetup


def run_setup(settings: Settings, config: BackboneConfig, task: Task) -> RunSetup:
    """Return the shape of a model, and how it is trained.

    Args:
        settings: of the run.
        config: of the backbone, with the widths that the solver chose.
        task: whose sequences are trained on.
    """
    return RunSetup(
        **model_shape(config),
        batch_size=settings.budget.batch_size,
        sequence_length=task.sequence_length,
        learning_rate=settings.optimizer.learning_rate,
    )


def model_shape(config: BackboneConfig) -> dict[str, int | None]:
    """Return width, layers (of encoder and decoder together), attention heads and size of the SSM state.

    What a backbone does not have is None. Of a hybrid only the mixers that stand in its layers count.
    """
    widths = asdict(config)
    used = getattr(config, "mixer_types", None)
    nested = [part for name, part in widths.items() if isinstance(part, dict) and _stands(name, used)]
    parts = [widths, *nested]

    def first(key: str) -> Any:
        return next((part[key] for part in parts if part.get(key) is not None), None)

    layers = widths["num_layers"]
    if "num_encoder_layers" in widths:
        layers += widths["num_encoder_layers"] or layers
    return {
        "d_model": config.width,
        "num_layers": layers,
        "num_heads": first("num_heads"),
        "d_state": first("d_state"),
    }


def _stands(name: str, used: set[str] | None) -> bool:
    """Return True for the settings of a mixer that the backbone has."""
    return used is None or any(kind == name or kind.endswith(f"_{name}") for kind in used)
