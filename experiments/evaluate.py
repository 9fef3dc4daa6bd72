"""Evaluate a trained model on its task, or on another.

archbench evaluate run=runs/single/decoder-text-nano-1a2b3c4d/s0
archbench evaluate run=FOLDER task=text task.sequence_length=512 output=result.json
archbench evaluate run=GPT2 task=text task.tokenizer.kind=folder task.tokenizer.path=GPT2
archbench evaluate run=GPT2 text=story.txt stride=512
archbench evaluate run=FOLDER path_likelihood=true filling.order=entropy filling.steps=64
"""

from __future__ import annotations

import sys

from archbench.experiments.config.hydra_app import start
from archbench.experiments.objectives.diffusion.path_likelihood import PathLikelihood

if __name__ == "__main__":  # before the imports below: see archbench.experiments.config.hydra_app
    start("archbench.experiments.evaluate.evaluate", "evaluate")
    sys.exit()

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from omegaconf import DictConfig

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.config.sections import plain_tree
from archbench.experiments.config.structured import component, typed
from archbench.experiments.data.corpus import SPLITS
from archbench.experiments.data.local_files import decode_utf8
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.evaluation.perplexity import (
    nats_by_position,
    nats_by_recall,
    strided_perplexity,
    text_rates,
)
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.load_model import (
    LoadedModel,
    UnmaskingOverrides,
    load_model,
    override_unmasking,
    read_run,
)
from archbench.experiments.run.model_files import is_run_folder
from archbench.experiments.run.plan import build_task
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.console import plus_minus
from archbench.experiments.runtime.device import configure_process, torch_device
from archbench.experiments.runtime.errors import ConfigError, nearest
from archbench.experiments.runtime.special_files import check_file
from archbench.experiments.tasks.metrics import Metric
from archbench.experiments.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Settings of ``experiments.evaluate``."""

    run: str
    """Folder of a run, of one of its checkpoints (``RUN/checkpoints/step-N``), or of Hugging Face."""
    split: str = "test"
    """Split to evaluate."""
    examples: int | None = None
    """Examples of the split, sampled with a fixed seed; null for the full split, or for a generated task as
    many as reduce the standard error of an accuracy to 0.5 points."""
    batch_size: int = 32
    """Examples of a batch; changes memory, not results."""
    stretches: int | None = None
    """Number of equal parts of the sequence with separate losses; null for none."""
    recall: bool = False
    """Print the perplexity of tokens that repeat a bigram of the sequence, and that of all other tokens."""
    path_likelihood: bool = False
    """Also compute the exact likelihood of text under the sampler that ``filling`` selects, for masked
    diffusion, as ``path_bits_per_byte``; positions must follow from the shown tokens, as in
    ``filling.order=entropy``."""
    filling: UnmaskingOverrides = field(default_factory=UnmaskingOverrides)
    """Changes to unmasking, for models that fill in masked positions."""
    text: str | None = None
    """Text file to compute the perplexity of as one sequence, instead of a task."""
    window: int | None = None
    """Tokens of the text in a window; null for as many as the model can read."""
    stride: int | None = None
    """Tokens of the text between the starts of windows; null for windows without overlap."""
    output: str | None = None
    """JSON file to write the result to."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """Device and precision."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split={self.split!r} is unknown{nearest(self.split, SPLITS)}")
        if self.text is None and (self.window, self.stride) != (None, None):
            raise ValueError("window and stride need a text: give text=FILE, or task.stride for a task")
        if self.text is not None:
            self._check_text()
        if (self.examples is not None and self.examples < 2) or self.batch_size < 1:
            raise ValueError(
                f"examples={self.examples} must be 2 or more, or null, and batch_size={self.batch_size} "
                "positive"
            )

    def _check_text(self) -> None:
        """Raise ValueError for settings of a task beside ``text``, and for files that are not plain text."""
        of_task = ("split", "examples", "stretches", "recall", "path_likelihood", "filling")
        plain = {each.name: each.default for each in fields(self)} | {"filling": UnmaskingOverrides()}
        if given := [name for name in of_task if getattr(self, name) != plain[name]]:
            raise ValueError(
                f"{', '.join(given)}: for a task, and text={self.text} is one sequence: leave one out"
            )
        if not self.text:
            raise ValueError("text= is empty: give the path of a text file")
        suffix = Path(self.text).suffix
        if suffix in (".json", ".jsonl", ".parquet", ".csv", ".tsv"):
            raise ValueError(
                f"text={self.text}: a {suffix} file holds rows, not one text: give a plain text, or a task "
                f"with task=text task.source=files task.paths=[...] task.test_paths=[{self.text}]"
            )


