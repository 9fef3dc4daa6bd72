"""Loads a trained model from the folder of a run, or from a folder of the Hugging Face library."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.config.schema import Names
from archbench.experiments.config.structured import component, typed
from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from archbench.experiments.data.tokenizers.make_tokenizer import load_tokenizer
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizerConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.folder_prompts import (
    FolderAnswer,
    FolderContinuation,
)
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
)
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.model_files import (
    folder_tokenizer,
    hugging_face,
    hugging_face_spec,
    is_run_folder,
    load_folder_state,
    model_folder,
    read_model_spec,
    rewriting,
    warn_of_changed_code,
)
from archbench.experiments.run.plan import build_task
from archbench.experiments.run.size_solver import Sizes
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, DataError
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tasks.task import Batch, Task
from archbench.experiments.tasks.text.text import Text
from archbench.experiments.tracking.run_files import TOKENIZER, damaged_files
from archbench.experiments.tracking.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A stored run as far as it is needed to use its model: its objective and its task."""

    names: Names
    seed: int
    objective_class: type[Objective]
    objective: Any
    """Settings of the objective."""
    task_class: type[Task]
    task: Any
    """Settings of the task."""

    @property
    def cell(self) -> str:
        """Backbone, task and scale, as the run's folder is named."""
        return f"{self.names.backbone}-{self.names.task}-{self.names.scale}"

    def build_task(self) -> Task:
        """Return the task that the model was trained on, its data prepared."""
        return build_task(self.task_class, self.task, self.names.task)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model, ready to be evaluated or to generate."""

    model: Backbone
    """The module, in evaluation mode, on its device."""
    objective: Objective
    task: Task
    run: StoredRun | None
    """The run it was trained in; None for a Hugging Face folder."""
    folder: Path
    """Of the run, or of Hugging Face."""
    step: int | None
    """Of the checkpoint; None for a Hugging Face folder."""
    description: str
    """Its description in one line."""

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt as ``objective.sample`` takes them."""
        encode = self.tokenizer.encode_prompt if self.objective.complete_prompts else self.tokenizer.encode
        return encode(text)

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer. Raises ConfigError where the model was not trained on text."""
        if self.task.tokenizer is None:
            raise ConfigError(f"{self.description}: it was not trained on text, so it has no tokenizer")
        return self.task.tokenizer


class Prompts(Task):
    """A task with a tokenizer and no examples: enough to generate text without the training data."""

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


def read_run(path: Path) -> StoredRun:
    """Read what is needed to use the model of a run from its config.yaml.

    The settings of its training are not checked: they need not be possible on this machine.

    Raises:
        ConfigError: the file is missing or damaged, or names a class that is not there.
    """
    file = model_folder(path) / "config.yaml"
    tree = read_yaml(file, rewriting(file))
    for key in ("names", "objective", "task", "seed"):
        if key not in tree:
            raise ConfigError(f"{file}: it has no {key}: it is not the configuration of a run")
    objective_class, objective = component(tree, "objective", Objective)  # type: ignore[type-abstract]
    task_class, task = component(tree, "task", Task)  # type: ignore[type-abstract]
    return StoredRun(
        names=typed(Names, tree["names"], "names"),
        seed=tree["seed"],
        objective_class=objective_class,
        objective=objective,
        task_class=task_class,
        task=task,
    )


def load_model(path: Path, device: torch.device, *, task: Task | None = None) -> LoadedModel:
    """Load the model of a folder, with what is needed to use it on ``task``.

    Without a task it can be given prompts: text, through the tokenizer that was saved next to the model,
    or examples of the run's task where that is not text.

    Raises:
        ConfigError: the folder holds no model, or the model cannot read the task's tokens.
        CheckpointError: the run has no whole checkpoint.
    """
    saved = _open_run(path, task) if is_run_folder(path) else _open_hugging_face(path, task)
    saved.model.to(device).eval()
    return saved


def _open_run(path: Path, task: Task | None) -> LoadedModel:
    run, spec = read_run(path), read_model_spec(path)
    classes = (spec.backbone_class, run.objective_class, run.task_class)
    warn_of_changed_code(model_folder(path), [cls.__module__ for cls in classes])
    if task is None:
        task = own_prompts(run, path)
    spec.check(task, path)
    _check_refusal(run.objective_class, task)
    objective_class = run.objective_class.for_backbone(spec.backbone_class.capabilities)
    objective: Objective = objective_class(run.objective, task)
    if objective_class is CausalLM and reads_folder_prompts(task):
        objective = FolderContinuation(run.objective, task)
    sizes = Sizes(vocab_size=spec.vocab_size, length=spec.max_length, make_readout=objective.make_readout)
    model = sizes.build(spec.backbone_class, spec.config)
    folder, step = model_folder(path), load_folder_state(path, model, new_readout=False)
    return LoadedModel(
        model=model,
        objective=objective,
        task=task,
        run=run,
        folder=folder,
        step=step,
        description=f"{folder} ({run.cell} s{run.seed}, step {step})",
    )


def own_prompts(run: StoredRun, path: Path) -> Task:
    """Return the task of a run; only its tokenizer, without data, where the run was trained on text."""
    if not issubclass(run.task_class, Text):
        return run.build_task()
    config: TokenizerConfig = run.task.tokenizer
    path = model_folder(path)
    result = RunFolder(path).result(anywhere=True)
    file = path / TOKENIZER
    if result is not None and damaged_files(
        result, {TOKENIZER: file.read_bytes() if file.is_file() else None}
    ):
        raise CheckpointError(f"{file}: has changed since the run ended: restore it")
    if config.path is not None:  # the run keeps a copy
        config = dataclasses.replace(config, path=str(path))
    return Prompts(load_tokenizer(config, run.task.num_sentinels, path))


def _open_hugging_face(path: Path, task: Task | None) -> LoadedModel:
    model = hugging_face(path)
    task = Prompts(folder_tokenizer(path)) if task is None else task
    hugging_face_spec(path).check(task, path)
    objective = usual_objective(model.capabilities, task)
    if reads_folder_prompts(task):
        objective = prompted_objective(objective, task)
    _check_refusal(type(objective), task)
    return LoadedModel(
        model=model,
        objective=objective,
        task=task,
        run=None,
        folder=path,
        step=None,
        description=f"{path} ({type(model).__name__} of Hugging Face)",
    )


def usual_objective(capabilities: Capabilities, task: Task) -> Objective:
    """Return the usual objective of models with these capabilities: a Hugging Face folder names none."""
    if capabilities.encoder_decoder:
        return SpanCorruption(SpanCorruptionConfig(), task)
    if capabilities.causal:
        return CausalLM(CausalLMConfig(), task)
    if capabilities.denoises:
        return MaskedDiffusion(MaskedDiffusionConfig(), task)
    return MaskedLM(MaskedLMConfig(), task)


def reads_folder_prompts(task: Task) -> bool:
    """Return True for prompts through the tokenizer of a folder, which writes their special tokens itself."""
    return isinstance(task, Prompts) and isinstance(task.tokenizer, FolderTokenizer)


def prompted_objective(usual: Objective, task: Task) -> Objective:
    """Return the objective that continues or answers complete prompts, where the model writes in order."""
    if isinstance(usual, CausalLM):
        return FolderContinuation(usual.config, task)
    return FolderAnswer(None, task) if isinstance(usual, SpanCorruption) else usual


def _check_refusal(objective: type[Objective], task: Task) -> None:
    refused = objective.incompatibility(type(task))
    if refused is not None:
        raise ConfigError(f"{objective.__name__} cannot be evaluated on {type(task).__name__}: {refused}")


@dataclass(frozen=True, kw_only=True)
class UnmaskingOverrides:
    """Changes to how masked positions are unmasked. A setting that is null stays as the run has it."""

    steps: int | None = None
    """Forward passes."""
    method: str | None = None
    """``confidence``, ``ancestral`` or ``first_hitting``."""
    order: str | None = None
    """``low_confidence``, ``largest_probability``, ``margin``, ``entropy``, ``left_to_right``, ``random``."""
    threshold: float | None = None
    """Probability from which on a token is committed at once."""
    block_length: int | None = None
    """Blanks filled in at a time."""
    remasking: str | None = None
    """``capped`` or ``rescaled``, of ``ancestral``."""
    remasking_rate: float | None = None
    """Probability of masking a token again, or its fraction of the largest possible one."""
    remasking_loop: list[float] | None = None
    """[t_on, t_off, alpha] of ReMDM-loop."""
    guidance: float | None = None
    """Classifier-free guidance."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"filling.steps={self.steps} must be at least 1")

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that are not null, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def override_unmasking(saved: LoadedModel, filling: UnmaskingOverrides) -> None:
    """Change how the model unmasks. Raises ConfigError for a model that generates from left to right."""
    if not filling.changes:
        return
    if not isinstance(saved.objective, UnmaskingObjective):
        name = next(iter(filling.changes))
        raise ConfigError(f"filling.{name}: {saved.description} writes from left to right: leave it out")
    try:
        saved.objective.override_unmasking(**filling.changes)
    except ValueError as error:
        raise ConfigError(str(error)) from None
