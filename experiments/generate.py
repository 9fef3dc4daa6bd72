"""Generates text with a trained model.

    python -m experiments.generate run=runs/single/decoder-text-nano-1a2b3c4d/s0 prompt='def main():'
    python -m experiments.generate run=FOLDER prompt='The' num_samples=3 sampling.top_p=0.9 max_tokens=50
    python -m experiments.generate run=FOLDER prompt='The' beam.num_beams=4
    python -m experiments.generate run=FOLDER prompt='def ____(x):' blank=_ filling.method=first_hitting

A single text is printed as it is generated, several when all are done.
"""

from __future__ import annotations

import sys

from experiments.config.hydra_app import literal, start

if __name__ == "__main__":  # before the imports below: see experiments.config.hydra_app
    sys.argv[1:] = literal(sys.argv[1:])
    start("experiments.generate.generate", "generate")
    sys.exit()

from dataclasses import dataclass, field
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.config.schema import DeviceConfig
from experiments.config.structured import typed
from experiments.data.tokenizer import TextTokenizer
from experiments.objectives.decoding.beam_search import BeamConfig, beam_search
from experiments.objectives.decoding.sampling import SamplingConfig
from experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from experiments.run.load_model import LoadedModel, UnmaskingOverrides, load_model, override_unmasking
from experiments.runtime.device import configure_process, torch_device
from experiments.runtime.errors import ConfigError
from experiments.runtime.precision import inference
from experiments.runtime.seeds import generation_seed

REPLACEMENT = "\ufffd"
"""Stands for bytes that are no character, or not yet."""

Prompts = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """Settings of ``experiments.generate``."""

    run: str
    """Folder of a run or of Hugging Face."""
    max_tokens: int = 200
    """Most tokens generated for each prompt."""
    num_samples: int = 1
    """Texts for each prompt."""
    seed: int = 0
    """Every sample draws from a stream of its own under this seed."""
    stop: list[str] = field(default_factory=lambda: ["eos"])
    """``eos``, or pieces of text that are one token."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling settings."""
    filling: UnmaskingOverrides = field(default_factory=UnmaskingOverrides)
    """Changes to unmasking, for models that fill in masked positions."""
    blank: str | None = None
    """Text of the prompt that stands for one missing token each time; these are filled in, and nothing is
    added at the end. Null continues the prompt."""
    beam: BeamConfig = field(default_factory=lambda: BeamConfig(num_beams=1))
    """Beam search, used instead of sampling where there is more than one beam."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """Device and precision."""

    def __post_init__(self) -> None:
        if self.blank == "":
            raise ValueError("blank='' must be a piece of text, or null")
        for name in ("max_tokens", "num_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if 1 < self.beam.num_beams < self.num_samples:
            raise ValueError(
                f"num_samples={self.num_samples} must not be more than beam.num_beams={self.beam.num_beams}"
            )


def generate(cfg: DictConfig) -> None:
    tree = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(tree, dict)
    prompt = tree.pop("prompt")  # any text at all, so it is not read as a setting
    texts = [str(text) for text in (prompt if isinstance(prompt, list) else [prompt])]
    config = typed(GenerateConfig, {str(key): value for key, value in tree.items()}, "")
    configure_process(threads=config.device.threads, kernels=config.device.kernels)
    device = torch_device(config.device.name)
    saved = load_model(Path(config.run), device)
    override_unmasking(saved, config.filling)
    if config.blank is not None:
        _fill_in(saved, config, texts)
        return
    prompts = [saved.tokenizer.encode(text) for text in texts]
    write = _search if config.beam.num_beams > 1 else _sample
    printer = Printer(saved, prompts[0])
    single = len(prompts) * config.num_samples == 1
    with inference(saved.model, device, config.device.precision):
        texts = write(saved, config, prompts, printer if single else None)
    for number, text in enumerate(texts, start=1):
        if single:
            printer.finish(text)
        else:
            print(f"--- {number} of {len(texts)} ---\n{text}")


def _fill_in(saved: LoadedModel, config: GenerateConfig, texts: list[str]) -> None:
    """Prints each text with its blanks filled in, ``num_samples`` times."""
    if not isinstance(saved.objective, UnmaskingObjective):
        raise ConfigError(f"blank={config.blank!r}: {saved.description} fills in no blanks")
    mask, rows = saved.task.vocabulary.mask, []
    for text in texts:
        first, *others = [saved.tokenizer.encode(piece) for piece in text.split(config.blank)]
        row = [*first, *(token for piece in others for token in (mask, *piece))]
        rows += [row] * config.num_samples
    with inference(saved.model, torch_device(config.device.name), config.device.precision):
        found = saved.objective.infill(
            saved.model,
            rows,
            generators=[_generator(config, divmod(i, config.num_samples)) for i in range(len(rows))],
            sampling=config.sampling,
        )
    for number, tokens in enumerate(found, start=1):
        text = saved.tokenizer.decode(tokens)
        print(text if len(found) == 1 else f"--- {number} of {len(found)} ---\n{text}")


def _generator(config: GenerateConfig, at: tuple[int, int]) -> torch.Generator:
    """The random numbers of a prompt's sample."""
    return torch.Generator().manual_seed(generation_seed(config.seed, *at))