def evaluate(cfg: DictConfig) -> None:
    """Evaluate the model of a composed configuration, and print the metrics."""
    tree = plain_tree(cfg)
    section = tree.pop("task", None)
    config = typed(EvaluateConfig, tree, "")
    configure_process(threads=config.device.threads, kernels=config.device.kernels)
    path = Path(config.run)
    if config.text is not None:
        if section is not None:
            raise ConfigError("text and task are given: give one of them")
        _evaluate_text(path, config, Path(config.text))
        return
    if section is not None:
        task_class, settings = component({"task": section}, "task", Task)  # type: ignore[type-abstract]
        task = build_task(task_class, settings, task_class.__name__)
    elif is_run_folder(path):
        task = read_run(path).build_task()
    else:
        raise ConfigError(
            f"run={path}: a Hugging Face folder has no task: name one, such as task=text "
            f"task.tokenizer.kind=folder task.tokenizer.path={path}"
        )
    _evaluate_task(load_model(path, torch_device(config.device.name), task=task), config)


def _evaluate_task(saved: LoadedModel, config: EvaluateConfig) -> None:
    """Print the metrics of a task, and write them to ``output``."""
    examples, batch_size, precision = config.examples, config.batch_size, config.device.precision
    override_unmasking(saved, config.filling)
    path = _path_likelihood(saved) if config.path_likelihood else None
    metrics = measure(
        saved.model,
        saved.objective,
        saved.task,
        config.split,
        examples=examples,
        batch_size=batch_size,
        precision=precision,
        by_slice=True,
    )
    if path is not None:
        (metric,) = measure(
            saved.model,
            path,
            saved.task,
            config.split,
            examples=examples,
            batch_size=batch_size,
            precision=precision,
        )
        metrics.append(replace(metric, name="path_bits_per_byte"))
    rates = text_rates(metrics[0], saved.task, config.batch_size)
    positions: list[tuple[int, int, float]] = []
    if config.stretches is not None:
        positions = nats_by_position(
            saved.model,
            saved.objective,
            config.split,
            stretches=config.stretches,
            examples=examples,
            batch_size=batch_size,
            precision=precision,
        )
    recalled: dict[str, tuple[float, int]] = {}
    if config.recall:
        recalled = nats_by_recall(
            saved.model,
            saved.objective,
            config.split,
            examples=examples,
            batch_size=batch_size,
            precision=precision,
        )
    print(saved.description)
    for metric in metrics:
        print(describe(metric))
    for name, value in rates.items():
        print(f"{name.replace('_', ' ')} {value:.4f}")
    for begin, end, nats in positions:
        print(f"tokens {begin} to {end - 1}: {nats:.4f} nats per token")
    for name, (nats, tokens) in recalled.items():
        print(f"{name} bigrams: perplexity {math.exp(nats):.4f} over {tokens} tokens")
    if config.output is not None:
        by_recall = {name: {"nats_per_token": nats, "tokens": n} for name, (nats, n) in recalled.items()}
        by_position = [{"begin": b, "end": e, "nats_per_token": nats} for b, e, nats in positions]
        content = {
            "model": saved.description,
            "step": saved.step,
            "fingerprint": saved.task.fingerprint,
            **rates,
            "by_position": by_position,
            "by_recall": by_recall,
            "metrics": [asdict(metric) for metric in metrics],
        }
        _write(config.output, content)


def _path_likelihood(saved: LoadedModel) -> Objective:
    """Return the objective that scores by the exact likelihood of the model's sampler. Raises ConfigError."""
    objective, metric = saved.objective, saved.task.metric
    if not objective.has_unmasking_path:
        raise ConfigError(
            f"path_likelihood: {saved.description} was not trained by masked_diffusion or any_order: leave "
            "it out"
        )
    if objective.continues and metric != "bits_per_byte":
        raise ConfigError(f"path_likelihood: the task is scored by {metric}, not as text: leave it out")
    try:
        return PathLikelihood(objective)
    except ValueError as error:
        raise ConfigError(f"path_likelihood: {error}") from None


def _evaluate_text(path: Path, config: EvaluateConfig, file: Path) -> None:
    """Print the perplexity of a text file."""
    try:
        if not file.is_fifo():  # a pipe of the shell, <(...), ends; any other is rejected as it is opened
            check_file(file)
        text = decode_utf8(file.read_bytes(), file, 0)  # as training reads it
    except OSError as error:
        raise ConfigError(f"text={file}: cannot be read: {error}") from None
    saved = load_model(path, torch_device(config.device.name))
    perplexity = strided_perplexity(
        saved.model,
        saved.prompt(text),
        window=config.window,
        stride=config.stride,
        precision=config.device.precision,
    )
    print(f"{saved.description}\n{perplexity}")
    if config.output is not None:
        source = {"model": saved.description, "step": saved.step, "text": str(file)}
        _write(config.output, source | asdict(perplexity))


def _write(output: str, content: Mapping[str, object]) -> None:
    """Write a JSON file. Raises ConfigError."""
    try:
        write_json(Path(output), content)
    except OSError as error:
        raise ConfigError(f"output={output}: cannot be written: {error}") from error


def describe(metric: Metric) -> str:
    """Return a line with a metric and what is needed to interpret it."""
    likelihood = f"{metric.likelihood} likelihood, " if metric.likelihood else ""
    return (
        f"{metric.split} {metric.name} {metric.value:.4f}{plus_minus(metric.standard_error)} {metric.unit} "
        f"({metric.extent()}; {likelihood}{metric.estimator})"
    )
