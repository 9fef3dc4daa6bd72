"""Writes the texts of a request: drawn token by token, filled in, or found by beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from archbench.architectures.layers.embedding import TooManyTokensError
from archbench.experiments.objectives.decoding.beam_search import beam_search
from archbench.experiments.objectives.decoding.prefill import PrefillState
from archbench.experiments.objectives.decoding.sampling import generate
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.run.generation.request import Prompts, Request
from archbench.experiments.run.load_model import LoadedModel
from archbench.experiments.runtime.errors import ConfigError, OutOfMemoryError, is_out_of_memory
from archbench.experiments.runtime.seeds import generation_seed


def tokens_with_positions(saved: LoadedModel, read: int) -> int | None:
    """Return how many tokens can be generated behind so many, by the table of positions; None without one."""
    positions = getattr(saved.model.config, "positions", None)
    if positions is None or not positions.has_table:
        return None
    # The last token that a model generates it need not read; one that is filled in has a position.
    return saved.model.max_length - read + (0 if isinstance(saved.objective, UnmaskingObjective) else 1)


def sample_texts(request: Request, on_token: Callable[[int, int], None] | None) -> list[str]:
    """Return ``num_samples`` texts of each prompt, drawn or greedy; ``on_token`` takes row and token."""
    saved, prompts = request.saved, request.prompts
    pairs = [(p, n) for p in range(len(prompts)) for n in range(request.num_samples)]
    rows = [prompts[p] for p, _ in pairs]
    generators = [sample_generator(request.seed, at) for at in pairs]
    if isinstance(saved.objective, UnmaskingObjective):
        if request.constraints.any or request.stop.texts:
            raise ConfigError(
                f"{saved.description} fills in its text, so that constraints and stops of several tokens do "
                "not apply: leave them out"
            )
        _check_room(request, max(len(row) for row in rows))
        generated = saved.objective.sample(
            saved.model,
            rows,
            max_tokens=request.max_tokens,
            generators=generators,
            sampling=request.sampling,
            stop=request.stop.tokens,
        )
    else:
        generated = generate(
            saved.model,
            _prefill_state(request, rows),
            saved.objective.vocabulary,
            max_tokens=request.max_tokens,
            generators=generators,
            sampling=request.sampling,
            stop=request.stop.tokens,
            on_token=on_token,
            constraints=request.constraints,
            ended=_text_stop(request, rows),
        )
    return [request.as_text(row, tokens) for row, tokens in zip(rows, generated, strict=True)]


def search_texts(request: Request) -> list[str]:
    """Return the best ``num_samples`` texts of each search; which they are is known at the end only."""
    saved = request.saved
    if request.stop.texts:
        raise ConfigError(
            f"stop: {request.stop.texts[0]!r} is several tokens or within one; beam search ends at eos or "
            "single tokens"
        )
    found = beam_search(
        saved.model,
        _prefill_state(request, request.prompts),
        saved.objective.vocabulary,
        request.beam,
        max_tokens=request.max_tokens,
        stop=request.stop.tokens,
        constraints=request.constraints,
        repetition_penalty=request.sampling.repetition_penalty,
    )
    return [
        request.as_text(prompt, hypothesis.tokens)
        for prompt, hypotheses in zip(request.prompts, found, strict=True)
        for hypothesis in hypotheses[: request.num_samples]
    ]


def _prefill_state(request: Request, rows: Prompts) -> PrefillState:
    """Return what the model continues. Raises ConfigError or OutOfMemoryError."""
    saved, length = request.saved, request.max_tokens
    try:
        start = saved.objective.prefill_state(saved.model, rows, length)
    except TooManyTokensError as error:
        raise ConfigError(f"prompt: {error}: shorten it") from None
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(f"out of memory for {length} tokens: set max_tokens lower") from error
    _check_room(request, start.unread_BT.shape[1])
    return start


def _check_room(request: Request, read: int) -> None:
    """Raise ConfigError where there are not enough positions behind so many tokens."""
    room = tokens_with_positions(request.saved, read)
    if room is None or room >= request.max_tokens:
        return
    positions = f"{request.saved.description} has positions for {request.saved.model.max_length} tokens"
    if room < 1:
        raise ConfigError(f"prompt: {read} tokens, {positions}: shorten it")
    raise ConfigError(f"max_tokens={request.max_tokens}: {positions}, {room} behind the prompt: set it lower")


def sample_generator(seed: int, at: tuple[int, int]) -> torch.Generator:
    """Return the random numbers of a prompt's sample."""
    return torch.Generator().manual_seed(generation_seed(seed, *at))


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
