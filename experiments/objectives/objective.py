"""The objective contract: what a model sees, what is scored, what its likelihood means.

An objective never names a backbone; the two meet by capability. Its loss is a
*sum* over scored tokens and a *count*, both added up over micro-batches before
the division, so accumulation equals one big batch even where counts differ.

Shapes: B batch, T scored sequence, S source, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from architectures.backbone import Backbone, Capabilities, DecodingState, Output
from experiments.tasks.task import Batch, Task


@dataclass(frozen=True, kw_only=True)
class View:
    """A batch as one objective shows it to a model."""

    tokens_BT: Tensor
    valid_BT: Tensor | None
    """False at padding; None when nothing is padded, so that attention needs no mask."""
    target_BT: Tensor
    """What is to be predicted at each position (anything where the weight is 0)."""
    weight_BT: Tensor
    """Weight of each position in the loss, float32."""
    count_B: Tensor
    """What the weighted sum is divided by, summed over the batch, float32."""
    source_BS: Tensor | None = None
    source_valid_BS: Tensor | None = None

    def rows(self, start: int, stop: int) -> View:
        """The view of a micro-batch."""
        parts: dict[str, Any] = {n: v if v is None else v[start:stop] for n, v in vars(self).items()}
        return View(**parts)

    def to(self, device: torch.device) -> View:
        parts: dict[str, Any] = {
            n: v if v is None else v.to(device, non_blocking=True) for n, v in vars(self).items()
        }
        return View(**parts)

    @property
    def source_length(self) -> int:
        return 0 if self.source_BS is None else self.source_BS.shape[1]

    def run(self, model: Backbone) -> Output:
        """The model's output on this view."""
        if self.source_BS is None:
            return model(self.tokens_BT, valid_BT=self.valid_BT)
        return model(
            self.tokens_BT,
            valid_BT=self.valid_BT,
            source_BS=self.source_BS,
            source_valid_BS=self.source_valid_BS,
        )


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """What the reported nats mean. Classes are never ranked against each other unlabelled."""

    kind: str
    """``exact`` (chain rule), ``bound`` (an upper bound on -log p) or ``pseudo`` (neither)."""
    estimator: str
    samples: int
    """Random draws for each sequence; 1 where nothing is drawn."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What evaluation found for each sequence of a batch; float64, so that sums are exact enough."""

    nats_B: Tensor | None = None
    """Estimated -log p (or the bound, or the pseudo-likelihood) of the scored text."""
    bytes_B: Tensor | None = None
    """Bytes that ``nats_B`` is about."""
    accuracy_B: Tensor | None = None
    """Share of the answers given correctly."""


class Objective(ABC):
    """Base class of all objectives. Subclasses set ``Config``."""

    Config: ClassVar[type]
    likelihood: Likelihood
    sees: str
    """In a few words, what the model is shown; printed by ``experiments.plan``."""

    def __init__(self, config: object, task: Task) -> None:
        self.config = config
        self.task = task
        self.vocabulary = task.vocabulary

    @classmethod
    @abstractmethod
    def requires(cls, capabilities: Capabilities) -> str | None:
        """None if a backbone with these capabilities can be trained; else what is missing, in words."""

    @classmethod
    def refuses(cls, task: type[Task]) -> str | None:
        """None if the task suits; else why not."""
        return None

    @abstractmethod
    def view(self, batch: Batch, generator: torch.Generator) -> View:
        """A training view: hides what is to be predicted, drawing from ``generator`` only."""

    @abstractmethod
    def answer_view(self, batch: Batch) -> View:
        """A view that hides every answer and scores exactly the answers, each once, nothing drawn."""

    def logits(self, output: Output, view: View) -> Tensor:
        """The logits (B, T, V), float32, with -inf where a token can never be the answer."""
        return output.logits_BTV.float()

    def nats(self, output: Output, view: View) -> Tensor:
        """Weighted cross-entropy of each position, (B, T), float32 whatever the model."""
        return weighted_cross_entropy(self.logits(output, view), view)

    def loss(self, output: Output, view: View) -> tuple[Tensor, Tensor]:
        """Sum of weighted cross-entropies (nats) and the count to divide by."""
        return self.nats(output, view).sum(), view.count_B.sum()

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Likelihood of text, or accuracy of answers, for each sequence.

        Each sequence draws from its own generator, so its score does not depend on its neighbours.
        """
        if batch.whole:
            return self.likelihood_score(model, batch, generators)
        device = next(model.parameters()).device
        view = self.answer_view(batch).to(device)
        guess_BT = self.logits(view.run(model), view).argmax(-1)
        correct = (guess_BT == view.target_BT) & (view.weight_BT > 0)
        accuracy = correct.double().sum(1) / (view.weight_BT > 0).double().sum(1)
        return Score(accuracy_B=accuracy.cpu())

    @abstractmethod
    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """``nats_B`` and ``bytes_B`` of whole sequences, by this objective's estimator."""

    @abstractmethod
    def sample(
        self,
        model: Backbone,
        prompt_BT: Tensor,
        length: int,
        generator: torch.Generator,
        temperature: float = 1.0,
    ) -> Tensor:
        """Tokens (B, length) that begin with the prompt."""


def weighted_cross_entropy(logits_BTV: Tensor, view: View) -> Tensor:
    """Cross-entropy at each position times its weight, shape (B, T), in float32."""
    nats = F.cross_entropy(logits_BTV.float().flatten(0, 1), view.target_BT.flatten(), reduction="none")
    return nats.view_as(view.weight_BT) * view.weight_BT


def row_noise(generators: Sequence[torch.Generator], length: int) -> Tensor:
    """Uniform numbers (B, T), each row drawn from its own generator."""
    return torch.stack([torch.rand(length, generator=generator) for generator in generators])


def scored_bytes(batch: Batch, scored_BT: Tensor) -> Tensor:
    """Bytes of text at the scored positions, for each sequence."""
    assert batch.bytes_BT is not None
    return (batch.bytes_BT * scored_BT).sum(1).double()


def choose(logits_BV: Tensor, generator: torch.Generator, temperature: float) -> Tensor:
    """Samples token ids; temperature 0 takes the most likely. Gumbel noise in float64 (fp32 truncates it)."""
    if temperature == 0:
        return logits_BV.argmax(-1)
    noise = torch.rand(logits_BV.shape, generator=generator, dtype=torch.float64).clamp_min(1e-300)
    gumbel = -(-noise.log()).log()
    return (logits_BV.double() / temperature + gumbel.to(logits_BV.device)).argmax(-1)


def write_on(
    model: Backbone,
    state: DecodingState,
    tokens_BT: Tensor,
    unread_BT: Tensor,
    length: int,
    num_symbols: int,
    generator: torch.Generator,
    temperature: float,
) -> Tensor:
    """Appends sampled symbols to ``tokens_BT``, one a step, until there are ``length``.

    ``unread_BT`` is what the model must read before it can write the first.
    """
    while tokens_BT.shape[1] < length:
        logits_BV = model.step(unread_BT, state)[:, -1, :num_symbols]
        unread_BT = choose(logits_BV, generator, temperature)[:, None]
        tokens_BT = torch.cat([tokens_BT, unread_BT], dim=1)
    return tokens_BT
