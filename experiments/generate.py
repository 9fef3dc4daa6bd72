"""Generates text with a trained model.

    archbench generate run=runs/single/decoder-text-nano-1a2b3c4d/s0 prompt='def main():'
    archbench generate run=FOLDER prompt='The' num_samples=3 sampling.top_p=0.9 max_tokens=50
    archbench generate run=FOLDER prompt='The' beam.num_beams=4
    archbench generate run=FOLDER 'messages=[{role: user, content: Hello}]'
    archbench generate run=FOLDER prompt='def ____(x):' blank=_ filling.method=first_hitting

A single text is printed as it is generated, multiple texts when all are done.
"""

from __future__ import annotations

import sys

from archbench.experiments.config.hydra_app import start
from archbench.experiments.config.hydra_overrides import literal

if __name__ == "__main__":  # before the imports below: see archbench.experiments.config.hydra_app
    start("archbench.experiments.generate.generate", "generate", words=literal(sys.argv[1:]))
    sys.exit()

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.config.sections import plain_tree
from archbench.experiments.config.structured import typed
from archbench.experiments.data.tokenizers.chat_template import render_messages
from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from archbench.experiments.objectives.decoding.stops import read_stops
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.run.generation.request import Request
from archbench.experiments.run.generation.settings import (
    BeamOverrides,
    ConstraintOverrides,
    GenerationSettings,
    SamplingOverrides,
    read_generation_settings,
)
from archbench.experiments.run.generation.writing import (
    sample_generator,
    sample_texts,
    search_texts,
    tokens_with_positions,
)
from archbench.experiments.run.load_model import (
    LoadedModel,
    UnmaskingOverrides,
    load_model,
    override_unmasking,
)
from archbench.experiments.runtime.device import configure_process, inference, torch_device
from archbench.experiments.runtime.errors import ConfigError

