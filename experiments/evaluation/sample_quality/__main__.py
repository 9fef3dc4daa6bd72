"""Measures generated texts: their likelihood under another model, their variety, and the speed of generation.

    archbench evaluate samples run=FOLDER judge=FOLDER
    archbench evaluate samples run=FOLDER judge=FOLDER steps=[4,16,64] output=quality

One row for each number of steps, since quality and speed are only meaningful together: a table
on the screen, ``quality.csv`` and ``quality.html`` in ``output``. The last row is real text of the same
length, judged in the same way. Generative perplexity falls when samples are repetitive, so entropy is also
given.

Shapes: N samples, T tokens.
"""

from __future__ import annotations

import sys

from archbench.experiments.config.hydra_app import start

if __name__ == "__main__":  # before the imports below: see archbench.experiments.config.hydra_app
    start("archbench.experiments.evaluation.sample_quality.__main__.sample_quality", "sample_quality")
    sys.exit()

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from omegaconf import DictConfig

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.config.sections import plain_tree
from archbench.experiments.config.structured import typed
from archbench.experiments.evaluation.measure import EVALUATION_SEED
from archbench.experiments.evaluation.sample_quality.statistics import (
    Judgement,
    distinct,
    judged,
    token_entropy,
)
from archbench.experiments.evaluation.sample_quality.table import Row, render, write
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.decoding.stops import stop_tokens
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.run.load_model import (
    LoadedModel,
    UnmaskingOverrides,
    load_model,
    override_unmasking,
    read_run,
)
from archbench.experiments.run.model_files import is_run_folder
from archbench.experiments.runtime.console import print_tables
from archbench.experiments.runtime.device import configure_process, inference, torch_device
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.seeds import stream

