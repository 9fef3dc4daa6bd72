"""A trained model as EleutherAI's lm-evaluation-harness asks for one. Needs the extra ``eval``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from experiments.config.schema import DeviceConfig
from experiments.evaluation.downstream.answer_likelihood import AnswerScore, AnswerScorer, ScoringRequest
from experiments.evaluation.downstream.readers import NONE, HarnessReader, OwnReader
from experiments.objectives.decoding.sampling import GREEDY, SamplingConfig
from experiments.run.load_model import LoadedModel
from experiments.runtime.device import torch_device
from experiments.runtime.errors import DataError
from experiments.runtime.precision import inference
from experiments.runtime.seeds import stream

MOST_TOKENS = 256
"""Tokens generated where a task does not say how many: the harness's own default."""
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]
Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Note:
    """Facts about a request that the harness does not keep."""

    truncated: bool = False
    """True if the prompt was cut from its left, because the model is not made for so many tokens."""
    variance: float = 0.0
    """Of the nats, through the masks that were drawn."""
    lossy: bool = False
    """True if the likelihood is of a whole text that the tokenizer does not give back."""


class HarnessModel(LM):
    """Answers what the harness asks by the likelihoods of ``AnswerScorer`` and the objective's samples."""

    def __init__(
        self,
        saved: LoadedModel,
        scorer: AnswerScorer,
        *,
        seed: int,
        batch_size: int,
        device: DeviceConfig,
        progress: Progress,
    ) -> None:
        super().__init__()
        self._saved, self._scorer, self._seed = saved, scorer, seed
        self._batch_size, self._where, self._progress = batch_size, device, progress
        self._reader = HarnessReader(saved) if saved.objective.complete_prompts else OwnReader(saved)
        self.notes: dict[Key, Note] = {}
        """By the name of the method and the texts of the request."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation given its context, and whether it is the likeliest."""
        answers = []
        for context, continuation in (request.args for request in requests):
            before, after = self._reader.pair(context, continuation)
            answers.append(self._answer(before, after, noise=context))
            cut = len(answers[-1].context) < len(before)
            self.notes["loglikelihood", context, continuation] = Note(truncated=cut)
        scores = self._score(answers)
        for request, score in zip(requests, scores, strict=True):
            key = ("loglikelihood", *request.args)
            self.notes[key] = replace(self.notes[key], variance=score.variance)
        return [(-score.nats, score.greedy) for score in scores]

    def _answer(self, context: list[int], tokens: list[int], noise: str) -> ScoringRequest:
        """The request, its context cut from the left to what the model is made for."""
        if not tokens:
            raise DataError(f"a continuation of {noise[-40:]!r} is empty: mend the task's file or its data")
        room = max(self._scorer.longest - len(tokens), 0)
        return ScoringRequest(context=context[max(len(context) - room, 0) :], tokens=tokens, noise=noise)

    def _score(self, answers: Sequence[ScoringRequest]) -> list[AnswerScore]:
        with self._progress(len(answers)) as on_progress:
            return self._scorer.score(answers, on_progress)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log-likelihood of each text, in windows as long as the model is made for, every token once.

        A window behind the first is given the last token before it; the last one is given as many as fit.
        """
        answers, owners, longest = list[ScoringRequest](), list[int](), self._scorer.longest
        for number, (text,) in enumerate(request.args for request in requests):
            for place, (context, tokens) in enumerate(self._reader.windows(text, longest)):
                given = [token for token in context if token != NONE]
                answers.append(self._answer(given, tokens, noise=f"{place} {text}"))
                owners.append(number)
        nats, variance = [0.0] * len(requests), [0.0] * len(requests)
        for number, score in zip(owners, self._score(answers), strict=True):
            nats[number] += score.nats
            variance[number] += score.variance
        tokenizer = self._saved.tokenizer
        for number, request in enumerate(requests):
            (text,) = request.args
            lossy = tokenizer.decode(tokenizer.encode(text)) != text
            self.notes["loglikelihood_rolling", text] = Note(variance=variance[number], lossy=lossy)
        return [-x for x in nats]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Generate a continuation of each prompt, up to the first of the task's ``until``."""
        alike, asked = defaultdict(list), Counter[str]()
        for number, request in enumerate(requests):
            prompt, settings = request.args
            alike[repr(settings)].append((number, prompt, asked[prompt]))
            asked[prompt] += 1
        texts, done = [""] * len(requests), 0
        with self._progress(len(requests)) as on_progress:
            for places in alike.values():
                settings = requests[places[0][0]].args[1]
                places.sort(key=lambda place: -len(place[1]))
                for first in range(0, len(places), self._batch_size):
                    some = places[first : first + self._batch_size]
                    written = self._write([prompt for _, prompt, _ in some], [n for *_, n in some], settings)
                    for (number, *_), text in zip(some, written, strict=True):
                        texts[number] = text
                    on_progress(done := done + len(some))
        return texts

    def _write(self, prompts: Sequence[str], repeats: Sequence[int], asked: dict[str, Any]) -> list[str]:
        """Generate for prompts of the same settings; a prompt that is repeated draws anew."""
        settings = normalize_gen_kwargs(asked, MOST_TOKENS)
        most, until = settings["max_gen_toks"], settings["until"]
        tokens = [self._prompt(prompt, most) for prompt in prompts]
        ends = [self._saved.tokenizer.encode(text) for text in until]
        keys = [stream(self._seed, "write", *place) >> 1 for place in zip(prompts, repeats, strict=True)]
        with inference(self._saved.model, torch_device(self._where.name), self._where.precision):
            written = self._saved.objective.sample(
                self._saved.model,
                tokens,
                max_tokens=most,
                generators=[torch.Generator().manual_seed(key) for key in keys],
                sampling=sampling(settings),
                stop={*self._saved.task.vocabulary.stops, *(end[0] for end in ends if len(end) == 1)},
            )
        texts = [self._saved.tokenizer.decode(row) for row in written]
        return [postprocess_generated_text(text, until, None) for text in texts]

    def _prompt(self, text: str, most: int) -> list[int]:
        """The prompt's last tokens, as many as leave room for what is written."""
        tokens, room = self._reader.prompt(text), self._saved.model.max_length
        room = room if self._saved.objective.complete_prompts else self._scorer.longest
        room -= 0 if self._saved.model.capabilities.encoder_decoder else most
        if room < 1:
            raise DataError(
                f"a task asks for up to {most} tokens, and the model is made for {self._scorer.longest} with "
                "the prompt: set generation_kwargs.max_gen_toks in the task's file"
            )
        self.notes["generate_until", text] = Note(truncated=len(tokens) > room)
        return tokens[-room:]


def sampling(settings: dict[str, Any]) -> SamplingConfig:
    """Return the sampling settings of a task. Raises DataError for settings that do not exist here."""
    asked = {name: value for name, value in settings.items() if name not in ("until", "max_gen_toks")}
    draws = asked.pop("do_sample", False)
    unknown = [name for name in asked if name not in SAMPLING]
    if unknown:
        raise DataError(
            f"generation_kwargs.{unknown[0]} of a task is unknown here; there are {', '.join(SAMPLING)}"
        )
    if not draws:
        return GREEDY
    try:
        return SamplingConfig(**asked)
    except ValueError as error:
        raise DataError(f"generation_kwargs of a task: {error}") from None
