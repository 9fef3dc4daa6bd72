"""Beam search: the most likely continuation, approximated with a few hypotheses at a time.

The rules are those of the ``transformers`` library, so results agree with it:
there are twice as many candidates as beams, those among the best ``num_beams`` that
end are finished, and a score is the log-probability over length ** length_penalty.

Shapes: R running hypotheses of all sequences, K those of one sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.prefill import PrefillState, prefill, prompt_rows
from archbench.experiments.objectives.decoding.sampling import Constraints, allowed_tokens, penalise
from archbench.experiments.objectives.finite_outputs import check_logits

EARLY_STOPPING = ("full", "heuristic", "never")


@dataclass(frozen=True, kw_only=True)
class BeamConfig:
    """Width of the search, and when it stops."""

    num_beams: int = 4
    """Hypotheses that run at once."""
    length_penalty: float = 1.0
    """Scores are divided by length to this power: above 0 favours long sequences."""
    early_stopping: str = "heuristic"
    """``full``: stop with ``num_beams`` finished. ``heuristic``: stop when the best running one, were it
    to end now, would not be better than the worst of them. ``never``: the same, were it to end at the
    length most in its favour."""

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams} must be at least 1")
        if self.early_stopping not in EARLY_STOPPING:
            raise ValueError(
                f"early_stopping={self.early_stopping!r} is unknown: choose {', '.join(EARLY_STOPPING)}"
            )


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A continuation and how likely it is."""

    tokens: list[int]
    """The generated tokens, the stop token included if it came."""
    log_p: float
    """Sum of the log-probabilities of its tokens (nats)."""
    score: float
    """``log_p`` over length ** length_penalty."""


@dataclass(kw_only=True)
class _Search:
    """The search for one sequence."""

    first: int
    """Its first row in the decoding state; its running hypotheses follow one another."""
    prompt: list[int] = field(default_factory=list)
    """The tokens that the decoder has read before the first choice."""
    running: list[tuple[float, list[int]]] = field(default_factory=lambda: [(0.0, [])])
    """Log-probability and tokens, best first."""
    finished: list[Hypothesis] = field(default_factory=list)
    """At most ``num_beams``, best first."""


@torch.no_grad()
def beam_search(
    model: Backbone,
    start: PrefillState,
    vocabulary: Vocabulary,
    config: BeamConfig,
    *,
    max_tokens: int,
    stop: Collection[int],
    constraints: Constraints = Constraints(),  # noqa: B008
    repetition_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each sequence, best first, at most ``num_beams`` each."""
    searches = [_Search(first=row) for row in range(len(start.unread_BT))]
    active = searches
    logits_RV = prefill(model, start)
    forbidden_V = ~allowed_tokens(vocabulary, stop, logits_RV.device)
    prompts = prompt_rows(start)
    for search, prompt in zip(searches, prompts, strict=True):
        search.prompt = prompt
    for length in range(1, max_tokens + 1):
        log_p_RV = check_logits(logits_RV).masked_fill(forbidden_V, -torch.inf).double().log_softmax(-1).cpu()
        if constraints.any or repetition_penalty != 1:
            written = [(search.prompt, tokens) for search in active for _, tokens in search.running]
            if repetition_penalty != 1:
                seen_RV = torch.zeros_like(log_p_RV, dtype=torch.bool)
                for seen_V, (prompt, tokens) in zip(seen_RV, written, strict=True):
                    seen_V[[*prompt, *tokens]] = True
                log_p_RV = penalise(log_p_RV, seen_RV, repetition_penalty)
            log_p_RV = constraints.apply(
                log_p_RV, *zip(*written, strict=True), max_tokens=max_tokens, stop=stop
            )
        going: list[_Search] = []
        parents: list[int] = []
        for search in active:
            start_row = search.first
            log_p_KV = log_p_RV[start_row : start_row + len(search.running)]
            rows = _extend(search, log_p_KV, config, length == max_tokens, stop)
            if _may_improve(search, config, length, max_tokens):
                search.first = len(parents)
                parents += [start_row + row for row in rows]
                going.append(search)
        if not going:
            break
        active = going
        start.state.select(parents)
        last_tokens = [tokens[-1] for search in active for _, tokens in search.running]
        token_R1 = torch.tensor(last_tokens, device=logits_RV.device)[:, None]
        logits_RV = model.step(token_R1, start.state)[:, -1]
    return [search.finished for search in searches]


def _extend(
    search: _Search, log_p_KV: Tensor, config: BeamConfig, at_end: bool, stop: Collection[int]
) -> list[int]:
    """Extend every running hypothesis by a token; return the parent (0..K-1) of each that still runs."""
    vocab_size = log_p_KV.shape[-1]
    total_KV = log_p_KV + torch.tensor([log_p for log_p, _ in search.running], dtype=torch.float64)[:, None]
    # Enough that num_beams still run even if all other candidates end.
    num_candidates = max(2, 1 + len(stop)) * config.num_beams
    candidates = total_KV.flatten().topk(min(num_candidates, total_KV.numel()))
    running: list[tuple[float, list[int]]] = []
    parents: list[int] = []
    for rank, (log_p, index) in enumerate(
        zip(candidates.values.tolist(), candidates.indices.tolist(), strict=True)
    ):
        parent, token = divmod(index, vocab_size)
        tokens = [*search.running[parent][1], token]
        if log_p == -torch.inf:
            break
        if token in stop or at_end:
            if rank < config.num_beams:
                score = log_p / len(tokens) ** config.length_penalty
                search.finished.append(Hypothesis(tokens=tokens, log_p=log_p, score=score))
        elif len(running) < config.num_beams:
            running.append((log_p, tokens))
            parents.append(parent)
    search.finished = sorted(search.finished, key=lambda h: -h.score)[: config.num_beams]
    search.running = running
    return parents


def _may_improve(search: _Search, config: BeamConfig, length: int, max_tokens: int) -> bool:
    """Return True if continuing could still change the finished hypotheses."""
    if not search.running:
        return False
    if len(search.finished) < config.num_beams:
        return True
    if config.early_stopping == "full":
        return False
    favourable = config.early_stopping == "never" and config.length_penalty > 0
    best_score = search.running[0][0] / (max_tokens if favourable else length) ** config.length_penalty
    return best_score > search.finished[-1].score
