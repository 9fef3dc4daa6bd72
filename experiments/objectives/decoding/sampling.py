"""Generation: sampling of the next token, and the loop that generates until all sequences are done.

Settings and constraints are those of the ``transformers`` library, by its names and in its order: repetition
penalty, temperature, top-k, top-p, min-p. Each sequence has a separate generator, so a sample does not depend
on its neighbours in the batch.

Shapes: B batch, R rows, T length, V vocabulary; X any leading shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.prefill import PrefillState, prefill, prompt_rows
from archbench.experiments.objectives.decoding.steps import make_steps
from archbench.experiments.objectives.finite_outputs import check_logits


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Rules of which tokens may be generated where. The defaults allow everything."""

    no_repeat_ngram_size: int = 0
    """N-grams of this length occur once at most, the prompt of a decoder included; 0 for no limit."""
    min_length: int = 0
    """Tokens, those of the decoder's prompt included, before a text may end."""
    min_new_tokens: int = 0
    """Generated tokens before a text may end."""
    forced_bos_token_id: int | None = None
    """The first token after a prompt of a single token, such as a decoder's start."""
    forced_eos_token_id: tuple[int, ...] = ()
    """The last token, where a text is as long as it may become."""
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that are never generated."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Tokens that are not generated first."""

    def __post_init__(self) -> None:
        for name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more")

    @property
    def any(self) -> bool:
        """True where something is constrained."""
        return self != Constraints()

    def apply(
        self,
        scores_RV: Tensor,
        prompts: Sequence[Sequence[int]],
        written: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        stop: Collection[int],
    ) -> Tensor:
        """Return the scores of the next token, -inf where it may not be; ``prompts`` are the decoder's."""
        scores_RV = scores_RV.clone()
        for scores_V, prompt, generated in zip(scores_RV, prompts, written, strict=True):
            tokens, new = [*prompt, *generated], len(generated)
            scores_V[list(_repeating(tokens, self.no_repeat_ngram_size))] = -torch.inf
            if len(tokens) < self.min_length or new < self.min_new_tokens:
                scores_V[list(stop)] = -torch.inf
            if self.forced_bos_token_id is not None and len(tokens) == 1:
                _force(scores_V, (self.forced_bos_token_id,))
            if self.forced_eos_token_id and new == max_tokens - 1:
                _force(scores_V, self.forced_eos_token_id)
            scores_V[list(self.suppress_tokens)] = -torch.inf
            forced_first = self.forced_bos_token_id is not None and len(prompt) == 1
            if new == int(forced_first):
                scores_V[list(self.begin_suppress_tokens)] = -torch.inf
        return scores_RV


def _force(scores_V: Tensor, tokens: Sequence[int]) -> None:
    scores_V.fill_(-torch.inf)
    scores_V[list(tokens)] = 0.0


def _repeating(tokens: Sequence[int], size: int) -> set[int]:
    """Return the tokens that would repeat an n-gram of this size."""
    if size == 0 or len(tokens) + 1 < size:
        return set()
    begun = tuple(tokens[len(tokens) + 1 - size :])
    return {
        tokens[i + size - 1]
        for i in range(len(tokens) - size + 1)
        if tuple(tokens[i : i + size - 1]) == begun
    }


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Settings of sampling. The defaults sample the distribution of the model."""

    temperature: float = 1.0
    """Logits are divided by it; 0 for the most likely token."""
    top_k: int | None = None
    """Keep the k most likely tokens; null keeps all (Fan et al. 2018)."""
    top_p: float | None = None
    """Keep the fewest tokens with a total probability of p; null keeps all (Holtzman et al. 2020)."""
    min_p: float | None = None
    """Keep tokens at least this fraction as likely as the best; null keeps all (Nguyen et al. 2024)."""
    repetition_penalty: float = 1.0
    """Logits of tokens of the prompt or generated before are divided by it where positive, multiplied where
    negative; 1 for no penalty (Keskar et al. 2019, section 4.1)."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} must be 0 (the most likely token) or more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} must be at least 1, or null to keep all tokens")
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name}={value} must be in (0, 1], or be null to keep all tokens")
        if self.repetition_penalty <= 0:
            raise ValueError(
                f"repetition_penalty={self.repetition_penalty} must be positive; 1 changes nothing"
            )


GREEDY = SamplingConfig(temperature=0.0)
"""Always the most likely token."""


def process(logits_XV: Tensor, config: SamplingConfig, seen_XV: Tensor | None = None) -> Tensor:
    """Apply all settings to logits (..., V); -inf where a token may not be drawn.

    ``seen_XV`` is True at the tokens of each sequence so far; only the repetition penalty reads it.
    A temperature of 0 leaves the logits as they are: the caller uses the argmax.
    """
    logits_XV = logits_XV.float() if logits_XV.dtype.itemsize < 4 else logits_XV
    if seen_XV is not None:
        logits_XV = penalise(logits_XV, seen_XV, config.repetition_penalty)
    if config.temperature == 0:
        return logits_XV
    logits_XV = logits_XV / config.temperature
    if config.top_k is not None:
        least_X1 = logits_XV.topk(min(config.top_k, logits_XV.shape[-1])).values[..., -1:]
        logits_XV = logits_XV.masked_fill(logits_XV < least_X1, -torch.inf)
    if config.top_p is not None and config.top_p < 1:
        ascending_XV, order_XV = logits_XV.sort()
        tail_XV = ascending_XV.softmax(-1).cumsum(-1) <= 1 - config.top_p
        tail_XV[..., -1] = False  # the best stays
        logits_XV = logits_XV.masked_fill(tail_XV.scatter(-1, order_XV, tail_XV), -torch.inf)
    if config.min_p is not None:
        p_XV = logits_XV.softmax(-1)
        logits_XV = logits_XV.masked_fill(p_XV < config.min_p * p_XV.amax(-1, keepdim=True), -torch.inf)
    return logits_XV


