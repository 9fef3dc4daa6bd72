"""Generates text with a trained model.

    python -m experiments.generate run=runs/single/decoder-text-nano-1a2b3c4d/s0 prompt='def main():'
    python -m experiments.generate run=FOLDER prompt='The' num_samples=3 sampling.top_p=0.9 max_tokens=50
    python -m experiments.generate run=FOLDER prompt='The' beam.num_beams=4
    python -m experiments.generate run=FOLDER 'messages=[{role: user, content: Hello}]'
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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.config.schema import DeviceConfig
from experiments.config.structured import typed
from experiments.data.tokenizers.chat_template import render_messages
from experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from experiments.objectives.decoding.beam_search import BeamConfig, beam_search
from experiments.objectives.decoding.constraints import Constraints
from experiments.objectives.decoding.sampling import SamplingConfig
from experiments.objectives.decoding.sampling import generate as write_tokens
from experiments.objectives.decoding.stops import Stop, read_stops
from experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from experiments.run.generation_settings import (
    BeamOverrides,
    ConstraintOverrides,
    GenerationSettings,
    SamplingOverrides,
    read_generation_settings,
)
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
    max_tokens: int | None = None
    """Most tokens generated for each prompt; null for the folder's own limit, or 200."""
    num_samples: int = 1
    """Texts for each prompt."""
    seed: int = 0
    """Every sample draws from a stream of its own under this seed."""
    stop: list[str] = field(default_factory=lambda: ["eos"])
    """``eos``, names of special tokens, or pieces of text."""
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    """Sampling settings."""
    filling: UnmaskingOverrides = field(default_factory=UnmaskingOverrides)
    """Changes to unmasking, for models that fill in masked positions."""
    blank: str | None = None
    """Text of the prompt that stands for one missing token each time; these are filled in, and nothing is
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


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt and the settings it is continued with: the command's over the folder's."""

    saved: LoadedModel
    prompts: Prompts
    shows_prompt: bool
    """True where a text is printed behind its prompt, which it continues."""
    num_samples: int
    seed: int
    max_tokens: int
    sampling: SamplingConfig
    beam: BeamConfig
    constraints: Constraints
    stop: Stop