class Printer:
    """Prints a text as it grows, except a character whose last bytes are still to be generated."""

    def __init__(self, saved: LoadedModel, prompt: list[int]) -> None:
        self._saved, self._prompt = saved, prompt
        self._generated: list[int] = []
        self._shown = 0

    def __call__(self, row: int, token: int) -> None:
        self._generated.append(token)
        self._show(as_text(self._saved, self._prompt, self._generated).rstrip(REPLACEMENT))

    def finish(self, text: str) -> None:
        """Prints what is left of the whole text."""
        self._show(text)
        print()

    def _show(self, text: str) -> None:
        print(text[self._shown :], end="", flush=True)
        self._shown = len(text)


def as_text(saved: LoadedModel, prompt: list[int], generated: list[int]) -> str:
    """Return the generated text, after its prompt where it continues that."""
    return saved.tokenizer.decode([*prompt, *generated] if saved.objective.continues else generated)


def _sample(
    saved: LoadedModel, config: GenerateConfig, prompts: Prompts, on_token: Printer | None
) -> list[str]:
    pairs = [(p, n) for p in range(len(prompts)) for n in range(config.num_samples)]
    rows = [prompts[p] for p, _ in pairs]
    generated = saved.objective.sample(
        saved.model,
        rows,
        max_tokens=config.max_tokens,
        generators=[_generator(config, at) for at in pairs],
        sampling=config.sampling,
        stop=stop_tokens(config.stop, saved.tokenizer),
        on_token=on_token,
    )
    return [as_text(saved, row, tokens) for row, tokens in zip(rows, generated, strict=True)]


def _search(
    saved: LoadedModel, config: GenerateConfig, prompts: Prompts, on_token: Printer | None
) -> list[str]:
    """The best ``num_samples`` of each search; which they are is known at the end only."""
    found = beam_search(
        saved.model,
        saved.objective.prefill_state(saved.model, prompts, config.max_tokens),
        saved.objective.vocabulary,
        config.beam,
        max_tokens=config.max_tokens,
        stop=stop_tokens(config.stop, saved.tokenizer),
    )
    return [
        as_text(saved, prompt, hypothesis.tokens)
        for prompt, hypotheses in zip(prompts, found, strict=True)
        for hypothesis in hypotheses[: config.num_samples]
    ]


def stop_tokens(names: list[str], tokenizer: TextTokenizer) -> set[int]:
    """The token ids behind ``stop``. Raises ConfigError for a text that is not one token."""
    found = set()
    for name in names:
        ids = [tokenizer.vocabulary.eos] if name == "eos" else tokenizer.encode(name)
        if len(ids) != 1:
            raise ConfigError(
                f"stop: {name!r} is {len(ids)} tokens; a text ends at eos, or at text of one token"
            )
        found.add(ids[0])
    return found
