"""Evaluates a trained model on its own task, or on another.

archbench evaluate run=runs/single/decoder-text-nano-1a2b3c4d/s0
archbench evaluate run=FOLDER task=text task.sequence_length=512 output=result.json
archbench evaluate run=GPT2 task=text task.tokenizer.kind=folder task.tokenizer.path=GPT2
archbench evaluate run=GPT2 text=story.txt stride=512
"""

from __future__ import annotations

import sys

from experiments.config.hydra_app import start

if __name__ == "__main__":  # before the imports below: see experiments.config.hydra_app
    start("experiments.evaluate.evaluate", "evaluate")
    sys.exit()

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.config.schema import DeviceConfig
from experiments.config.sections import plain_tree
from experiments.config.structured import component, typed
from experiments.data.corpus import SPLITS
from experiments.evaluation.measure import measure
from experiments.evaluation.perplexity import nats_by_position, nats_by_recall, strided_perplexity, text_rates
from experiments.run.load_model import LoadedModel, load_model, read_run
from experiments.run.model_files import is_run_folder
from experiments.run.plan import build_task
from experiments.runtime.atomic_io import write_json
from experiments.runtime.console import plus_minus
from experiments.runtime.device import configure_process, torch_device
from experiments.runtime.errors import ConfigError, nearest
from experiments.tasks.metrics import Metric
from experiments.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Settings of ``experiments.evaluate``."""

    run: str
    """Folder of a run, of one of its checkpoints (``RUN/checkpoints/step-N``), or of Hugging Face."""
    split: str = "test"
    """Split evaluated."""
    examples: int | None = None
    """Examples of it, drawn at random by a fixed seed; null for the whole split, or of a generated task as
    many as bring the standard error of an accuracy to 0.5 points."""
    batch_size: int = 32
    """Examples at once; changes memory, not results."""
    stretches: int | None = None
    """Equal stretches of the sequence whose loss is shown apart; null shows none."""
    recall: bool = False
    """Show the perplexity of tokens that complete a bigram of the sequence once more, and of the others."""
    text: str | None = None
    """Text file whose perplexity is computed as one sequence, instead of a task."""
    window: int | None = None
    """Tokens of it that the model reads at a time; null for as many as it can."""
    stride: int | None = None
    """Tokens of it between the beginnings of windows; null lays them side by side."""
    output: str | None = None
    """JSON file to write the result to."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """Device and precision."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split={self.split!r} is unknown{nearest(self.split, SPLITS)}")
        if self.text is None and (self.window, self.stride) != (None, None):
            raise ValueError("window and stride are of a text: give text=FILE, or task.stride for a task")
        if (self.examples is not None and self.examples < 2) or self.batch_size < 1:
            raise ValueError(
                f"examples={self.examples} must be 2 or more, or null, and batch_size={self.batch_size} "
                "positive"
            )


def evaluate(cfg: DictConfig) -> None:
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
    saved = load_model(path, torch_device(config.device.name), task=_task(path, section))
    metrics = measure(
        saved.model,
        saved.objective,
        saved.task,
        config.split,
        examples=config.examples,
        batch_size=config.batch_size,
        precision=config.device.precision,
        by_slice=True,
    )
    rates = text_rates(metrics[0], saved.task, config.batch_size)
    positions, recalled = _positions(saved, config), _recall(saved, config)
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
        found = {"model": saved.description, "step": saved.step, "fingerprint": saved.task.fingerprint}
        listed = [asdict(metric) for metric in metrics]
        by_recall = {name: {"nats_per_token": nats, "tokens": n} for name, (nats, n) in recalled.items()}
        by_position = [{"begin": b, "end": e, "nats_per_token": nats} for b, e, nats in positions]
        content = {**found, **rates, "by_position": by_position, "by_recall": by_recall, "metrics": listed}
        _write(config.output, content)


def _evaluate_text(path: Path, config: EvaluateConfig, file: Path) -> None:
    """Print the perplexity of a text file."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"text={file}: cannot be read: {error}") from None
    saved = load_model(path, torch_device(config.device.name))
    found = strided_perplexity(
        saved.model,
        saved.prompt(text),
        window=config.window,
        stride=config.stride,
        precision=config.device.precision,
    )
    print(f"{saved.description}\n{found}")
    if config.output is not None:
        _write(
            config.output,
            {"model": saved.description, "step": saved.step, "text": str(file), **asdict(found)},
        )


def _write(output: str, content: dict[str, Any]) -> None:
    """Write a JSON file. Raises ConfigError."""
    try:
        write_json(Path(output), content)
    except OSError as error:
        raise ConfigError(f"output={output}: cannot be written: {error}") from error


def _positions(saved: LoadedModel, config: EvaluateConfig) -> list[tuple[int, int, float]]:
    if config.stretches is None:
        return []
    return nats_by_position(
        saved.model,
        saved.objective,
        config.split,
        stretches=config.stretches,
        examples=config.examples,
        batch_size=config.batch_size,
        precision=config.device.precision,
    )


def _recall(saved: LoadedModel, config: EvaluateConfig) -> dict[str, tuple[float, int]]:
    if not config.recall:
        return {}
    return nats_by_recall(
        saved.model,
        saved.objective,
        config.split,
        examples=config.examples,
        batch_size=config.batch_size,
        precision=config.device.precision,
    )


def _task(path: Path, section: dict[str, Any] | None) -> Task:
    """The task named on the command line, or else the run's own."""
    if section is not None:
        task_class, config = component({"task": section}, "task", Task)  # type: ignore[type-abstract]
        return build_task(task_class, config, task_class.__name__)
    if not is_run_folder(path):
        raise ConfigError(
            f"run={path}: a Hugging Face folder has no task of its own: name one, such as task=text "
            f"task.tokenizer.kind=folder task.tokenizer.path={path}"
        )
    return read_run(path).build_task()


def describe(metric: Metric) -> str:
    """A metric in one line, with all that is needed to read it."""
    likelihood = f"{metric.likelihood} likelihood, " if metric.likelihood else ""
    return (
        f"{metric.split} {metric.name} {metric.value:.4f}{plus_minus(metric.standard_error)} {metric.unit} "
        f"({metric.extent()}; {likelihood}{metric.estimator})"
    )
