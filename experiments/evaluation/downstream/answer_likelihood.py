"""Likelihood of answers given their context, under a trained model.

Left-to-right models and encoder-decoders give the exact likelihood, by the chain rule; masked diffusion
gives a bound on it, estimated from random masks; a masked language model gives a pseudo-likelihood.

Shapes: B answers of a batch, T tokens, S samples.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion
from archbench.experiments.objectives.finite_outputs import CAUSE, watched_outputs
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.load_model import LoadedModel
from archbench.experiments.runtime.device import inference, torch_device
from archbench.experiments.runtime.errors import ConfigError, DataError, DivergedError
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch

PAD_TO = 16
"""Answers are padded to a multiple of it. The padding of an answer depends only on its length, and so do
the masks that are drawn for it, regardless of the rest of the batch."""


@dataclass(frozen=True, kw_only=True)
class ScoringRequest:
    """Tokens to be scored, and the context they follow."""

    context: list[int]
    tokens: list[int]
    noise: str
    """Key of the random draws: answers to one question share it, so that the noise of their difference is
    less."""


@dataclass(frozen=True, kw_only=True)
class AnswerScore:
    """The score of an answer under a model."""

    nats: float
    """-log p, its bound, or the pseudo-likelihood."""
    variance: float
    """Of ``nats``, through the masks that were drawn; 0 if the likelihood is deterministic."""
    greedy: bool
    """True if every token of the answer is the likeliest one: each given those before it where the model
    reads from left to right, all at once where it unmasks."""


class AnswerScorer:
    """Scores answers by the likelihood that belongs to the model's objective."""

    def __init__(
        self, saved: LoadedModel, *, samples: int, seed: int, batch_size: int, device: DeviceConfig
    ) -> None:
        """``samples`` masked versions of each answer are drawn where its bound is estimated.

        Raises:
            ConfigError: the model was not trained to give a likelihood of text.
        """
        self._saved, self._seed, self._batch_size, self._device = saved, seed, batch_size, device
        self._samples = samples
        self._objective = scoring_objective(saved, samples)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood type of all scores."""
        if isinstance(self._objective, MaskedDiffusion | MaskedLM):
            return self._objective.likelihood
        return Likelihood(kind="exact", estimator="chain rule on the answer given the context", samples=1)

    @property
    def longest(self) -> int:
        """The tokens of context and answer that the model can be given together."""
        model = self._saved.model
        if self._saved.objective.complete_prompts:  # the last token is predicted, not read
            return model.max_length + (0 if model.capabilities.encoder_decoder else 1)
        marks = 2 if model.capabilities.encoder_decoder else 0  # a sentinel or mode token, and the end
        return model.max_length - marks - (0 if self._saved.objective.continues else 2)

    def score(
        self, answers: Sequence[ScoringRequest], on_progress: Callable[[int], None]
    ) -> list[AnswerScore]:
        """The score of each answer; ``on_progress`` is called with the count of finished answers.

        Raises:
            DataError: an answer is longer than the model allows.
            DivergedError: the outputs of the model are not finite.
        """
        score_of: dict[int, AnswerScore] = {}
        with inference(self._saved.model, torch_device(self._device.name), self._device.precision):
            for length, indices in self._batches(answers):
                batch = [answers[index] for index in indices]
                score_of.update(zip(indices, self._score_together(batch, length), strict=True))
                on_progress(len(score_of))
        return [score_of[index] for index in range(len(answers))]

    def _batches(self, answers: Sequence[ScoringRequest]) -> Iterator[tuple[int, list[int]]]:
        """Padded lengths, the longest first, with the indices of the answers of a batch."""
        by_length = defaultdict(list)
        for index, answer in enumerate(answers):
            length = len(answer.context) + len(answer.tokens)
            if length > self.longest:
                raise DataError(
                    f"context and answer have {length} tokens, the model can be given {self.longest}: cut "
                    "the context, or leave the task out"
                )
            by_length[min(-(-length // PAD_TO) * PAD_TO, self.longest)].append(index)
        for length in sorted(by_length, reverse=True):
            indices = by_length[length]
            for start in range(0, len(indices), self._batch_size):
                yield length, indices[start : start + self._batch_size]

    def _score_together(self, answers: Sequence[ScoringRequest], length: int) -> list[AnswerScore]:
        objective, model = self._objective, self._saved.model
        batch = self._batch(answers, length)
        generators = [
            torch.Generator().manual_seed(stream(self._seed, "answer", answer.noise) >> 1)
            for answer in answers
        ]
        device = next(model.parameters()).device
        view = objective.answer_view(batch).to(device)
        with watched_outputs(model) as outputs:
            output = view.run(model)
        if outputs.found:
            raise DivergedError(
                f"{self._saved.description}: the model's outputs are not finite numbers; {CAUSE}"
            )
        hit_BT = objective.logits(output, view).argmax(-1) == view.target_BT
        greedy_B = (hit_BT | (view.weight_BT == 0)).all(1)
        variance_B = torch.zeros(len(answers), dtype=torch.float64)
        if isinstance(objective, MaskedDiffusion):
            nats_BS = objective.estimates(model, batch, generators)
            nats_B, variance_B = nats_BS.mean(1), nats_BS.var(1) / self._samples
        elif isinstance(objective, MaskedLM):
            nats = objective.likelihood_score(model, batch, generators).nats_B
            assert nats is not None
            nats_B = nats
        else:
            nats_B = objective.nats(output, view).double().sum(1)
        rows = zip(nats_B.tolist(), variance_B.tolist(), greedy_B.tolist(), strict=True)
        return [AnswerScore(nats=nats, variance=variance, greedy=greedy) for nats, variance, greedy in rows]

    def _batch(self, answers: Sequence[ScoringRequest], length: int) -> Batch:
        """The answers after their contexts, padded on the right.

        For a model of text pairs, the answer is separated and ended as in training.
        """
        vocabulary = self._saved.objective.vocabulary
        objective = self._saved.objective
        end = [] if objective.continues or objective.complete_prompts else [vocabulary.eos]
        shape = (len(answers), length + 2 * len(end))
        tokens_BT = torch.full(shape, vocabulary.pad)
        answer_BT, valid_BT = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        for row, answer in enumerate(answers):
            context, tokens = answer.context + end, answer.tokens + end
            total = len(context) + len(tokens)
            tokens_BT[row, :total] = torch.tensor(context + tokens)
            answer_BT[row, len(context) : total] = True
            valid_BT[row, :total] = True
        return Batch(
            tokens_BT=tokens_BT,
            context_BT=tokens_BT,
            answer_BT=answer_BT,
            valid_BT=valid_BT,
            bytes_BT=torch.zeros_like(tokens_BT),  # bits per byte are not computed here
            split="test",
        )


def scoring_objective(saved: LoadedModel, samples: int) -> Objective:
    """The objective as answers are scored by it: bounds from ``samples`` draws, pseudo ones from none.

    Raises:
        ConfigError: it has no likelihood of text.
    """
    objective = saved.objective
    if objective.targets not in ("tokens", "texts"):
        raise ConfigError(
            f"{saved.description}: it learned {objective.targets}, not text, so it gives text no likelihood: "
            "take a run of a language model"
        )
    if isinstance(objective, MaskedDiffusion):
        if not objective.continues:
            raise ConfigError(
                f"{saved.description}: masked diffusion of pairs bounds the likelihood of answers with all "
                "their end tokens: take a run on task=text"
            )
        return type(objective)(
            dataclasses.replace(objective.config, evaluation_samples=samples), objective.task
        )
    if isinstance(objective, MaskedLM):  # without the question about pairs, if there is one
        every = MaskedLMConfig(
            evaluation_positions=None, separate_documents=objective.config.separate_documents
        )
        return MaskedLM(every, objective.task)
    return objective
