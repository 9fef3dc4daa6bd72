"""Masked diffusion: mask a random fraction of the tokens, predict them all at once.

Sahoo et al. 2024 (MDLM, arXiv 2406.07524), Shi et al. 2024 (MD4, arXiv
2406.04329), Nie et al. 2025 (LLaDA, arXiv 2502.09992). At time t each token is
masked with probability m(t), and the cross-entropy of the masked tokens weighs
m'(t) / m(t), which is 1/t in the linear schedule. The mean over t bounds -log p
from above.

Shapes: B batch, K blocks (one, but in block diffusion), T length, S samples, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities, Output
from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig
from archbench.experiments.objectives.diffusion.bound_estimator import by_time, fixed_count
from archbench.experiments.objectives.diffusion.noise_schedules import (
    NoiseConfig,
    draw_times,
    inverse_weight,
    masked_fraction,
)
from archbench.experiments.objectives.diffusion.unmasking_path import path_nats
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.objectives.diffusion.unmasking_schedule import UnmaskingConfig
from archbench.experiments.objectives.generation_metrics import (
    ended_answers,
    generated_examples,
    generation_metrics,
    source_prompts,
)
from archbench.experiments.objectives.objective import (
    Score,
    TokenScores,
    View,
    scored_bytes,
    separate_generators,
    weighted_cross_entropy,
)
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.tasks.metrics import Likelihood, Metric, bits_per_byte, jackknife
from archbench.experiments.tasks.task import Batch, Task

ESTIMATORS = {
    "fixed_count": "NELBO, a fixed number of masks drawn uniformly, stratified",
    "time": "NELBO, Monte Carlo over stratified times",
    "permutation": "NELBO, -log p by the chain rule in random orders of the tokens",
}
RANDOM_ORDER = UnmaskingConfig(method="confidence", order="random")
AVERAGES = ("tokens", "sequences")


@dataclass(frozen=True, kw_only=True)
class MaskedDiffusionConfig:
    """Masked diffusion."""

    min_time: float = 1e-3
    """Smallest time drawn in training, which bounds the weight."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """The masking probability at a time, and how times are drawn."""
    average: str = "tokens"
    """The mean that the training loss is: over all scored ``tokens`` of the batch, or over its ``sequences``,
    each the mean over its scored tokens, as LLaDA is fine-tuned (GUIDELINES.md). They differ where
    sequences have different counts of scored tokens: by sequence, a token of a short answer counts for
    more."""
    estimator: str = "fixed_count"
    """The estimator of the bound: ``fixed_count`` masks (LLaDA, equation 6; far less variance), by Monte
    Carlo over ``time``, or by the likelihood of a random ``permutation``, one token at a time (least
    variance, with a forward pass for each scored token)."""
    evaluation_samples: int = 2
    """Masked versions, or permutations, of each sequence from which the bound is estimated."""
    sampling_steps: int = 32
    """Forward passes to unmask a sample."""
    filling: UnmaskingConfig = field(default_factory=UnmaskingConfig)
    """Which positions are unmasked at which step, and how."""

    def __post_init__(self) -> None:
        if not 0 < self.min_time < self.noise.max_time:
            raise ValueError(
                f"min_time={self.min_time} must be between 0 and noise.max_time={self.noise.max_time}"
            )
        if self.average not in AVERAGES:
            raise ValueError(f"average={self.average!r} is unknown{nearest(self.average, AVERAGES)}")
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator={self.estimator!r} is unknown{nearest(self.estimator, ESTIMATORS)}")
        if self.evaluation_samples < 1 or self.sampling_steps < 1:
            raise ValueError(
                f"evaluation_samples={self.evaluation_samples} and sampling_steps={self.sampling_steps} must "
                "be at least 1"
            )


class MaskedDiffusion(UnmaskingObjective):
    """Continuous-time masked diffusion. On tasks with answers only the answers are ever masked."""

    Config = MaskedDiffusionConfig
    config: MaskedDiffusionConfig
    gives_time = True
    full_likelihood = True
    has_unmasking_path = True

    def __init__(self, config: MaskedDiffusionConfig, task: Task) -> None:
        super().__init__(config, task)
        self.unmasking, self.noise = config.filling, config.noise
        self.continues = task.targets != "texts"

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        condition = "" if self.continues else " of the target and its end tokens given the source"
        return Likelihood(
            kind="bound",
            estimator=ESTIMATORS[self.config.estimator] + condition,
            samples=self.config.evaluation_samples,
        )

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.bidirectional:
            return None
        return "a bidirectional backbone: one that sees both sides of a blank"

    @classmethod
    def incompatibility(cls, task: type[Task]) -> str | None:
        return None if task.targets == "texts" else super().incompatibility(task)

    def blocks(self, length: int) -> Tensor:
        """The number (T,) of the block that each position belongs to; times are drawn for each block."""
        return torch.zeros(length, dtype=torch.long)

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        batch = self._canvas(batch)
        B, T = batch.tokens_BT.shape
        block_T = self.blocks(T)
        time_BK = self.block_times(B, int(block_T[-1]) + 1, generator)
        scored_BT = batch.answer_BT & batch.valid_BT
        masked_fraction_BK = masked_fraction(time_BK, self.noise)
        masked_BT = (torch.rand(B, T, generator=generator) < masked_fraction_BK[:, block_T]) & scored_BT
        weight_BT = masked_BT / inverse_weight(time_BK, self.noise)[:, block_T]
        return self._averaged(
            self.noised_view(batch, batch.tokens_BT, masked_BT, weight_BT, masked_fraction_BK[:, 0])
        )

    def _averaged(self, view: View) -> View:
        """Return the view weighted for the mean that the training loss is."""
        if self.config.average == "tokens":
            return view
        weight_BT = view.weight_BT / view.count_B.clamp_min(1)[:, None]
        return replace(view, weight_BT=weight_BT, count_B=view.count_B.clamp_max(1))

    def block_times(self, rows: int, blocks: int, generator: torch.Generator) -> Tensor:
        """Times (B, K), spread evenly over all of them: far less variance than independent draws."""
        time_N = draw_times(rows * blocks, self.config.min_time, self.noise, generator)
        if blocks > 1:  # else a block would always have a time from the same part of the range
            time_N = time_N[torch.randperm(len(time_N), generator=generator)]
        return time_N.view(rows, blocks)

    def answer_view(self, batch: Batch) -> View:
        batch = self._canvas(batch)
        hidden_BT = batch.answer_BT & batch.valid_BT
        everything_B = torch.ones(len(hidden_BT))
        return self.noised_view(batch, batch.context_BT, hidden_BT, hidden_BT.float(), everything_B)

    def _canvas(self, batch: Batch) -> Batch:
        """Return the batch; where the targets are texts, answers are padded with end tokens."""
        if self.continues:
            return batch
        return ended_answers(batch, self.task.config.max_target + 1, self.vocabulary)  # type: ignore[attr-defined]

    def noised_view(
        self, batch: Batch, shown_BT: Tensor, masked_BT: Tensor, weight_BT: Tensor, masked_fraction_B: Tensor
    ) -> View:
        """Return the view of tokens of which some are masked, in the first block this fraction."""
        return View(
            tokens_BT=shown_BT.masked_fill(masked_BT, self.vocabulary.mask),
            valid_BT=None if batch.valid_BT.all() else batch.valid_BT,
            target_BT=batch.tokens_BT,
            weight_BT=weight_BT,
            # All scored tokens, masked or not: the weight 1/t makes up for those that are not.
            count_B=(batch.answer_BT & batch.valid_BT).sum(1).float(),
            time_B=masked_fraction_B,
        )

    def logits(self, output: Output, view: View) -> Tensor:
        """The mask token is never predicted (SUBS, MDLM section 3.2.3).

        Unmasked tokens are copied without being predicted: their weight is zero.
        """
        logits_BTV = output.logits_BTV
        never_V = torch.arange(logits_BTV.shape[-1], device=logits_BTV.device) == self.vocabulary.mask
        return logits_BTV.masked_fill(never_V, -torch.inf)

    def nats(self, output: Output, view: View) -> Tensor:
        return weighted_cross_entropy(output.logits_BTV, view, never=self.vocabulary.mask)

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Score a batch; of tasks with target texts, the bound of the target and the generated text.

        What is generated does not depend on the number of samples that the bound is estimated from.
        """
        if self.continues:
            return super().evaluate(model, batch, generators)
        score = self.likelihood_score(model, batch, generators)
        generated = self.sample(
            model,
            source_prompts(batch),
            max_tokens=batch.tokens_BT.shape[1],
            generators=separate_generators(generators, "generation"),
            sampling=GREEDY,
            stop={self.vocabulary.eos},
        )
        texts = [self.task.decode(tokens) for tokens in generated]  # type: ignore[attr-defined]
        return Score(records=generated_examples(score, texts, batch))

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Return the bound of what each sequence scores: the mean of its samples, each unbiased for it.

        The context of a window is never masked, so that the bound is on the scored tokens given the context.
        """
        samples = list(self._samples(model, batch, generators))
        nats_BS = torch.stack([nats_BT.sum(1).cpu() for nats_BT, _ in samples], dim=1)
        scored_BT = batch.answer_BT & batch.valid_BT
        bytes_B = scored_bytes(batch, scored_BT)
        nats_B, records, by_token = nats_BS.mean(1), [], None
        if self.continues:
            nats_BT, weight_BT = (
                torch.stack([x.cpu() for x in xs]).mean(0) for xs in zip(*samples, strict=True)
            )
            by_token = TokenScores.of(batch, nats_BT, weight_BT, scored_BT)
        if nats_BS.shape[1] > 1:
            variance_B = nats_BS.var(1) / nats_BS.shape[1]
            records = list(zip(variance_B.tolist(), bytes_B.tolist(), strict=True))
        return Score(nats_B=nats_B, bytes_B=bytes_B, by_token=by_token, records=records)

    def estimates(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Tensor:
        """``evaluation_samples`` estimates (B, S) of each sequence's bound, in nats, float64.

        They are stratified: each sample draws from a separate interval of the times, or of the counts. Noise
        is also drawn for padding, so that rows with generators of one seed share all draws, whatever their
        lengths: the batch must have a width that follows from the length of each of its rows.
        """
        samples = self._samples(model, batch, generators, pads_draw=True)
        return torch.stack([nats_BT.sum(1).cpu() for nats_BT, _ in samples], dim=1)

    def _samples(
        self,
        model: Backbone,
        batch: Batch,
        generators: Sequence[torch.Generator],
        *,
        pads_draw: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield weighted nats (B, T) of each masked copy, and the weights, float64 on the model's device.

        Noise is drawn for padding only if ``pads_draw``.
        """
        device = next(model.parameters()).device
        batch = self._canvas(batch)
        drawn_BT = torch.ones_like(batch.valid_BT) if pads_draw else batch.valid_BT
        samples = self.config.evaluation_samples
        scored_BT, block_T = batch.answer_BT & batch.valid_BT, self.blocks(batch.tokens_BT.shape[1])
        for index in range(samples):
            part = (index / samples, 1 / samples)
            if self.config.estimator == "permutation":
                yield self._permutation_nats(model, batch, generators), scored_BT.double()
                continue
            if self.config.estimator == "fixed_count":
                noised = fixed_count(scored_BT, drawn_BT, block_T, generators, part)
            else:
                noised = by_time(scored_BT, drawn_BT, block_T, generators, part, self.noise)
            view = self.noised_view(batch, batch.tokens_BT, *noised).to(device)
            yield self.nats(view.run(model), view).double(), view.weight_BT.double()

    def _permutation_nats(
        self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """-log p (B, T) of each scored token given those before it in a random order of its sequence.

        Hoogeboom et al. 2022 (ARDM, arXiv 2110.02037), equation 2: the mean over all orders is the bound.
        """
        return path_nats(
            model,
            batch,
            self.vocabulary,
            steps=batch.tokens_BT.shape[1],
            generators=generators,
            unmasking=RANDOM_ORDER,
            noise=self.noise,
            continues=False,  # the masked fraction is that of the scored tokens, as in the other estimators
        )

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        """Return the estimator's part of the standard error, or the metrics of generated texts."""
        if not self.continues:
            how = f"{self.unmasking.method}, {self.steps} steps"
            return generation_metrics(records, split, self.likelihood, self.task.metric, how)
        variance_N, bytes_N = np.array(records, dtype=np.float64).T

        def error(index: NDArray[np.int64]) -> float:
            return bits_per_byte(math.sqrt(variance_N[index].sum()), float(bytes_N[index].sum()))

        return [
            Metric(
                name="estimator_error",
                split=split,
                value=error(np.arange(len(records))),
                unit="bits/byte",
                direction="lower",
                averaging="micro: root of the summed variances of all sequences' estimates over all bytes",
                likelihood=self.likelihood.kind,
                estimator="spread of each sequence's samples, as if they were not stratified",
                samples=self.likelihood.samples,
                standard_error=jackknife(error, len(records)),
                items=len(records),
            )
        ]

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
        """Generate by unmasking; targets have the length of training, regardless of ``max_tokens``."""
        num_tokens = max_tokens
        if not self.continues:
            prompts = [[*prompt, self.vocabulary.eos] for prompt in prompts]
            num_tokens = self.task.config.max_target + 1  # type: ignore[attr-defined]
        generated = self.generate(
            model, prompts, max_tokens=num_tokens, generators=generators, sampling=sampling, stop=stop
        )
        return [tokens[:max_tokens] for tokens in generated]
