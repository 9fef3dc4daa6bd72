"""Uniform-state diffusion: replace a random fraction of the tokens by random ones, predict the clean ones.

Schiff et al. 2024 (UDLM, arXiv 2412.10193); D3PM (Austin et al. 2021, arXiv 2107.03006) with uniform
transitions, in continuous time. At time t each token is replaced with probability m(t) = 1 - alpha(t) by one
of the N tokens of the vocabulary without the mask token, uniformly. A noisy position does not show that it is
noisy, so each step of the sampler can change every token.

Shapes: B batch, N noisy positions of a row, T length, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.backbone import Backbone, Output
from archbench.experiments.objectives.decoding.sampling import SamplingConfig, allowed_tokens, draw, process
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.noise_schedules import (
    draw_times,
    inverse_weight,
    masked_fraction,
    time_grid,
)
from archbench.experiments.objectives.diffusion.unmasking_sampler import check_penalty, padded_texts
from archbench.experiments.objectives.diffusion.unmasking_schedule import UnmaskingConfig
from archbench.experiments.objectives.finite_outputs import check_logits
from archbench.experiments.objectives.objective import View, row_noise
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch, Task

SMALLEST_ALPHA = 1e-4
"""The integrand is proportional to alpha near time 1, where dividing by alpha would amplify rounding."""


@dataclass(frozen=True, kw_only=True)
class UniformDiffusionConfig(MaskedDiffusionConfig):
    """Uniform-state diffusion."""

    estimator: str = "time"
    """The estimator of the bound: Monte Carlo over ``time``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator != "time":
            raise ValueError(f"estimator={self.estimator}: uniform_diffusion has only estimator=time")
        if self.filling != UnmaskingConfig():
            raise ValueError("uniform_diffusion unmasks nothing: leave out filling, and set sampling_steps")


