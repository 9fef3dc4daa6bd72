"""Opens a trained model for use: the folder of a run, or one of the Hugging Face library."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from architectures.backbone import Backbone, Capabilities
from experiments.config.legacy import upgrade
from experiments.data.make_tokenizer import load_tokenizer
from experiments.data.tokenizer import TextTokenizer, TokenizerConfig
from experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from experiments.objectives.diffusion.unmasking_sampler import FillsBlanks
from experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from experiments.objectives.language_modelling.span_corruption import SpanCorruption, SpanCorruptionConfig
from experiments.objectives.objective import Objective
from experiments.run.model_files import (
    folder_tokenizer,
    hugging_face,
    hugging_face_spec,
    is_run_folder,
    load_state,
    read_model_spec,
    read_tensors,
)
from experiments.run.plan import build_task
from experiments.run.settings import Settings, read_settings
from experiments.run.size_solver import Sizes
from experiments.runtime.errors import ConfigError, DataError
from experiments.tasks.task import Batch, Task
from experiments.tasks.text.text import Text


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model, ready to be used."""

    model: Backbone
    """In evaluation mode, on its device."""
    objective: Objective
    task: Task
    settings: Settings | None
    """Of the run; None for a Hugging Face folder."""
    description: str
    """What it is, in a line."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """How to read and write text. Raises ConfigError where the model knows no text."""
        if self.task.tokenizer is None:
            raise ConfigError(f"{self.description}: it was not trained on text, so it has no tokenizer")
        return self.task.tokenizer


class Prompts(Task):
    """No examples, only a tokenizer: enough to write text, wherever the training data may be."""

    metric = "bits_per_byte"
    fingerprint = "prompts"
    sequence_length = 0

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = tokenizer.vocabulary

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        raise DataError("there are no examples to evaluate on: name a task, such as task=text")

    def num_examples(self, split: str) -> int | None:
        return None


def read_run(path: Path) -> Settings:
    """The settings of a run, its device aside: it may be opened on another machine. Raises ConfigError."""
    file = path / "config.yaml"
    try:
        stored = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    assert isinstance(stored, dict)
    cfg = OmegaConf.create(upgrade({str(key): value for key, value in stored.items()}))
    OmegaConf.update(cfg, "device.name", "cpu")
    for start in ("init_from", "continue_from"):
        OmegaConf.update(cfg, start, None)  # its weights are in the checkpoints by now
    return read_settings(cfg)


def load_model(path: Path, device: torch.device, *, task: Task | None = None) -> LoadedModel:
    """The model of a folder, with what is needed to use it on ``task``.

    Without a task it can be given prompts: text through the tokenizer that was saved
    beside it, or the run's own examples where they are no text.

    Raises:
        ConfigError: the folder holds no model, or the model cannot read the task's tokens.
        CheckpointError: the run has no whole checkpoint.
    """
    saved = _open_run(path, task) if is_run_folder(path) else _open_hugging_face(path, task)
    saved.model.to(device).eval()
    return saved


def _open_run(path: Path, task: Task | None) -> LoadedModel:
    settings, record = read_run(path), read_model_spec(path)
    if task is None:
        task = own_prompts(settings, path)
    record.check(task, path)
    _check_refusal(settings.objective_class, task)
    objective = settings.objective_class(settings.objective, task)
    sizes = Sizes(vocab_size=record.vocab_size, length=record.max_length, make_readout=objective.make_readout)
    model = sizes.build(record.backbone_class, record.config)
    load_state(read_tensors(path), model, path, new_readout=False)
    return LoadedModel(
        model=model,
        objective=objective,
        task=task,
        settings=settings,
        description=f"{path} ({settings.cell} s{settings.seed})",
    )


def own_prompts(settings: Settings, path: Path) -> Task:
    """What prompts of a run are made of: its tokenizer where it learned text, else its whole task."""
    if not issubclass(settings.task_class, Text):
        return build_task(settings.task_class, settings.task, settings.names.task)
    config: TokenizerConfig = settings.task.tokenizer
    if config.path is not None:  # the run keeps a copy
        config = dataclasses.replace(config, path=str(path))
    return Prompts(load_tokenizer(config, settings.task.num_sentinels, path))


def _open_hugging_face(path: Path, task: Task | None) -> LoadedModel:
    model = hugging_face(path)
    task = Prompts(folder_tokenizer(path)) if task is None else task
    hugging_face_spec(path).check(task, path)
    objective = usual_objective(model.capabilities, task)
    _check_refusal(type(objective), task)
    return LoadedModel(
        model=model,
        objective=objective,
        task=task,
        settings=None,
        description=f"{path} ({type(model).__name__} of Hugging Face)",
    )


def usual_objective(capabilities: Capabilities, task: Task) -> Objective:
    """What models of these abilities are usually trained by; a Hugging Face folder does not log."""
    if capabilities.encoder_decoder:
        return SpanCorruption(SpanCorruptionConfig(), task)
    if capabilities.causal:
        return CausalLM(CausalLMConfig(), task)
    if capabilities.denoises:
        return MaskedDiffusion(MaskedDiffusionConfig(), task)
    return MaskedLM(MaskedLMConfig(), task)


def _check_refusal(objective: type[Objective], task: Task) -> None:
    refused = objective.refuses(type(task))
    if refused is not None:
        raise ConfigError(f"{objective.__name__} cannot be evaluated on {type(task).__name__}: {refused}")


@dataclass(frozen=True, kw_only=True)
class UnmaskingOverrides:
    """Changes in how blanks are filled in; see FillingConfig. What is null stays as the run has it."""

    steps: int | None = None
    """Forward passes."""
    method: str | None = None
    """``confidence``, ``ancestral`` or ``first_hitting``."""
    order: str | None = None
    """``low_confidence``, ``margin``, ``entropy`` or ``random``."""
    threshold: float | None = None
    """Probability from which on a token is committed at once."""
    block_length: int | None = None
    """Blanks filled in at a time."""
    guidance: float | None = None
    """Classifier-free guidance."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"filling.steps={self.steps} must be at least 1")

    @property
    def changes(self) -> dict[str, Any]:
        """What is not null."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def override_unmasking(saved: LoadedModel, filling: UnmaskingOverrides) -> None:
    """Changes how the model fills in blanks. Raises ConfigError for a model that does not."""
    if not filling.changes:
        return
    if not isinstance(saved.objective, FillsBlanks):
        name = next(iter(filling.changes))
        raise ConfigError(f"filling.{name}: {saved.description} writes from left to right: leave it out")
    try:
        saved.objective.refill(**filling.changes)
    except ValueError as error:
        raise ConfigError(str(error)) from None