Texts = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class SampleQualityConfig:
    """Settings of ``experiments.evaluation.sample_quality``."""

    run: str
    """Folder of the run, or of Hugging Face, that generates."""
    judge: str
    """Folder of the causal model that scores the texts; printed with the results."""
    steps: list[int] = field(default_factory=lambda: [4, 8, 16, 32, 64])
    """Forward passes for each sample; one row each. A model that writes from left to right has one row."""
    num_samples: int = 32
    """Texts for each row."""
    batch_size: int = 32
    """Texts generated together; speed depends on it."""
    length: int = 128
    """Tokens of each text at most."""
    prompt: str = ""
    """Text that every sample continues; it is not judged."""
    stop: list[str] = field(default_factory=lambda: ["eos"])
    """``eos``, or pieces of text that are one token."""
    seed: int = 0
    """Seed of the samples, each with a separate random stream."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling settings."""
    filling: UnmaskingOverrides = field(default_factory=UnmaskingOverrides)
    """Changes of unmasking, except the number of steps."""
    output: str | None = None
    """Folder for quality.csv and quality.html."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """Device and precision."""

    def __post_init__(self) -> None:
        if not self.steps or min(self.steps) < 1:
            raise ValueError(f"steps={list(self.steps)} must be one or more positive numbers")
        if self.filling.steps is not None:
            raise ValueError(f"filling.steps={self.filling.steps}: give steps=[...] instead")
        if self.num_samples < 2 or self.batch_size < 1 or self.length < 1:
            raise ValueError(
                f"num_samples={self.num_samples} must be 2 or more, batch_size={self.batch_size} and "
                f"length={self.length} positive"
            )


def sample_quality(cfg: DictConfig) -> None:
    config = typed(SampleQualityConfig, plain_tree(cfg), "")
    configure_process(threads=config.device.threads, kernels=config.device.kernels)
    device = torch_device(config.device.name)
    saved, judge = load_model(Path(config.run), device), load_model(Path(config.judge), device)
    if not judge.model.capabilities.causal:
        raise ConfigError(
            f"judge={config.judge}: only a causal model gives exact likelihoods of texts, and this is "
            f"{judge.model.capabilities.describe()}"
        )
    override_unmasking(saved, config.filling)
    unmasks = isinstance(saved.objective, UnmaskingObjective)
    rows = [_samples(saved, judge, config, steps) for steps in (config.steps if unmasks else [None])]
    real = _real(saved, config)
    if real:
        rows.append(_row(saved, judge, config, real, text="real"))
    print(f"{saved.description}, {how(saved, config)}\njudge: {judge.description}")
    print_tables(render(rows), keys=2)
    if config.output is not None:
        write(rows, Path(config.output), f"{saved.description}; {how(saved, config)}; judge {config.judge}")


def how(saved: LoadedModel, config: SampleQualityConfig) -> str:
    """Describe how the texts were generated."""
    drawn = f"temperature {config.sampling.temperature:g}, top_p {config.sampling.top_p or 1:g}"
    if not isinstance(saved.objective, UnmaskingObjective):
        return f"left to right, {drawn}, float64 noise"
    unmasking = saved.objective.unmasking.description
    return f"{unmasking}, {drawn}, float64 noise, batches of {config.batch_size}"


def _samples(saved: LoadedModel, judge: LoadedModel, config: SampleQualityConfig, steps: int | None) -> Row:
    """Generate the texts of a row and measure them."""
    if steps is not None:
        assert isinstance(saved.objective, UnmaskingObjective)
        saved.objective.override_unmasking(steps=steps)
    passes, texts, stop = list[int](), list[list[int]](), stop_tokens(config.stop, saved.tokenizer)
    hook = saved.model.embedding.register_forward_hook(lambda *_: passes.append(1))
    prompt, began = saved.prompt(config.prompt), time.perf_counter()
    with inference(saved.model, torch_device(config.device.name), config.device.precision):
        for start in range(0, config.num_samples, config.batch_size):
            indices = range(start, min(start + config.batch_size, config.num_samples))
            seeds = [stream(config.seed, "quality", index) >> 1 for index in indices]
            texts += saved.objective.sample(
                saved.model,
                [prompt] * len(indices),
                max_tokens=config.length,
                generators=[torch.Generator().manual_seed(seed) for seed in seeds],
                sampling=config.sampling,
                stop=stop,
            )
    seconds = time.perf_counter() - began
    hook.remove()
    speed = sum(map(len, texts)) / seconds
    batches = -(-config.num_samples // config.batch_size)
    trimmed = [text[:-1] if text and text[-1] in stop else text for text in texts]
    return _row(
        saved, judge, config, trimmed, text="samples", steps=steps, passes=len(passes) / batches, speed=speed
    )


def _real(saved: LoadedModel, config: SampleQualityConfig) -> Texts:
    """Return as many texts of the test split of the run's task; none if that is not plain text."""
    if not is_run_folder(Path(config.run)):
        return []
    task = read_run(Path(config.run)).build_task()
    available = task.num_examples("test")
    count = config.num_samples if available is None else min(config.num_samples, available)
    batch = task.batch("test", EVALUATION_SEED, 0, count)
    if not batch.whole:
        return []
    rows = zip(batch.tokens_BT, batch.valid_BT, strict=True)
    return [tokens_T[valid_T].tolist()[: config.length] for tokens_T, valid_T in rows]


def _row(
    saved: LoadedModel,
    judge: LoadedModel,
    config: SampleQualityConfig,
    texts: Texts,
    *,
    text: str,
    steps: int | None = None,
    passes: float | None = None,
    speed: float | None = None,
) -> Row:
    decoded = [saved.tokenizer.decode(tokens) for tokens in texts]
    judgement: Judgement = judged(judge, decoded, config.device, config.batch_size)
    entropy, entropy_error = token_entropy(texts)
    return Row(
        text=text,
        steps=steps,
        passes=passes,
        tokens_per_second=speed,
        perplexity=judgement.perplexity,
        perplexity_error=judgement.perplexity_error,
        bits_per_byte=judgement.bits_per_byte,
        entropy=entropy,
        entropy_error=entropy_error,
        distinct_1=distinct(texts, 1),
        distinct_2=distinct(texts, 2),
        distinct_3=distinct(texts, 3),
        tokens=sum(map(len, texts)),
    )
