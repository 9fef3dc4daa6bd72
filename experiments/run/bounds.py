"""Bounds before work: memory and time that a run needs at least, compared with this machine."""

from __future__ import annotations

import torch

from architectures.backbone import BackboneConfig
from experiments.run.settings import Settings
from experiments.runtime.device import torch_device
from experiments.runtime.errors import ConfigError
from experiments.runtime.machine import total_memory, usable_cores
from experiments.tracking.run_files import PlannedCost
from experiments.training.parallel import collectives

TOKEN_BYTES = 24
"""Bytes of a token of a batch: what is shown, its target and its weight."""
PRICED_EXAMPLES = 64
"""Examples whose mean lengths a run's FLOPs are computed from; most objectives show equally long ones."""
CORE_FLOPS, GPU_FLOPS = 2e11, 2e15
"""Operations per second that no processor core and no GPU exceeds."""
LONGEST = 365 * 24 * 3600.0
"""Seconds of training, at that speed, above which a run is taken for a mistake."""
FORCE = "choose less, or device.force=true to go on"


def check_task(settings: Settings) -> None:
    """Refuse what memory cannot hold even before there is a model. Raises ConfigError with the figures."""
    length = int(getattr(settings.task, "sequence_length", None) or 1)
    symbols = int(getattr(settings.task, "num_symbols", None) or 1)
    batch = settings.budget.batch_size
    needed = {
        f"task.sequence_length={length}: {PRICED_EXAMPLES} examples": PRICED_EXAMPLES * length * TOKEN_BYTES,
        f"budget.batch_size={batch} with task.sequence_length={length}: a batch": batch
        * length
        * TOKEN_BYTES,
        f"task.num_symbols={symbols}: an embedding of width 16 with its moments": symbols * 16 * 4 * 4,
    }
    for what, size in needed.items():
        _refuse(settings, what, size, total_memory())


def check_run(settings: Settings, config: BackboneConfig, cost: PlannedCost, vocab_size: int) -> None:
    """Refuse a run that this machine cannot hold, or not end within a year. Raises ConfigError.

    Counted is what no implementation can do without: weights, gradients and moments, and of the sequences
    computed at once the logits and a state for each layer. Runs of several processes are not looked at.

    Args:
        settings: of the run.
        config: of the backbone, with its widths.
        cost: of the run, from its plan.
        vocab_size: symbols that the head scores.
    """
    device = torch_device(settings.device.name)
    memory = total_memory()
    if device.type == "cpu" and settings.device.peak_flops is not None and not settings.device.force:
        raise ConfigError(
            f"device.peak_flops={settings.device.peak_flops:g}: the run is planned for a GPU, and this "
            "machine has none: start it where there is one, or choose device=cpu"
        )
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    if collectives.world_size() == 1:
        parameters = cost.parameters.total
        copies = 5 if settings.optimizer.ema is not None else 4
        weights = copies * 4 * parameters
        _refuse(settings, f"{parameters:,} parameters with gradients and moments", weights, memory)
        asked = settings.budget.micro_batch_size
        rows = 1 if asked == "auto" else int(asked or settings.budget.batch_size)
        length = int(getattr(settings.task, "sequence_length", None) or 1)
        width = 2 if settings.device.precision == "bf16" else 4
        layers = (cost.setup.num_layers or 1) * int(config.width or 1)
        what = f"{rows} sequences of {length} tokens at once, with the weights,"
        _refuse(settings, what, weights + rows * length * width * (vocab_size + layers), memory)
    cores = settings.device.threads or usable_cores()
    speed = collectives.world_size() * (GPU_FLOPS if device.type == "cuda" else CORE_FLOPS * cores)
    seconds = cost.planned.flops / speed
    if seconds > LONGEST and not settings.device.force:
        raise ConfigError(
            f"budget.tokens={settings.budget.tokens}: {cost.planned.flops:.3g} FLOPs take "
            f"{seconds / LONGEST:,.1f} years on this machine even at {speed:.0e} per second: {FORCE}"
        )


def _refuse(settings: Settings, what: str, size: float, memory: float) -> None:
    if size > memory and not settings.device.force:
        raise ConfigError(
            f"{what} would take {size / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB: "
            f"{FORCE}"
        )
