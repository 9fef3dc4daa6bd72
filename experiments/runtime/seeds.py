"""Seeds of a run: every random draw follows from ``seed`` by one of the functions here.

Each function hashes the seed of the run together with a purpose and a position (a step, an epoch, an
example), so that no generator has state between steps: a resumed run draws the same values as an
uninterrupted one, and two purposes never share random streams.

Evaluations do not depend on the seed of the run: every run is scored on the same examples and masks.
"""

from __future__ import annotations

import zlib

GAMMA = 0x9E3779B97F4A7C15
"""Increment of SplitMix64 (Steele et al. 2014)."""
MASK_64 = (1 << 64) - 1


def stream(*parts: int | str) -> int:
    """Return a 64-bit key from integers and names, for example ``stream(seed, "train", "windows")``."""
    key = 0
    for part in parts:
        word = zlib.crc32(part.encode()) if isinstance(part, str) else part & MASK_64
        x = ((key + GAMMA) & MASK_64) ^ word
        # The finaliser of SplitMix64 in Python integers: for one value ten times as fast as in NumPy.
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK_64
        key = x ^ (x >> 31)
    return key


def torch_seed(*parts: int | str) -> int:
    """Return a seed for ``torch.Generator.manual_seed``, which accepts 63 bits."""
    return stream(*parts) >> 1


def initialization_seed(seed: int) -> int:
    """Return the seed of the model's initial weights; ``experiments.run.run.new_model`` sets it."""
    return torch_seed(seed, "initialisation")


def data_order_key(seed: int, epoch: int) -> int:
    """Return the key of the permutation in which an epoch shows the training examples.

    Used by ``experiments.data.counter_rng`` for generated tasks and by ``experiments.tasks.text`` for texts.
    """
    return stream(seed, "train", "order", epoch)


def objective_noise_seed(seed: int, step: int) -> int:
    """Return the seed of the objective's draws for the batch of a step: masks, spans, noise levels.

    ``experiments.training.trainer`` draws for the full batch at once, so micro-batches do not change it.
    """
    return torch_seed(seed, "noise", step)


def dropout_seed(seed: int, step: int, data_rank: int) -> int:
    """Return the seed of a step's dropout in the process with this part of the batch.

    ``experiments.training.trainer`` sets it before each step. The process with the first part draws the same
    as a single process.
    """
    part = (data_rank,) if data_rank else ()
    return torch_seed(seed, "dropout", step, *part)


def evaluation_seed(split: str, example: int) -> int:
    """Return the seed of an evaluated example's masks, independent of the run's seed and batch size."""
    return torch_seed("evaluation", split, example)


def router_probe_seed(split: str, start: int) -> int:
    """Return the seed of the masks of the examples on which expert routing is recorded."""
    return torch_seed("routing", split, start)


def generation_seed(seed: int, prompt: int, sample: int) -> int:
    """Return the seed of one sample of one prompt (``experiments.run.generation.writing``)."""
    return torch_seed(seed, "sample", prompt, sample)
