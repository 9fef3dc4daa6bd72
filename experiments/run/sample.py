"""A text that a trained model generates from a fixed prompt, for the cards of the report."""

from __future__ import annotations

import torch

from archbench.architectures.backbone import Backbone
from archbench.experiments.objectives.decoding.sampling import GREEDY
from archbench.experiments.runtime.device import inference
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.text.text import Text
from archbench.experiments.tracking.run_files import Sample
from archbench.experiments.training.optimizer_step import averaged
from archbench.experiments.training.trainer import Trainer

PROMPT_TOKENS = 48
"""Tokens of the validation split in the prompt, at most half a training example."""
MAX_TOKENS = 80


def sample(trainer: Trainer) -> Sample | None:
    """Return the greedy continuation of the beginning of the validation split.

    It has no effect on training: it comes after it, and draws from a generator of its own. None without text,
    with several processes, and for a model that does not continue text.
    """
    task, objective, model = trainer.task, trainer.objective, trainer.model
    if not isinstance(task, Text) or not objective.continues or trainer.strategy.dims.mesh is not None:
        return None
    length = min(PROMPT_TOKENS, task.sequence_length // 2)
    prompt = task.beginning("validation", length).decode(errors="ignore")
    tokens = task.tokenizer.encode(prompt)
    if (limit := _limit(model, len(tokens))) < 1:
        return None
    try:
        with averaged(trainer.optimizer), inference(model, trainer.device, trainer.evaluator.precision):
            [generated] = objective.sample(
                model, [tokens], max_tokens=limit, generators=[torch.Generator().manual_seed(0)],
                sampling=GREEDY,
            )  # fmt: skip
    except (DataError, NotImplementedError):  # an objective or a backbone that does not continue text
        return None
    except (RuntimeError, MemoryError) as error:  # the scores are there: a text is not worth a failure
        trainer.console.log(f"no sample was generated: {str(error).splitlines()[0]}")
        return None
    return Sample(prompt=prompt, text=task.tokenizer.decode(generated))


def _limit(model: Backbone, prompt: int) -> int:
    """Return how many tokens to generate: fewer where a table of positions ends."""
    positions = getattr(model.config, "positions", None)
    if positions is None or not positions.has_table:
        return MAX_TOKENS
    return min(MAX_TOKENS, model.max_length - prompt - 1)
