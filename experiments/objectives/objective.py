"""The contract of objectives: the input of a model, the scored positions, the type of its likelihood.

An objective never names a backbone; the two meet by capability. Its loss is a *sum* over scored tokens and a
*count*. ``experiments.training.loss`` divides the sum of each micro-batch by the count of the full batch, so
accumulated gradients equal those of one batch even where counts differ.

Shapes: B batch, T scored sequence, S source, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Capabilities, Output, flat_indices, to_device
from archbench.architectures.layers.cross_entropy import cross_entropy
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.sampling import generate
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.seeds import torch_seed
from archbench.experiments.tasks.metrics import Likelihood, Metric
from archbench.experiments.tasks.task import EXCESS_BITS, Batch, Task

if TYPE_CHECKING:
    from archbench.experiments.objectives.decoding.prefill import PrefillState
    from archbench.experiments.objectives.decoding.sampling import SamplingConfig


@dataclass(frozen=True, kw_only=True)
class View:
    """A batch as one objective shows it to a model."""

    tokens_BT: Tensor
    valid_BT: Tensor | None
    """False at padding; None without padding, so that attention needs no mask."""
    target_BT: Tensor
    """The token to predict at each position (any where the weight is 0)."""
    weight_BT: Tensor
    """Weight of each position in the loss, float32."""
    count_B: Tensor
    """The count that the weighted sum is divided by, to be summed over the batch, float32."""
    source_BS: Tensor | None = None
    source_valid_BS: Tensor | None = None
    segments_BT: Tensor | None = None
    """The segment each token belongs to, for backbones with a table of them; None where there is one only."""
    documents_BT: Tensor | None = None
    """The document each token belongs to; None where a sequence holds one only."""
    time_B: Tensor | None = None
    """The masked fraction of each sequence, for backbones with a time embedding."""
    clean_BT: Tensor | None = None
    """The clean tokens that later blocks read, where ``tokens_BT`` is noisy and read only by its block;
    None if there is only one copy."""
    label_B: Tensor | None = None
    """The label of each sequence, where the objective predicts one."""
    scored_BT: Tensor | None = None
    """True where the model computes logits; None for all positions. In CPU memory."""

    def rows(self, start: int, stop: int) -> View:
        """The view of a micro-batch."""
        return replace(self, **{n: v[start:stop] for n, v in vars(self).items() if v is not None})

    def to(self, device: torch.device) -> View:
        """The view on a device, but for ``scored_BT``: shapes depend on it, and these the host makes."""
        moved = {n: v for n, v in vars(self).items() if v is not None and n != "scored_BT"}
        return replace(self, **{n: to_device(v, device) for n, v in moved.items()})

    @property
    def source_length(self) -> int:
        return 0 if self.source_BS is None else self.source_BS.shape[1]

    def mean_lengths(self) -> tuple[int, int]:
        """Mean lengths of the sequences and of their sources, padding left out: what a view costs."""
        shapes = ((self.tokens_BT, self.valid_BT), (self.source_BS, self.source_valid_BS))
        means = [
            0 if x is None else x.shape[1] if valid is None else round(valid.sum(1).float().mean().item())
            for x, valid in shapes
        ]
        return means[0], means[1]

    @property
    def passes(self) -> int:
        """Sequences the model reads for each example."""
        return 1 if self.clean_BT is None else 2

    def scored(self) -> View:
        """Targets and weights in one row (1, N), like the logits where ``scored_BT`` selects N positions."""
        if self.scored_BT is None:
            return self
        index_N = flat_indices(self.scored_BT, self.target_BT.device)
        target_1N, weight_1N = (x.flatten()[index_N][None] for x in (self.target_BT, self.weight_BT))
        return replace(self, target_BT=target_1N, weight_BT=weight_1N)

    def run(self, model: Backbone) -> Output:
        """Run the model on this view."""
        per_position = ("documents_BT", "segments_BT", "time_B", "clean_BT", "scored_BT")
        optional = (*per_position, "source_BS", "source_valid_BS")
        inputs = {name: value for name in optional if (value := getattr(self, name)) is not None}
        if "segments_BT" in inputs and not model.takes_segments:
            del inputs["segments_BT"]
        if "time_B" in inputs and not model.takes_time:
            del inputs["time_B"]
        return model(self.tokens_BT, valid_BT=self.valid_BT, **inputs)


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """Each token's part of ``Score.nats_B`` and ``Score.bytes_B``; float64, in CPU memory."""

    nats_BT: Tensor
    tokens_BT: Tensor
    """Tokens that the nats were measured on: 1 where a token is scored, 0 where it is not. Where an estimator
    samples tokens, their weights; their sum is the number of scored tokens, exactly or in
    expectation."""
    bytes_BT: Tensor

    @classmethod
    def of(cls, batch: Batch, nats_BT: Tensor, tokens_BT: Tensor, counted_BT: Tensor) -> TokenScores:
        """Return the scores of tokens of which the bytes of text count ``counted_BT`` times."""
        assert batch.bytes_BT is not None
        return cls(
            nats_BT=nats_BT.double(),
            tokens_BT=tokens_BT.double(),
            bytes_BT=batch.bytes_BT * counted_BT.double(),
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """Scores of each sequence of a batch; float64, so that sums are exact enough."""

    nats_B: Tensor | None = None
    """Estimated -log p (or the bound, or the pseudo-likelihood) of the scored text; of answers, the sum of
    their cross-entropies, each given the context."""
    bytes_B: Tensor | None = None
    """Bytes that ``nats_B`` is about."""
    accuracy_B: Tensor | None = None
    """Fraction of the answers given correctly."""
    answers_B: Tensor | None = None
    """Number of answers that ``nats_B`` is about; None if it is about text."""
    cluster_B: Tensor | None = None
    """The group that each sequence belongs to, as in the batch."""
    by_token: TokenScores | None = None
    """The same by token, of windows of text; None where the objective does not say."""
    slices_BK: Tensor | None = None
    """Sums over slices of the tokens, set by evaluations with slices."""
    records: Sequence[Any] = ()
    """An entry for each sequence, from which ``Objective.summarise`` computes its metrics."""


class Objective(ABC):
    """Base class of all objectives. Subclasses set ``Config``."""

    Config: ClassVar[type]
    likelihood: Likelihood
    continues: bool = True
    """True where a sample continues its prompt; False where it is a separate answer."""
    complete_prompts: ClassVar[bool] = False
    """True where prompts come with all their special tokens, written by the tokenizer of a folder."""
    gives_time: ClassVar[bool] = False
    """True where views say how much of them is masked, for backbones with a time embedding."""
    draws: ClassVar[bool] = True
    """False where training views are deterministic; the view of a subset is then part of the full view."""
    targets: ClassVar[str] = "tokens"
    """The type of targets it learns to predict; must be the task's ``targets``."""
    has_unmasking_path: ClassVar[bool] = False
    """True where the sampler of a model unmasks a text position by position, so that ``PathLikelihood`` can
    score it."""
    full_likelihood: ClassVar[bool] = False
    """True where the likelihood is that of all tokens of a text, exact or a bound."""

    def __init__(self, config: object, task: Task) -> None:
        self.config = config
        self.task = task
        self.vocabulary = task.vocabulary

    @classmethod
    @abstractmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        """Return a description of a capability that training needs and the backbone lacks, or None."""

    @classmethod
    def for_backbone(cls, capabilities: Capabilities) -> type[Objective]:
        """The class that trains such backbones: this one, or its variant for them."""
        return cls

    @classmethod
    def incompatibility(cls, task: type[Task]) -> str | None:
        """Return None if the objective can train on the task; else the reason."""
        if task.targets != cls.targets:
            return f"the task has {task.targets}, the objective learns {cls.targets}"
        if getattr(task, "metric", None) == EXCESS_BITS and not cls.full_likelihood:
            return "the task is scored by the probability of all tokens of a text, the objective has none"
        return None

    def make_readout(self, backbone: Backbone) -> nn.Module | None:
        """Return the readout to attach (``Backbone.attach_readout``); None where logits are enough."""
        return None

    @property
    def longest(self) -> int:
        """The longest sequence or source of a model, in training and evaluation."""
        return self.task.sequence_length

    @abstractmethod
    def view(self, batch: Batch, generator: torch.Generator) -> View:
        """A training view: hides what is to be predicted, drawing from ``generator`` only."""

    @abstractmethod
    def answer_view(self, batch: Batch) -> View:
        """A deterministic view that hides every answer and scores exactly the answers, each once."""

    def logits(self, output: Output, view: View) -> Tensor:
        """The logits (B, T, V), with -inf where a token can never be the answer."""
        return output.logits_BTV

    def nats(self, output: Output, view: View) -> Tensor:
        """Weighted cross-entropy of each position, (B, T), float32 for every dtype of the model."""
        return weighted_cross_entropy(self.logits(output, view), view)

    def nats_on_host(self, model: Backbone, view: View) -> Tensor:
        """Run a model on a view, and return ``nats`` (B, T), float64 in CPU memory."""
        view = view.to(next(model.parameters()).device)
        return self.nats(view.run(model), view).cpu().double()

    def loss(self, output: Output, view: View) -> tuple[Tensor, Tensor]:
        """Sum of weighted cross-entropies (nats) and the count to divide by."""
        return self.nats(output, view.scored()).sum(), view.count_B.sum()

    def with_scored_positions(self, view: View) -> View:
        """Return the view with ``scored_BT`` set, so that logits are computed only where ``loss`` reads them.

        The view must be in CPU memory.
        """
        scored_BT = view.weight_BT > 0
        return view if scored_BT.all() else replace(view, scored_BT=scored_BT)

    def auxiliary(self, output: Output, view: View) -> dict[str, Tensor]:
        """Return auxiliary losses, each *summed over the sequences*, to be divided by their number."""
        return output.auxiliary

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Score each sequence: likelihood of text, or accuracy of answers.

        Each sequence has a separate generator, so its score does not depend on its neighbours.
        """
        if batch.whole:
            return self.likelihood_score(model, batch, generators)
        view, device = self.answer_view(batch), next(model.parameters()).device
        is_answer_BT = view.weight_BT > 0  # on the host, which must know how many there are
        index_N, view = flat_indices(is_answer_BT, device), view.to(device)
        logits_NV = self.logits(view.run(model), view).flatten(0, 1)[index_N]
        target_N = view.target_BT.flatten()[index_N]
        nats_N = F.cross_entropy(logits_NV.float(), target_N, reduction="none").double()
        scores_2BT = torch.zeros(2, *is_answer_BT.shape, dtype=torch.float64)
        scores_2BT[:, is_answer_BT] = torch.stack([logits_NV.argmax(-1) == target_N, nats_N]).cpu()
        (correct_B, nats_B), answers_B = scores_2BT.sum(2), is_answer_BT.double().sum(1)
        return Score(accuracy_B=correct_B / answers_B, nats_B=nats_B, answers_B=answers_B)

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        """Compute the metrics of a split from the records of its sequences in order, the table's first."""
        raise AssertionError(f"{type(self).__name__} keeps no records")

    @abstractmethod
    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """``nats_B`` and ``bytes_B`` of the scored tokens of windows of text, by this objective's estimator.

        The other tokens of the window are context: every model of a task scores the same bytes.
        """

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        """Return the prefill of a model that generates from left to right, before it continues each prompt.

        It has space for ``max_tokens`` more. Raises DataError where this objective trains no such model.
        """
        raise DataError(f"{type(self).__name__} trains no model that writes from left to right")

    def sample(
        self,
        model: Backbone,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        generators: Sequence[torch.Generator],
        sampling: SamplingConfig,
        stop: Collection[int] = (),
        on_token: Callable[[int, int], None] | None = None,
    ) -> list[list[int]]:
        """Generate at most ``max_tokens`` tokens for each prompt; the prompts may differ in length.

        Args:
            prompts: symbols, without begin or end tokens, unless ``complete_prompts``.
            generators: one for each prompt, so that a sample does not depend on the other prompts.
            stop: tokens that end a sequence, inclusive. No other special token is ever generated.
            on_token: called with row and token as each is generated, where that is one by one.
        """
        return generate(
            model,
            self.prefill_state(model, prompts, max_tokens),
            self.vocabulary,
            max_tokens=max_tokens,
            generators=generators,
            sampling=sampling,
            stop=stop,
            on_token=on_token,
        )


def weighted_cross_entropy(logits_BTV: Tensor, view: View, never: int | None = None) -> Tensor:
    """Cross-entropy at each position times its weight, shape (B, T), in float32 for any dtype of logits.

    The logit of ``never`` counts as minus infinity.
    """
    nats = cross_entropy(logits_BTV.flatten(0, 1), view.target_BT.flatten(), never)
    return nats.view_as(view.weight_BT) * view.weight_BT


def documents(shown_BT: Tensor, vocabulary: Vocabulary) -> Tensor:
    """The number of the document each token belongs to, (B, T): an end token opens the next one."""
    return (shown_BT == vocabulary.eos).cumsum(1)


def row_noise(generators: Sequence[torch.Generator], drawn_BX: Tensor) -> Tensor:
    """Return uniform values (B, X) where ``drawn_BX`` is True and 0 elsewhere; a generator for each row.

    Nothing is drawn for padding, so that neither the values of a row nor the state of its generator depend on
    how far its batch is padded.
    """
    noise_BX = torch.zeros(drawn_BX.shape)
    for noise_X, drawn_X, generator in zip(noise_BX, drawn_BX, generators, strict=True):
        noise_X[drawn_X] = torch.rand(int(drawn_X.sum()), generator=generator)
    return noise_BX


def separate_generators(generators: Sequence[torch.Generator], purpose: str) -> list[torch.Generator]:
    """Return a generator for each row with a stream of its own, regardless of what was drawn before."""
    seeds = [torch_seed(generator.initial_seed(), purpose) for generator in generators]
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def in_text_order(values_BY: Tensor, view: View, scored_BT: Tensor) -> Tensor:
    """Move values from the positions of a view to those of the text, (B, T); 0 elsewhere.

    All tensors are on the CPU. The view scores exactly the tokens ``scored_BT``, in their order.
    """
    found_BT = torch.zeros(scored_BT.shape, dtype=torch.float64)
    found_BT[scored_BT] = values_BY[view.weight_BT > 0]
    return found_BT


def at_tokens(values_BJ: Tensor, batch: Batch) -> Tensor:
    """Return values of a causal view at the tokens of its batch: without begin token it lacks the first."""
    missing = batch.tokens_BT.shape[1] - values_BJ.shape[1]
    return F.pad(values_BJ, (missing, 0)) if missing > 0 else values_BJ[:, -missing:]


def scored_bytes(batch: Batch, scored_BT: Tensor) -> Tensor:
    """Bytes of text at the scored positions, for each sequence."""
    assert batch.bytes_BT is not None
    return (batch.bytes_BT * scored_BT).sum(1).double()
