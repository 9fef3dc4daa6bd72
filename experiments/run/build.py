"""Build the model of a run and prepare it for the processes that train it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from architectures.backbone import Backbone
from experiments.run.model_files import ModelSpec, load_folder_state
from experiments.run.plan import Plan
from experiments.run.settings import Settings
from experiments.runtime.device import torch_device
from experiments.runtime.seeds import initialization_seed
from experiments.training import mup
from experiments.training.parallel.device_mesh import ParallelDims
from experiments.training.parallel.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model with its initial weights, ready to be trained."""

    strategy: Strategy
    spec: ModelSpec
    kernels: dict[str, str]
    """Implementation of each costly part of the model, for the record of the run."""


def build(settings: Settings, planned: Plan, dims: ParallelDims) -> Built:
    """Build the model. Where several processes train it, each builds the parts that it keeps.

    Raises:
        ConfigError: the model cannot be divided among the processes as the settings ask.
    """
    if dims.mesh is None:
        model = build_model(settings, planned)
        return _built(settings, planned, dims, model, model.kernels(), None)
    from experiments.training.parallel.initial_shards import DividedStart

    device = torch_device(settings.device.name)
    start = DividedStart(
        lambda: _without_memory(settings, planned),
        lambda: _initial(settings, planned),
        lambda model: _load_given(settings, model),
    )
    kernels = {}
    if device.type == "cpu":
        # A whole model that nothing is written into takes no memory, and its layers say what will run.
        kernels = _without_memory(settings, planned).to_empty(device="cpu").kernels()
    built = _built(settings, planned, dims, start.model, kernels, lambda: start.fill(device))
    return built if kernels else replace(built, kernels=start.model.kernels())


def build_model(settings: Settings, planned: Plan) -> Backbone:
    """Return the whole model with its initial weights, on its device."""
    model = _initial(settings, planned)
    _load_given(settings, model)
    return model.to(torch_device(settings.device.name))


def _built(
    settings: Settings,
    planned: Plan,
    dims: ParallelDims,
    model: Backbone,
    kernels: dict[str, str],
    fill: Callable[[], None] | None,
) -> Built:
    spec = ModelSpec.of(model, settings.names.backbone, planned.task.tokenizer)
    strategy = Strategy(
        dims,
        model,
        planned.objective,
        device=torch_device(settings.device.name),
        activation_checkpointing=settings.parallel.activation_checkpointing,
        compile_blocks=settings.trainer.compile == "blocks",
        precision=settings.device.precision,
        fill=fill,
    )
    return Built(strategy=strategy, spec=spec, kernels=kernels)


def _initial(settings: Settings, planned: Plan) -> Backbone:
    """Return the model as its constructors initialise it, in CPU memory."""
    torch.manual_seed(initialization_seed(settings.seed))
    model = planned.sizes.build(settings.backbone_class, planned.matched.config)
    _parametrise(model, settings, planned)
    return model


def _load_given(settings: Settings, model: Backbone) -> None:
    """Load the weights of ``init_from`` into a model, where the run has them."""
    if (initial := settings.init_from) is not None:
        load_folder_state(initial.path, model, new_readout=True)


def _without_memory(settings: Settings, planned: Plan) -> Backbone:
    """Return the model on the meta device, with what its parameters tell the optimizer."""
    model = planned.sizes.on_meta(settings.backbone_class, planned.matched.config)
    _parametrise(model, settings, planned)
    return model


def _parametrise(model: Backbone, settings: Settings, planned: Plan) -> None:
    """Apply muP to a new model, where the run asks for it."""
    if (width := settings.optimizer.mup_base_width) is not None:
        base = planned.sizes.on_meta(settings.backbone_class, mup.at_width(settings.backbone, width))
        mup.parametrise(model, base)
