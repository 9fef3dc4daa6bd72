"""A trained model with the interface of EleutherAI's lm-evaluation-harness. Needs the extra ``eval``."""

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

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.evaluation.downstream.answer_likelihood import (
    AnswerScore,
    AnswerScorer,
    ScoringRequest,
)
from archbench.experiments.evaluation.downstream.readers import NONE, HarnessReader, RunReader
from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig
from archbench.experiments.run.load_model import LoadedModel
from archbench.experiments.runtime.device import inference, torch_device
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.seeds import stream

MOST_TOKENS = 256
"""Default number of generated tokens, that of the harness."""
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]
Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Note:
    """Facts about a request that the harness does not keep."""

    truncated: bool = False
    """True if the prompt was cut from its left, because it exceeds the length of the model."""
    variance: float = 0.0
    """Of the nats, through the masks that were drawn."""
    lossy: bool = False
    """True if the likelihood is of a complete text that the tokenizer does not restore."""


class HarnessModel(LM):
    """Answers requests with likelihoods of ``AnswerScorer`` and samples of the objective."""

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
        self._reader = HarnessReader(saved) if saved.objective.complete_prompts else RunReader(saved)
        self.notes: dict[Key, Note] = {}
        """By the name of the method and the texts of the request."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation given its context, and whether it is the likeliest."""
        answers = []
        for context, continuation in (request.args for request in requests):
            prefix, target = self._reader.pair(context, continuation)
            answers.append(self._answer(prefix, target, noise=context))
            cut = len(answers[-1].context) < len(prefix)
            self.notes["loglikelihood", context, continuation] = Note(truncated=cut)
        scores = self._score(answers)
        for request, score in zip(requests, scores, strict=True):
            key = ("loglikelihood", *request.args)
            self.notes[key] = replace(self.notes[key], variance=score.variance)
        return [(-score.nats, score.greedy) for score in scores]

    def _answer(self, context: list[int], tokens: list[int], noise: str) -> ScoringRequest:
        """The request, its context cut from the left to the length of the model."""
        if not tokens:
            raise DataError(f"a continuation of {noise[-40:]!r} is empty: mend the task's file or its data")
        max_context = max(self._scorer.longest - len(tokens), 0)
        return ScoringRequest(
            context=context[max(len(context) - max_context, 0) :], tokens=tokens, noise=noise
        )

    def _score(self, answers: Sequence[ScoringRequest]) -> list[AnswerScore]:
        with self._progress(len(answers)) as on_progress:
            return self._scorer.score(answers, on_progress)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log-likelihood of each text, in windows of the model's length, every token once.

        Each window after the first begins with the previous token; the last one with as many as fit.
        """
        answers, owners, longest = list[ScoringRequest](), list[int](), self._scorer.longest
        for index, (text,) in enumerate(request.args for request in requests):
            for window, (context, tokens) in enumerate(self._reader.windows(text, longest)):
                tokens_before = [token for token in context if token != NONE]
                answers.append(self._answer(tokens_before, tokens, noise=f"{window} {text}"))
                owners.append(index)
        nats, variance = [0.0] * len(requests), [0.0] * len(requests)
        for index, score in zip(owners, self._score(answers), strict=True):
            nats[index] += score.nats
            variance[index] += score.variance
        tokenizer = self._saved.tokenizer
        for index, request in enumerate(requests):
            (text,) = request.args
            lossy = tokenizer.decode(tokenizer.encode(text)) != text
            self.notes["loglikelihood_rolling", text] = Note(variance=variance[index], lossy=lossy)
        return [-x for x in nats]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Generate a continuation of each prompt, up to the first of the task's ``until``."""
        by_settings, occurrences = defaultdict(list), Counter[str]()
        for index, request in enumerate(requests):
            prompt, settings = request.args
            by_settings[repr(settings)].append((index, prompt, occurrences[prompt]))
            occurrences[prompt] += 1
        texts, done = [""] * len(requests), 0
        with self._progress(len(requests)) as on_progress:
            for requests_of in by_settings.values():
                settings = requests[requests_of[0][0]].args[1]
                requests_of.sort(key=lambda request: -len(request[1]))
                for start in range(0, len(requests_of), self._batch_size):
                    batch = requests_of[start : start + self._batch_size]
                    generated = self._write(
                        [prompt for _, prompt, _ in batch], [n for *_, n in batch], settings
                    )
                    for (index, *_), text in zip(batch, generated, strict=True):
                        texts[index] = text
                    on_progress(done := done + len(batch))
        return texts

    def _write(
        self, prompts: Sequence[str], repeats: Sequence[int], raw_settings: dict[str, Any]
    ) -> list[str]:
        """Generate for prompts of the same settings; a repeated prompt gets another random stream."""
        settings = normalize_gen_kwargs(raw_settings, MOST_TOKENS)
        most, until = settings["max_gen_toks"], settings["until"]
        tokens = [self._prompt(prompt, most) for prompt in prompts]
        ends = [self._saved.tokenizer.encode(text) for text in until]
        keys = [
            stream(self._seed, "write", *key_parts) >> 1 for key_parts in zip(prompts, repeats, strict=True)
        ]
        with inference(self._saved.model, torch_device(self._where.name), self._where.precision):
            generated = self._saved.objective.sample(
                self._saved.model,
                tokens,
                max_tokens=most,
                generators=[torch.Generator().manual_seed(key) for key in keys],
                sampling=sampling(settings),
                stop={*self._saved.task.vocabulary.stops, *(end[0] for end in ends if len(end) == 1)},
            )
        texts = [self._saved.tokenizer.decode(row) for row in generated]
        return [postprocess_generated_text(text, until, None) for text in texts]

    def _prompt(self, text: str, most: int) -> list[int]:
        """The last tokens of the prompt that fit together with the generated tokens."""
        tokens, max_prompt = self._reader.prompt(text), self._saved.model.max_length
        max_prompt = max_prompt if self._saved.objective.complete_prompts else self._scorer.longest
        max_prompt -= 0 if self._saved.model.capabilities.encoder_decoder else most
        if max_prompt < 1:
            raise DataError(
                f"a task requests up to {most} tokens, and the model is made for {self._scorer.longest} with "
                "the prompt: set generation_kwargs.max_gen_toks in the task's file"
            )
        self.notes["generate_until", text] = Note(truncated=len(tokens) > max_prompt)
        return tokens[-max_prompt:]


def sampling(settings: dict[str, Any]) -> SamplingConfig:
    """Return the sampling settings of a task. Raises DataError for settings that do not exist here."""
    options = {name: value for name, value in settings.items() if name not in ("until", "max_gen_toks")}
    draws = options.pop("do_sample", False)
    unknown = [name for name in options if name not in SAMPLING]
    if unknown:
        raise DataError(
            f"generation_kwargs.{unknown[0]} of a task is unknown here; there are {', '.join(SAMPLING)}"
        )
    if not draws:
        return GREEDY
    try:
        return SamplingConfig(**options)
    except ValueError as error:
        raise DataError(f"generation_kwargs of a task: {error}") from None