def generate(cfg: DictConfig) -> None:
    tree = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(tree, dict)
    prompt, messages = tree.pop("prompt"), tree.pop("messages")  # any text at all, so not read as settings
    texts = [str(text) for text in (prompt if isinstance(prompt, list) else [prompt])]
    config = typed(GenerateConfig, {str(key): value for key, value in tree.items()}, "")
    configure_process(threads=config.device.threads, kernels=config.device.kernels)
    device = torch_device(config.device.name)
    saved = load_model(Path(config.run), device)
    override_unmasking(saved, config.filling)
    if config.blank is not None:
        _fill_in(saved, config, texts)
        return
    request = _request(saved, config, texts, messages)
    write = _search if request.beam.num_beams > 1 else _sample
    printer = Printer(request)
    single = len(request.prompts) * config.num_samples == 1
    with inference(saved.model, device, config.device.precision):
        texts = write(request, printer if single else None)
    for number, text in enumerate(texts, start=1):
        if single:
            printer.finish(text)
        else:
            print(f"--- {number} of {len(texts)} ---\n{text}")


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
    return Request(
        saved=saved,
        prompts=prompts,
        shows_prompt=saved.objective.continues and messages is None,
        num_samples=config.num_samples,
        seed=config.seed,
        max_tokens=config.max_tokens or settings.most_tokens(longest, saved.objective.continues),
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
        first, *others = [saved.tokenizer.encode(piece) for piece in text.split(config.blank)]
        row = [*first, *(token for piece in others for token in (mask, *piece))]
        rows += [row] * config.num_samples
    with inference(saved.model, torch_device(config.device.name), config.device.precision):
        found = saved.objective.infill(
            saved.model,
            rows,
            generators=[_generator(config.seed, divmod(i, config.num_samples)) for i in range(len(rows))],
            sampling=config.sampling.apply(GenerationSettings()),
        )
    for number, tokens in enumerate(found, start=1):
        text = saved.tokenizer.decode(tokens)
        print(text if len(found) == 1 else f"--- {number} of {len(found)} ---\n{text}")


def _generator(seed: int, at: tuple[int, int]) -> torch.Generator:
    """The random numbers of a prompt's sample."""
    return torch.Generator().manual_seed(generation_seed(seed, *at))


class Printer:
    """Prints a text as it grows, except a character whose last bytes are still to be generated."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._generated: list[int] = []
        self._shown = 0

    def __call__(self, row: int, token: int) -> None:
        self._generated.append(token)
        self._show(as_text(self._request, self._request.prompts[0], self._generated).rstrip(REPLACEMENT))

    def finish(self, text: str) -> None:
        """Prints what is left of the whole text."""
        self._show(text)
        print()

    def _show(self, text: str) -> None:
        print(text[self._shown :], end="", flush=True)
        self._shown = len(text)


def as_text(request: Request, prompt: list[int], generated: list[int]) -> str:
    """Return the generated text, after its prompt where it continues that."""
    decode = request.saved.tokenizer.decode
    return decode([*prompt, *generated] if request.shows_prompt else generated)


def _sample(request: Request, on_token: Printer | None) -> list[str]:
    saved, prompts = request.saved, request.prompts
    pairs = [(p, n) for p in range(len(prompts)) for n in range(request.num_samples)]
    rows = [prompts[p] for p, _ in pairs]
    generators = [_generator(request.seed, at) for at in pairs]
    if isinstance(saved.objective, UnmaskingObjective):
        if request.constraints.any or request.stop.texts:
            raise ConfigError(
                f"{saved.description} fills in its text, so that constraints and stops of several tokens do "
                "not apply: leave them out"
            )
        generated = saved.objective.sample(
            saved.model,
            rows,
            max_tokens=request.max_tokens,
            generators=generators,
            sampling=request.sampling,
            stop=request.stop.tokens,
        )
    else:
        generated = write_tokens(
            saved.model,
            saved.objective.prefill_state(saved.model, rows, request.max_tokens),
            saved.objective.vocabulary,
            max_tokens=request.max_tokens,
            generators=generators,
            sampling=request.sampling,
            stop=request.stop.tokens,
            on_token=on_token,
            constraints=request.constraints,
            ended=_text_stop(request, rows),
        )
    return [as_text(request, row, tokens) for row, tokens in zip(rows, generated, strict=True)]


def _text_stop(request: Request, rows: Prompts) -> Callable[[int, Sequence[int]], bool] | None:
    """Return what tells whether the last token of a row completes one of the texts to stop at."""
    stops, decode = request.stop.texts, request.saved.tokenizer.decode
    if not stops:
        return None

    def ended(row: int, generated: Sequence[int]) -> bool:
        tokens = [*rows[row], *generated] if request.saved.objective.continues else [*generated]
        text, before = decode(tokens), len(decode(tokens[:-1]))
        return any(text.find(stop, max(before - len(stop) + 1, 0)) >= 0 for stop in stops)

    return ended


def _search(request: Request, on_token: Printer | None) -> list[str]:
    """The best ``num_samples`` of each search; which they are is known at the end only."""
    saved = request.saved
    if request.stop.texts:
        raise ConfigError(
            f"stop: {request.stop.texts[0]!r} is several tokens; beam search ends at eos or text of one token"
        )
    found = beam_search(
        saved.model,
        saved.objective.prefill_state(saved.model, request.prompts, request.max_tokens),
        saved.objective.vocabulary,
        request.beam,
        max_tokens=request.max_tokens,
        stop=request.stop.tokens,
        constraints=request.constraints,
        repetition_penalty=request.sampling.repetition_penalty,
    )
    return [
        as_text(request, prompt, hypothesis.tokens)
        for prompt, hypotheses in zip(request.prompts, found, strict=True)
        for hypothesis in hypotheses[: request.num_samples]
    ]