REPLACEMENT = "\ufffd"
"""Replaces bytes that are not a complete character."""


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """Settings of ``experiments.generate``."""

    run: str
    """Folder of a run, of one of its checkpoints (``RUN/checkpoints/step-N``), or of Hugging Face."""
    max_tokens: int | None = None
    """Most tokens generated for each prompt; null for the folder's limit, or 200, or as many as there are
    positions for."""
    num_samples: int = 1
    """Texts for each prompt."""
    seed: int = 0
    """Seed of the samples, each with a separate random stream."""
    stop: list[str] = field(default_factory=lambda: ["eos"])
    """``eos``, names of special tokens, or pieces of text."""
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    """Sampling settings."""
    filling: UnmaskingOverrides = field(default_factory=UnmaskingOverrides)
    """Changes to unmasking, for models that fill in masked positions."""
    blank: str | None = None
    """Text in the prompt that marks one missing token each time; these are filled in, and no text is
    added at the end. Null continues the prompt."""
    beam: BeamOverrides = field(default_factory=BeamOverrides)
    """Beam search, used instead of sampling where there is more than one beam."""
    constraints: ConstraintOverrides = field(default_factory=ConstraintOverrides)
    """Constraints on the generated text."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """Device and precision."""

    def __post_init__(self) -> None:
        if self.blank == "":
            raise ValueError("blank='' must be a piece of text, or null")
        for name in ("max_tokens", "num_samples"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")


def generate(cfg: DictConfig) -> None:
    tree = plain_tree(cfg)
    prompt, messages = tree.pop("prompt"), tree.pop("messages")  # any text at all, so not read as settings
    texts = [str(text) for text in (prompt if isinstance(prompt, list) else [prompt])]
    config = typed(GenerateConfig, tree, "")
    configure_process(threads=config.device.threads, kernels=config.device.kernels)
    device = torch_device(config.device.name)
    saved = load_model(Path(config.run), device)
    override_unmasking(saved, config.filling)
    if config.blank is not None:
        _fill_in(saved, config, texts)
        return
    request = _request(saved, config, texts, messages)
    printer = Printer(request)
    single = len(request.prompts) * config.num_samples == 1
    with inference(saved.model, device, config.device.precision):
        if request.beam.num_beams > 1:
            texts = search_texts(request)
        else:
            texts = sample_texts(request, printer if single else None)
    for index, text in enumerate(texts, start=1):
        if single:
            printer.finish(text)
        else:
            print(f"--- {index} of {len(texts)} ---\n{text}")


def _request(saved: LoadedModel, config: GenerateConfig, texts: list[str], messages: Any) -> Request:
    """Return the request of a command. Raises ConfigError."""
    folder = Path(config.run)
    settings = read_generation_settings(folder) if saved.run is None else GenerationSettings()
    beam, sampling = config.beam.apply(settings), config.sampling.apply(settings)
    if 1 < beam.num_beams < config.num_samples:
        raise ConfigError(
            f"num_samples={config.num_samples} must not be more than beam.num_beams={beam.num_beams}"
        )
    if messages is None:
        prompts = [saved.prompt(text) for text in texts]
    elif texts != [""]:
        raise ConfigError("prompt and messages are given: give one of them")
    else:
        prompts = [chat_prompt(saved, folder, messages)]
    longest = max(len(prompt) for prompt in prompts)
    limit = config.max_tokens or settings.most_tokens(longest, saved.objective.continues)
    framed = saved.objective.complete_prompts or isinstance(saved.objective, UnmaskingObjective)
    begun = longest if framed else longest + 1
    free_positions = tokens_with_positions(saved, begun if saved.objective.continues else 1)
    if config.max_tokens is None and free_positions is not None:
        limit = max(min(limit, free_positions), 1)
    return Request(
        saved=saved,
        prompts=prompts,
        shows_prompt=saved.objective.continues and messages is None,
        num_samples=config.num_samples,
        seed=config.seed,
        max_tokens=limit,
        sampling=sampling,
        beam=beam,
        constraints=config.constraints.apply(settings),
        stop=read_stops(config.stop, saved.tokenizer),
    )


def chat_prompt(saved: LoadedModel, folder: Path, messages: Any) -> list[int]:
    """Return the tokens of a conversation, by the chat template of the model's folder. Raises ConfigError."""
    tokenizer = saved.tokenizer
    if not isinstance(tokenizer, FolderTokenizer) or not saved.objective.complete_prompts:
        raise ConfigError(f"messages: {saved.description} has no chat template: give prompt=TEXT")
    return tokenizer.encode_prompt(render_messages(folder, messages), framed=False)


def _fill_in(saved: LoadedModel, config: GenerateConfig, texts: list[str]) -> None:
    """Prints each text with its blanks filled in, ``num_samples`` times."""
    if not isinstance(saved.objective, UnmaskingObjective):
        raise ConfigError(f"blank={config.blank!r}: {saved.description} fills in no blanks")
    mask, rows = saved.task.vocabulary.mask, []
    for text in texts:
        prefix, *others = [saved.tokenizer.encode(piece) for piece in text.split(config.blank)]
        row = [*prefix, *(token for piece in others for token in (mask, *piece))]
        rows += [row] * config.num_samples
    with inference(saved.model, torch_device(config.device.name), config.device.precision):
        completions = saved.objective.infill(
            saved.model,
            rows,
            generators=[
                sample_generator(config.seed, divmod(i, config.num_samples)) for i in range(len(rows))
            ],
            sampling=config.sampling.apply(GenerationSettings()),
        )
    for index, tokens in enumerate(completions, start=1):
        text = saved.tokenizer.decode(tokens)
        print(text if len(completions) == 1 else f"--- {index} of {len(completions)} ---\n{text}")


class Printer:
    """Prints a text as it grows, except a character whose last bytes are still to be generated."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._generated: list[int] = []
        self._shown = 0

    def __call__(self, row: int, token: int) -> None:
        self._generated.append(token)
        self._show(self._request.as_text(self._request.prompts[0], self._generated).rstrip(REPLACEMENT))

    def finish(self, text: str) -> None:
        """Print the rest of the text."""
        self._show(text)
        print()

    def _show(self, text: str) -> None:
        print(text[self._shown :], end="", flush=True)
        self._shown = len(text)
