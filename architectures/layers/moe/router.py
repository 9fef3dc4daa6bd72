"""Routers: which experts a token visits, how much each of them counts, and their losses.

``Experts.forward`` returns the load-balancing loss and the router's z-loss, the backbone collects them in
``Output.auxiliary``, and ``experiments.training.loss`` adds them to the loss of the objective.

Shapes: B batch, T length, D d_model, X experts, K choices of a token, G groups
of experts, E experts in a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.layers.block import BALANCE_SUMS, Auxiliary
from archbench.architectures.layers.context import restart
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.dispatch import count_visits
from archbench.architectures.layers.precise_linear import PreciseLinear


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Decisions of a router."""

    logits_BTX: Tensor
    score_BTX: Tensor
    """Of each expert; at least float32."""
    expert_BTK: Tensor
    """The experts of each token. With expert choice, all of them: ``kept_BTK`` is True for those that
    select it."""
    gate_BTK: Tensor
    """Factors of the outputs of the chosen experts."""
    kept_BTK: Tensor | None
    """False where an expert does not take a token; None where all do."""
    documents_BT: Tensor | None = None
    """The document of each token; None where a row is one document."""


class Router(PreciseLinear):
    """Logits for each expert, and the choice among them, in at least float32, also under autocast.

    Its ``selection_X`` is the bias of DeepSeek-V3 (arXiv 2412.19437, eq. 16): it
    affects the choice and not the gates, and has no gradient.
    ``after_step`` updates it by the choices of the tokens in the step.
    """

    selection_X: Tensor

    def __init__(self, d_model: int, config: ExpertsConfig) -> None:
        super().__init__(d_model, config.num_experts, bias=config.bias)
        self.config = config
        self.counts_X: Tensor | None = None
        """Tokens that chose each expert since the last step."""
        if config.bias_rate is not None:
            self.register_buffer("selection_X", torch.zeros(config.num_experts))

    def route(self, x_BTD: Tensor, valid_BT: Tensor | None, documents_BT: Tensor | None = None) -> Routing:
        """Return the experts of each token. Padding and other documents of a row do not affect it."""
        logits_BTX = self(x_BTD)
        score_BTX = logits_BTX.softmax(-1) if self.config.score == "softmax" else logits_BTX.sigmoid()
        if self.config.choice == "expert":
            return self._experts_choose(logits_BTX, score_BTX, valid_BT)
        expert_BTK = self._select(score_BTX)
        gate_BTK = score_BTX.gather(-1, expert_BTK)
        if self.config.renormalise:
            gate_BTK = gate_BTK / (gate_BTK.sum(-1, keepdim=True) + 1e-20)
        if self.config.scaling != 1:
            gate_BTK = gate_BTK * self.config.scaling
        if self.training and self.config.bias_rate is not None and gate_BTK.requires_grad:
            gate_BTK.register_hook(self._counter(expert_BTK, valid_BT))
        return Routing(
            logits_BTX=logits_BTX,
            score_BTX=score_BTX,
            expert_BTK=expert_BTK,
            gate_BTK=gate_BTK,
            kept_BTK=self.within_capacity(expert_BTK, valid_BT, documents_BT, training=self.training),
            documents_BT=documents_BT,
        )

    def noisy(self, x_BTD: Tensor) -> Tensor:
        """Return the input of ``route`` with noise, in at least float32; the input itself without noise."""
        jitter = self.config.jitter
        if not self.training or not jitter:
            return x_BTD
        x_BTD = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        return x_BTD * torch.empty_like(x_BTD).uniform_(1 - jitter, 1 + jitter)

    def _select(self, score_BTX: Tensor) -> Tensor:
        """The k experts with the highest biased scores, within the groups of a token."""
        c = self.config
        if c.bias_rate is not None:
            score_BTX = score_BTX.detach() + self.selection_X
        if c.num_groups > 1:
            score_BTGE = score_BTX.unflatten(-1, (c.num_groups, -1))
            num_best = 1 if c.score == "softmax" else min(2, score_BTGE.shape[-1])
            group_BTG = score_BTGE.topk(num_best).values.sum(-1)
            chosen_BTG = group_BTG.topk(c.groups_per_token).indices
            allowed_BTG = torch.zeros_like(group_BTG, dtype=torch.bool).scatter(-1, chosen_BTG, True)
            score_BTX = score_BTGE.masked_fill(~allowed_BTG[..., None], -torch.inf).flatten(-2)
        return score_BTX.topk(c.experts_per_token, dim=-1).indices

    def within_capacity(
        self, expert_BTK: Tensor, valid_BT: Tensor | None, documents_BT: Tensor | None, *, training: bool
    ) -> Tensor | None:
        """Tokens within the capacity of their expert, counted in the order of each document; None for all.

        Earlier tokens come first, with all their choices, so that a token does not depend on later ones.
        """
        c = self.config
        factor = c.capacity_factor if training else None
        if c.capacity is None and factor is None:
            return None
        B, T, K = expert_BTK.shape
        valid_BT1 = (expert_BTK.new_ones(B, T) if valid_BT is None else valid_BT.long())[..., None]
        first_BT, length_BT = document_extents(valid_BT1[..., 0], documents_BT)
        if factor is None:
            limit_BT = torch.full_like(length_BT, c.capacity or 0)
        else:
            limit_BT = (factor * K / c.num_experts * length_BT).ceil()
        chosen_BTKX = F.one_hot(expert_BTK, c.num_experts) * valid_BT1[..., None]
        rank_BTKX = chosen_BTKX.flatten(1, 2).cumsum(1).view_as(chosen_BTKX)
        if documents_BT is not None:  # without the choices of the documents before
            before_BTX = rank_BTKX[:, :, -1] - chosen_BTKX.sum(2)
            rank_BTKX = (
                rank_BTKX - before_BTX.gather(1, first_BT[..., None].expand_as(before_BTX))[:, :, None]
            )
        rank_BTK = rank_BTKX.gather(-1, expert_BTK[..., None]).squeeze(-1)
        return (rank_BTK <= limit_BT[..., None]) & valid_BT1.bool()

    def _experts_choose(self, logits_BTX: Tensor, score_BTX: Tensor, valid_BT: Tensor | None) -> Routing:
        """Each expert selects the k T / X tokens of a sequence with its highest scores."""
        T = score_BTX.shape[1]
        length_B = score_BTX.new_full((len(score_BTX),), T) if valid_BT is None else valid_BT.sum(1)
        fraction = self.config.experts_per_token / self.config.num_experts
        count_B11 = (fraction * length_B).ceil()[:, None, None]
        ranked_BTX = score_BTX.detach()
        if valid_BT is not None:
            ranked_BTX = ranked_BTX.masked_fill(~valid_BT[..., None], -torch.inf)
        order_BTX = ranked_BTX.argsort(dim=1, descending=True, stable=True)
        rank_BTX = order_BTX.argsort(1)
        every_X = torch.arange(self.config.num_experts, device=score_BTX.device)
        return Routing(
            logits_BTX=logits_BTX,
            score_BTX=score_BTX,
            expert_BTK=every_X.expand_as(score_BTX),
            gate_BTK=score_BTX * self.config.scaling,
            kept_BTK=rank_BTX < count_B11,
        )

    def _counter(self, expert_BTK: Tensor, valid_BT: Tensor | None) -> Callable[[Tensor], None]:
        """Add the choices to the counts when the gradient passes.

        That is once for every forward pass that trains: one that is run again to save memory
        does not count twice, and one without a backward pass does not count.
        """
        valid_M = None if valid_BT is None else valid_BT[..., None].expand_as(expert_BTK).flatten()
        new_X = count_visits(expert_BTK.flatten(), self.config.num_experts, valid_M)

        def add(gradient: Tensor) -> None:
            self.counts_X = new_X if self.counts_X is None else self.counts_X + new_X

        return add

    def forget_step(self) -> None:
        """Drop the choices counted since the last step."""
        self.counts_X = None

    @torch.no_grad()
    def after_step(self) -> None:
        """Update the bias by the choices since the last step, those of all processes.

        Its mean stays zero, because only differences matter (torchtitan does the same).
        """
        if self.counts_X is None:
            return
        assert self.config.bias_rate is not None
        count_X = self.counts_X.to(self.selection_X.dtype)
        self.counts_X = None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(count_X)
        self.selection_X += self.config.bias_rate * (count_X.mean() - count_X).sign()
        self.selection_X -= self.selection_X.mean()