def penalise(logits_XV: Tensor, seen_XV: Tensor, penalty: float) -> Tensor:
    """Make the tokens of a sequence so far less likely, by the repetition penalty."""
    lowered_XV = torch.where(logits_XV < 0, logits_XV * penalty, logits_XV / penalty)
    return torch.where(seen_XV, lowered_XV, logits_XV)


def draw(logits_BXV: Tensor, config: SamplingConfig, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw tokens (B, ...) from processed logits, each row from the generator of its sequence.

    The largest of logits plus Gumbel noise, in float64: float32 cuts the noise off (Zheng et al. 2024,
    arXiv 2409.02908).
    """
    if config.temperature == 0:
        return logits_BXV.argmax(-1)
    shape = logits_BXV.shape[1:]
    uniform_BXV = torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in generators])
    gumbel_BXV = -(-uniform_BXV.clamp_min(1e-300).log()).log()
    return (logits_BXV.double() + gumbel_BXV.to(logits_BXV.device)).argmax(-1)


def next_tokens(
    logits_BV: Tensor,
    config: SamplingConfig,
    generators: Sequence[torch.Generator],
    seen_BV: Tensor | None = None,
) -> Tensor:
    """Draw the next token (B,) of each sequence."""
    return draw(process(logits_BV, config, seen_BV), config, generators)


def allowed_tokens(vocabulary: Vocabulary, stop: Collection[int], device: torch.device) -> Tensor:
    """Return True (V,) at the tokens that may be generated, and at those that end a sequence."""
    allowed_V = vocabulary.may_be_written()
    allowed_V[list(stop)] = True  # in CPU memory: the indices would be copied to a GPU
    return allowed_V.to(device)


@torch.no_grad()
def generate(
    model: Backbone,
    start: PrefillState,
    vocabulary: Vocabulary,
    *,
    max_tokens: int,
    generators: Sequence[torch.Generator],
    sampling: SamplingConfig,
    stop: Collection[int] = (),
    on_token: Callable[[int, int], None] | None = None,
    constraints: Constraints = Constraints(),
    ended: Callable[[int, Sequence[int]], bool] | None = None,
) -> list[list[int]]:
    """Generate up to ``max_tokens`` tokens after each prompt, one a step.

    A sequence ends with the first token of ``stop``, inclusive, and then leaves the batch. On a GPU the
    steps are a CUDA graph where they can be (``steps.make_steps``).

    Args:
        start: is used up.
        on_token: called with row and token as each is generated.
        constraints: what may be generated where.
        ended: called with row and generated tokens; True ends the sequence.

    Raises:
        DivergedError: logits are not finite.
    """
    generated: list[list[int]] = [[] for _ in generators]
    alive = list(range(len(generated)))
    if not alive or max_tokens < 1:
        return generated
    logits_BV = prefill(model, start)
    steps = make_steps(model, start.state, max_tokens - 1)
    forbidden_V = ~allowed_tokens(vocabulary, stop, logits_BV.device)
    prompts, seen_BV = prompt_rows(start), None
    if sampling.repetition_penalty != 1:
        seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
        for seen_V, prompt in zip(seen_BV, prompts, strict=True):
            seen_V[prompt] = True
    while True:
        logits_BV = check_logits(logits_BV).masked_fill(forbidden_V, -torch.inf)
        if seen_BV is not None:
            logits_BV = penalise(logits_BV, seen_BV, sampling.repetition_penalty)
        if constraints.any:
            logits_BV = constraints.apply(
                logits_BV,
                [prompts[row] for row in alive],
                [generated[row] for row in alive],
                max_tokens=max_tokens,
                stop=stop,
            )
        token_B = next_tokens(logits_BV, sampling, [generators[row] for row in alive])
        for row, token in zip(alive, token_B.tolist(), strict=True):
            generated[row].append(token)
            if on_token is not None:
                on_token(row, token)
        going = [
            i
            for i, row in enumerate(alive)
            if generated[row][-1] not in stop and not (ended is not None and ended(row, generated[row]))
        ]
        if not going or len(generated[alive[going[0]]]) == max_tokens:
            return generated
        if len(going) < len(alive):
            steps.select(going)
            token_B, alive = token_B[going], [alive[i] for i in going]
            seen_BV = None if seen_BV is None else seen_BV[going]
        if seen_BV is not None:
            seen_BV = seen_BV.scatter(1, token_B[:, None], True)
        logits_BV = steps(token_B)
