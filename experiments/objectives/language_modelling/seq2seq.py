"""Sequence to sequence: read a source text, write its target.

Sutskever et al. 2014 (arXiv 1409.3215): the target is written from left to right, up to its end token.
An encoder-decoder reads the source with its encoder; a causal backbone reads it first, token by token.
Only the target is scored. Evaluation also generates, and compares the texts with the references.

Shapes: B batch, T length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.beam_search import BeamConfig, beam_search
from archbench.experiments.objectives.decoding.prefill import PrefillState, pad_right
from archbench.experiments.objectives.decoding.sampling import GREEDY
from archbench.experiments.objectives.generation_metrics import (
    generated_examples,
    generation_metrics,
    source_prompts,
)
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.objective import Objective, Score, View, scored_bytes
from archbench.experiments.objectives.source_target import cut_out, prefill_target, source_target_view
from archbench.experiments.tasks.metrics import Likelihood, Metric
from archbench.experiments.tasks.task import Batch
from archbench.experiments.tasks.text.text_pairs import Pairs


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """Sequence to sequence."""

    num_beams: int = 1
    """Hypotheses of the beam search in evaluation; 1 for greedy decoding."""
    length_penalty: float = 1.0
    """Scores of hypotheses are divided by length to this power (beam search only)."""

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams} must be at least 1")

    @property
    def search(self) -> str:
        """Description of the search that generates texts."""
        if self.num_beams == 1:
            return "greedy"
        return f"beam search of {self.num_beams}, length penalty {self.length_penalty:g}"


class Seq2Seq(Objective):
    """Source to target by an encoder-decoder."""

    Config = Seq2SeqConfig
    config: Seq2SeqConfig
    task: Pairs
    likelihood = Likelihood(
        kind="conditional", estimator="chain rule on the target and its end given the source", samples=1
    )
    targets = "texts"
    continues = False

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.encoder_decoder or capabilities.causal:
            return None
        return "an encoder-decoder or a causal backbone: one that writes from left to right"

    @classmethod
    def for_backbone(cls, capabilities: Capabilities) -> type[Objective]:
        return cls if capabilities.encoder_decoder else CausalSeq2Seq

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.answer_view(batch)

    def answer_view(self, batch: Batch) -> View:
        v = self.vocabulary
        if v.pair_frame == ((), (v.eos,)):
            return cut_out(batch, batch.answer_BT, v, ends=False)  # the task has put them in
        return framed_view(batch, v)

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Score the likelihood of the target, and generate a text for each source."""
        score = self.likelihood_score(model, batch, generators)
        return Score(records=generated_examples(score, self.generate(model, batch, generators), batch))

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        return Score(
            nats_B=self.nats_on_host(model, self.answer_view(batch)).sum(1),
            bytes_B=scored_bytes(batch, batch.answer_BT & batch.valid_BT),
        )

    def generate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> list[str]:
        """Generate the text of each source."""
        sources = source_prompts(batch)
        frame = sum(map(len, self.vocabulary.pair_frame))
        limit, stop = self.task.config.max_target + frame, {self.vocabulary.eos}
        if self.config.num_beams == 1:
            generated = self.sample(
                model, sources, max_tokens=limit, generators=generators, sampling=GREEDY, stop=stop
            )
        else:
            beams = BeamConfig(num_beams=self.config.num_beams, length_penalty=self.config.length_penalty)
            start = self.prefill_state(model, sources, limit)
            hypotheses_of = beam_search(model, start, self.vocabulary, beams, max_tokens=limit, stop=stop)
            generated = [hypotheses[0].tokens for hypotheses in hypotheses_of]
        return [self.task.decode(tokens) for tokens in generated]

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        v = self.vocabulary
        prefix, suffix = v.pair_frame
        sources = [[*prefix, *prompt, *suffix] for prompt in prompts]
        return prefill_target(model, sources, [[v.decoder_start]] * len(prompts), v, max_tokens)

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        """Bits per byte of the targets, BLEU, ROUGE and exact match; the task's metric first."""
        return generation_metrics(records, split, self.likelihood, self.task.metric, self.config.search)


def framed_view(batch: Batch, vocabulary: Vocabulary) -> View:
    """Return the view of pairs with texts between the special tokens of a folder's tokenizer.

    As in ``transformers``, all tokens of the target are scored, including special tokens before it. A target
    that was cut has no special token after it.
    """
    prefix, suffix = vocabulary.pair_frame
    kept_BT = batch.valid_BT & batch.answer_BT
    sources = [[*prefix, *source, *suffix] for source in source_prompts(batch)]
    targets = []
    for row, is_target in zip(batch.tokens_BT, kept_BT, strict=True):
        text = row[is_target].tolist()
        ended = text[-1:] == [vocabulary.eos]
        targets.append([*prefix, *text[: -1 if ended else None], *(suffix if ended else ())])
    source_BS, _ = pad_right(sources, vocabulary.pad, batch.tokens_BT.device)
    target_BY, _ = pad_right(targets, vocabulary.pad, batch.tokens_BT.device)
    lengths = [torch.tensor([len(text) for text in texts]) for texts in (sources, targets)]
    return source_target_view(
        source_BS=source_BS,
        source_lengths_B=lengths[0],
        shown_BY=target_BY,
        target_BY=target_BY,
        target_lengths_B=lengths[1],
        scored_BY=torch.arange(target_BY.shape[1]) < lengths[1][:, None],
        begin=vocabulary.decoder_start,
    )


class CausalSeq2Seq(Seq2Seq):
    """Source to target by a causal backbone: one sequence, of which only the target is scored."""

    def answer_view(self, batch: Batch) -> View:
        view = CausalLM(CausalLMConfig(), self.task).answer_view(batch)
        # Skip columns with only padding; without a begin token there is one column less.
        length = min(int(batch.valid_BT.sum(1).max()), view.tokens_BT.shape[1])
        return dataclasses.replace(
            view,
            tokens_BT=view.tokens_BT[:, :length],
            valid_BT=None if batch.valid_BT[:, :length].all() else batch.valid_BT[:, :length],
            target_BT=view.target_BT[:, :length],
            weight_BT=view.weight_BT[:, :length],
        )

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        prompts = [[*prompt, self.vocabulary.eos] for prompt in prompts]
        return CausalLM(CausalLMConfig(), self.task).prefill_state(model, prompts, max_tokens)