class UniformDiffusion(MaskedDiffusion):
    """Continuous-time uniform-state diffusion. On tasks with answers only the answers are ever noised."""

    Config = UniformDiffusionConfig
    config: UniformDiffusionConfig
    has_unmasking_path = False  # each step can change every token

    def __init__(self, config: UniformDiffusionConfig, task: Task) -> None:
        super().__init__(config, task)
        self.unmasking = UnmaskingConfig(method="ancestral")  # as scores describe it
        self.states_V = torch.arange(self.vocabulary.size) != self.vocabulary.mask
        self.state_ids_N = self.states_V.nonzero().flatten()

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        parent = super().likelihood
        return Likelihood(
            kind=parent.kind, estimator=f"{parent.estimator}, uniform noise", samples=parent.samples
        )

    def override_unmasking(self, *, steps: int | None = None, **changes: Any) -> None:
        if changes:
            raise ValueError(f"filling.{next(iter(changes))}: uniform_diffusion has only filling.steps")
        super().override_unmasking(steps=steps)

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        batch = self._canvas(batch)
        B, T = batch.tokens_BT.shape
        time_B = draw_times(B, self.config.min_time, self.noise, generator)
        uniform_2BT = torch.rand(2, B, T, generator=generator)
        return self._averaged(self._uniform_view(batch, time_B, *uniform_2BT))

    def _uniform_view(self, batch: Batch, time_B: Tensor, replaced_BT: Tensor, token_BT: Tensor) -> View:
        """Return the view at a time of each sequence, by uniform values for positions and for tokens."""
        scored_BT = batch.answer_BT & batch.valid_BT
        fraction_B = masked_fraction(time_B, self.noise)
        noisy_BT = (replaced_BT < fraction_B[:, None]) & scored_BT
        rate_B = fraction_B / inverse_weight(time_B, self.noise)  # m'(t)
        shown_BT = torch.where(noisy_BT, self._random_tokens(token_BT), batch.tokens_BT)
        weight_BT = (scored_BT * rate_B[:, None]).float()
        return self.noised_view(batch, shown_BT, torch.zeros_like(scored_BT), weight_BT, fraction_B.float())

    def _random_tokens(self, uniform_BT: Tensor) -> Tensor:
        """Return the tokens that uniform values in [0, 1) select among all but the mask token."""
        return self.state_ids_N[(uniform_BT.double() * len(self.state_ids_N)).long()]

    def answer_view(self, batch: Batch) -> View:
        """The answers are replaced by the same random tokens in every sequence: it is deterministic."""
        batch = self._canvas(batch)
        uniform_T = torch.rand(batch.tokens_BT.shape[1], generator=torch.Generator().manual_seed(0))
        hidden_BT = batch.answer_BT & batch.valid_BT
        shown_BT = torch.where(hidden_BT, self._random_tokens(uniform_T), batch.context_BT)
        everything_B = torch.ones(len(hidden_BT))
        return self.noised_view(batch, shown_BT, torch.zeros_like(hidden_BT), hidden_BT.float(), everything_B)

    def with_scored_positions(self, view: View) -> View:
        """Logits are computed everywhere: the loss of a position also reads its noisy token."""
        return view

    def nats(self, output: Output, view: View) -> Tensor:
        """The integrand of the bound at each position, (B, T), of UDLM.

        With x the clean token, z the noisy one, y_j = N alpha [j = x] + 1 - alpha, and w_j the same with the
        prediction in place of [j = x], it is m' / (N alpha) times
        N / w_z - N / y_z + sum over j of y_j / y_z log(w_z y_j / (w_j y_z)).
        """
        assert view.time_B is not None
        p_BTV = self.logits(output, view).float().softmax(-1)
        N = len(self.state_ids_N)
        fraction_B1 = view.time_B[:, None]
        alpha_B1 = (1 - fraction_B1).clamp_min(SMALLEST_ALPHA)
        log_w_BTV = (N * alpha_B1[..., None] * p_BTV + fraction_B1[..., None]).log()
        log_w_BTN = log_w_BTV[..., self.state_ids_N.to(log_w_BTV.device)]
        log_w_x_BT = log_w_BTV.gather(-1, view.target_BT[..., None]).squeeze(-1)
        log_w_z_BT = log_w_BTV.gather(-1, view.tokens_BT[..., None]).squeeze(-1)
        others_BT = log_w_BTN.sum(-1) - log_w_x_BT  # of the N - 1 tokens with the smaller y
        y_x_B1, y_B1 = N * alpha_B1 + fraction_B1, fraction_B1
        log_ratio_B1 = y_x_B1.log() - y_B1.log()
        clean_BT = view.tokens_BT == view.target_BT
        kept_BT = (N - 1) * (log_w_x_BT - log_ratio_B1) - others_BT
        sum_BT = torch.where(
            clean_BT,
            y_B1 / y_x_B1 * kept_BT,
            y_x_B1 / y_B1 * (log_w_z_BT - log_w_x_BT + log_ratio_B1) + (N - 1) * log_w_z_BT - others_BT,
        )
        y_z_BT = torch.where(clean_BT, y_x_B1, y_B1)
        rate_BT = N * (-log_w_z_BT).exp() - N / y_z_BT + sum_BT
        return view.weight_BT / (N * alpha_B1) * rate_BT

    def _samples(
        self,
        model: Backbone,
        batch: Batch,
        generators: Sequence[torch.Generator],
        *,
        pads_draw: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        batch, samples = self._canvas(batch), self.config.evaluation_samples
        drawn_BT = torch.ones_like(batch.valid_BT) if pads_draw else batch.valid_BT
        scored_BT, once_B1 = (batch.answer_BT & batch.valid_BT).double(), drawn_BT.new_ones(len(drawn_BT), 1)
        for index in range(samples):
            time_B = 1 - (index + row_noise(generators, once_B1)[:, 0].double()) / samples  # in (0, 1]
            replaced_BT, token_BT = (row_noise(generators, drawn_BT) for _ in range(2))
            view = self._uniform_view(batch, time_B, replaced_BT, token_BT)
            view = view.to(next(model.parameters()).device)
            yield self.nats(view.run(model), view).double(), scored_BT

    @torch.no_grad()
    def unmask(
        self,
        model: Backbone,
        texts: Sequence[Sequence[int]],
        *,
        generators: Sequence[torch.Generator],
        sampling: SamplingConfig,
        stop: Collection[int] = (),
        new: int | None = None,
    ) -> list[list[int]]:
        """Replace mask tokens by random tokens, and these by the model's in ``self.steps`` steps."""
        check_penalty(sampling)
        device, vocabulary = next(model.parameters()).device, self.vocabulary
        tokens_BT, valid_BT, open_BT = padded_texts(texts, vocabulary, new, device)
        place_BN = open_BT.nonzero()[:, 1].view(len(texts), -1)
        forbidden_V = ~allowed_tokens(vocabulary, stop, device)
        open_BN = torch.ones(place_BN.shape, dtype=torch.bool)
        noisy_BN = self._random_tokens(row_noise(generators, open_BN)).to(device)
        for before, after in itertools.pairwise(time_grid(self.steps, self.noise).tolist()):
            tokens_BT = tokens_BT.scatter(1, place_BN, noisy_BN)
            time = {"time_B": torch.full((len(texts),), before, device=device)} if model.takes_time else {}
            logits_BTV = model(tokens_BT, valid_BT=valid_BT, **time).logits_BTV
            logits_BNV = logits_BTV.gather(1, place_BN[..., None].expand(-1, -1, logits_BTV.shape[-1]))
            p_BNV = predicted(check_logits(logits_BNV).masked_fill(forbidden_V, -torch.inf), sampling)
            q_BNV = posterior(p_BNV, noisy_BN, 1 - before, 1 - after, self.states_V.to(device))
            noisy_BN = draw(q_BNV.log(), SamplingConfig(), generators)
        return noisy_BN.tolist()


def predicted(logits_XV: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return the probabilities of clean tokens, float64; at temperature 0 of the most likely one only."""
    logits_XV = process(logits_XV, sampling)
    if sampling.temperature == 0:
        return F.one_hot(logits_XV.argmax(-1), logits_XV.shape[-1]).double()
    return logits_XV.double().softmax(-1)


def posterior(p_XV: Tensor, noisy_X: Tensor, alpha_t: float, alpha_s: float, states_V: Tensor) -> Tensor:
    """q(z_s | z_t, x) with the predicted probabilities of x, (..., V), as in UDLM."""
    noisy_XV = F.one_hot(noisy_X, p_XV.shape[-1]).double()
    N, alpha_ts = states_V.sum(dtype=torch.float64), alpha_t / alpha_s
    q_XV = N * alpha_t * p_XV * noisy_XV + (alpha_ts - alpha_t) * noisy_XV + (alpha_s - alpha_t) * p_XV
    q_XV = q_XV + (1 - alpha_ts) * (1 - alpha_s) / N * states_V
    return q_XV / q_XV.sum(-1, keepdim=True)
