"""Masked language modelling and a question about two texts, as BERT and ALBERT are trained.

A window of text is cut in two at a random position of its middle half, and framed as
``[bos] a [eos] b [eos]`` with segments 0 and 1. The question is one of

* ``next`` (Devlin et al. 2019, arXiv 1810.04805, section 3.1): does b follow a? In a fraction of the
  examples b comes from another window of the same split.
* ``order`` (Lan et al. 2020, "ALBERT", arXiv 1909.11942, section 3.1): which is first? In a fraction
  of the examples a and b are exchanged.

The loss is the mean over the masked tokens plus the mean over the pairs. Random
draws depend on the generator and the example, not on the rest of the batch.

Shapes: B batch, T length of a window, N pairs of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Output
from archbench.architectures.layers.readout import SequenceReadout
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.objective import Score, TokenScores, View
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.tasks.metrics import Metric, accuracy, split_metrics
from archbench.experiments.tasks.task import Batch, Task

QUESTIONS = ("order", "next")
MOST_WINDOWS = 2**31
"""Windows to draw another text from, where a split never runs out."""


@dataclass(frozen=True, kw_only=True)
class SentencePairsConfig(MaskedLMConfig):
    """Masked language modelling on pairs of texts."""

    question: str = "order"
    """``order`` (exchanged or not, as in ALBERT) or ``next`` (from elsewhere or not, as in BERT)."""
    changed_fraction: float = 0.5
    """Fraction of the pairs that are exchanged, or with a second text from another window."""
    pair_weight: float = 1.0
    """Weight of the question in the loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.question not in QUESTIONS:
            raise ValueError(f"question={self.question!r} is unknown{nearest(self.question, QUESTIONS)}")
        if not 0 <= self.changed_fraction <= 1:
            raise ValueError(f"changed_fraction={self.changed_fraction} must be in [0, 1]")
        if self.separate_documents:
            raise ValueError("separate_documents=true hides the texts of a pair from each other")
        if self.pair_weight < 0:
            raise ValueError(f"pair_weight={self.pair_weight} must not be negative")