def document_extents(is_token_BT: Tensor, documents_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the index of the first token of the document of each token, and the tokens in that document.

    Both have shape (B, T). Padding, where ``is_token_BT`` is 0, does not count.
    """
    if documents_BT is None:
        return torch.zeros_like(is_token_BT), is_token_BT.sum(1, keepdim=True).expand_as(is_token_BT)
    index_1T = torch.arange(is_token_BT.shape[1], device=is_token_BT.device)[None]
    first_BT = index_1T - restart(documents_BT, index_1T)
    count_BT = torch.zeros_like(is_token_BT).scatter_add(1, first_BT, is_token_BT)
    return first_BT, count_BT.gather(1, first_BT)


def router_losses(routing: Routing, valid_BT: Tensor | None, config: ExpertsConfig) -> Auxiliary:
    """Return the losses of one layer by name, weighted by their coefficients, without those of coefficient 0.

    Each is a sum over sequences, of valid tokens only. ``router_z`` is the mean over the tokens of a sequence
    of the squared logarithm of the sum of exponentials of their logits (ST-MoE, arXiv 2202.08906, eq. 5).
    """
    losses = {}
    if config.balance_coefficient and config.choice == "token":
        if config.balance == "all_layers":
            losses[BALANCE_SUMS] = balance_sums(routing, valid_BT, config)
        else:
            losses["balance"] = config.balance_coefficient * balance_loss(routing, valid_BT, config)
    if config.z_coefficient:
        square_BT = routing.logits_BTX.logsumexp(-1).square()
        losses["router_z"] = config.z_coefficient * _mean(square_BT[..., None], valid_BT).sum()
    return losses


def balance_loss(routing: Routing, valid_BT: Tensor | None, config: ExpertsConfig) -> Tensor:
    """Return X/K sum_x f_x P_x, summed over sequences; dropped tokens count as choices.

    f_x is the fraction of tokens that chose expert x, or with ``balance_counts=affinity`` have it among
    their K highest scores, and P_x its mean normalised score: 1 is perfect balance, X/K all tokens on the
    same experts. Taken for each sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17-20) it
    does not depend on how a batch is split. Taken for a batch (Switch, arXiv 2101.03961, eq. 4-6) it is a
    product of two means over the batch, which micro-batches cannot reproduce: each then has a separate loss,
    and the mean of those is trained.
    """
    score_BTX, chosen_BTX = _scores_and_choices(routing, config)
    sequences = 1
    if config.balance == "batch":  # one sequence of all tokens, weighted by the number of sequences
        sequences = len(score_BTX)
        score_BTX, chosen_BTX = score_BTX.flatten(0, 1)[None], chosen_BTX.flatten(0, 1)[None]
        valid_BT = None if valid_BT is None else valid_BT.flatten()[None]
    share_BX, mean_BX = _mean(chosen_BTX, valid_BT), _mean(score_BTX, valid_BT)
    return sequences * config.num_experts / config.experts_per_token * (share_BX * mean_BX).sum()


def balance_sums(routing: Routing, valid_BT: Tensor | None, config: ExpertsConfig) -> Tensor:
    """Return (3, X): choices, weighted scores, and tokens, each summed over the batch."""
    score_BTX, chosen_BTX = _scores_and_choices(routing, config)
    weighted_BTX = config.balance_coefficient * config.num_experts * score_BTX
    sums_BT3X = torch.stack([chosen_BTX, weighted_BTX, torch.ones_like(score_BTX)], dim=2)
    if valid_BT is not None:
        sums_BT3X = sums_BT3X * valid_BT[..., None, None]
    return sums_BT3X.sum((0, 1))


def _scores_and_choices(routing: Routing, config: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """Return the normalised scores (B, T, X), and 1 for the experts of a token that are counted."""
    score_BTX, expert_BTK = routing.score_BTX, routing.expert_BTK
    if config.balance_counts == "affinity":
        expert_BTK = score_BTX.topk(config.experts_per_token, dim=-1).indices
    if config.score == "sigmoid":
        score_BTX = score_BTX / score_BTX.sum(-1, keepdim=True)
    return score_BTX, torch.zeros_like(score_BTX).scatter(-1, expert_BTK, 1.0)


def _mean(x_BTX: Tensor, valid_BT: Tensor | None) -> Tensor:
    """The mean (B, X) over the valid tokens of each sequence; zero where there are none."""
    if valid_BT is None:
        return x_BTX.mean(1)
    weight_BT1 = valid_BT[..., None].to(x_BTX.dtype)
    return (x_BTX * weight_BT1).sum(1) / weight_BT1.sum(1).clamp_min(1)