class SentencePairs(MaskedLM):
    """The masked language model of a text, and from its first token's state the answer about the pair."""

    Config = SentencePairsConfig
    config: SentencePairsConfig

    @classmethod
    def incompatibility(cls, task: type[Task]) -> str | None:
        if getattr(task, "metric", None) == "bits_per_byte":
            return None
        return "it has no text to cut in two"

    def make_readout(self, backbone: Backbone) -> nn.Module:
        return SequenceReadout(backbone.config.width, 2, pooling="first")

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        pairs, changed_B = self.pairs(batch, [generator] * len(batch.tokens_BT))
        return replace(self.masked_view(pairs, generator), label_B=changed_B)

    def pairs(self, batch: Batch, generators: Sequence[torch.Generator]) -> tuple[Batch, Tensor]:
        """Windows as pairs of texts, each drawn from its generator, and which were changed (0 or 1)."""
        rows, changed = [], []
        for row, generator in enumerate(generators):
            cut, change = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
            window = self._window(batch, row)
            position = len(window) // 4 + int(cut * max(1, len(window) // 2))
            text_a, text_b = window[:position], window[position:]
            changed.append(int(change < self.config.changed_fraction))
            if changed[-1] and self.config.question == "order":
                text_a, text_b = text_b, text_a
            elif changed[-1]:
                text_b = self._elsewhere(batch, window, generator)[position:]
            rows.append((text_a, text_b))
        return self._framed(batch, rows), torch.tensor(changed)

    def _window(self, batch: Batch, row: int) -> Tensor:
        """Tokens of a window, the bytes of each, and which are to be scored: shape (T, 3)."""
        assert batch.bytes_BT is not None
        columns = (batch.tokens_BT[row], batch.bytes_BT[row], batch.answer_BT[row].long())
        return torch.stack(columns, dim=1)[batch.valid_BT[row]]

    def _elsewhere(self, batch: Batch, window: Tensor, generator: torch.Generator) -> Tensor:
        """A uniformly drawn other window of the split; the next one if it equals this window."""
        seed = int(torch.randint(MOST_WINDOWS, (), generator=generator))
        limit = self.task.num_examples(batch.split) or MOST_WINDOWS
        index = int(torch.randint(limit, (), generator=generator))
        for example in (index, (index + 1) % limit):
            candidate = self._window(self.task.batch(batch.split, seed, example, 1), 0)
            if not torch.equal(candidate[:, 0], window[:, 0]):
                break
        return candidate

    def _framed(self, batch: Batch, rows: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        """``[bos] a [eos] b [eos]``, padded on the right, with segments 0 and 1."""
        v = self.vocabulary
        shape = (len(rows), batch.tokens_BT.shape[1] + 3)
        tokens_BT, bytes_BT = torch.full(shape, v.pad), torch.zeros(shape, dtype=torch.int64)
        segments_BT, valid_BT = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
        scored_BT = torch.zeros_like(valid_BT)
        bos, eos = (torch.tensor([[special, 0, 0]]) for special in (v.bos, v.eos))
        for row, (text_a, text_b) in enumerate(rows):
            framed = torch.cat([bos, text_a, eos, text_b, eos])
            tokens_BT[row, : len(framed)], bytes_BT[row, : len(framed)] = framed.T[:2]
            scored_BT[row, : len(framed)] = framed[:, 2] > 0
            segments_BT[row, len(text_a) + 2 : len(framed)] = 1
            valid_BT[row, : len(framed)] = True
        return Batch(
            tokens_BT=tokens_BT,
            context_BT=tokens_BT,
            answer_BT=scored_BT,
            valid_BT=valid_BT,
            bytes_BT=bytes_BT,
            whole=True,
            split=batch.split,
            segments_BT=segments_BT,
            cluster_B=batch.cluster_B,
        )

    def auxiliary(self, output: Output, view: View) -> dict[str, Tensor]:
        assert output.readout is not None
        assert view.label_B is not None
        nats = F.cross_entropy(output.readout.float(), view.label_B, reduction="sum")
        return {**output.auxiliary, "pair": self.config.pair_weight * nats}

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """The pseudo-likelihood of the window as an unchanged pair cut in its middle, and the pair's answer.

        The answer is predicted for a pair drawn as in training, without masks.
        """
        device = next(model.parameters()).device
        pairs, changed_B = self.pairs(batch, generators)
        windows = [self._window(batch, row) for row in range(len(changed_B))]
        halves = [(window[: len(window) // 2], window[len(window) // 2 :]) for window in windows]
        framed = self._framed(batch, halves)
        score = super().likelihood_score(model, framed, generators)
        assert score.by_token is not None
        # The scores of a pair's symbols, at their positions in the window that was cut in two.
        from_BF, to_BT = (self._symbols(b) for b in (framed, batch))
        moved = {}
        for name, values_BF in vars(score.by_token).items():
            moved[name] = torch.zeros(to_BT.shape, dtype=torch.float64)
            moved[name][to_BT] = values_BF[from_BF]
        readout_BC = self._view(pairs, pairs.tokens_BT, pairs.valid_BT).to(device).run(model).readout
        assert readout_BC is not None
        answers = zip(changed_B.tolist(), readout_BC.argmax(-1).tolist(), strict=True)
        records = list(zip(score.records, answers, strict=True))
        return replace(score, by_token=TokenScores(**moved), records=records)

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        """The pseudo-perplexity, and the share of pairs of which the answer is right."""
        texts, answers = zip(*records, strict=True)
        changed_N, guess_N = np.array(answers, dtype=np.int64).T
        return super().summarise(texts, split) + split_metrics(
            {"pair_accuracy": lambda kept: accuracy(changed_N[kept], guess_N[kept])},
            len(records),
            split,
            first="pair_accuracy",
            unit="share",
            estimator=f"more likely answer, {self.config.changed_fraction:g} of the pairs changed",
        )
