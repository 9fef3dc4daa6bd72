"""Losses that experts add to the training loss: the load-balancing loss and the router's z-loss.

``Experts.forward`` returns them, the backbone collects them in ``Output.auxiliary``, and
``experiments.training.loss`` adds them to the loss of the objective. Shapes: B batch, T length, X experts,
K experts for each token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from architectures.layers.block import Auxiliary
from architectures.layers.moe.config import ExpertsConfig
from architectures.layers.moe.router import Routing

LAYER_SUMS = "balance_sums"
"""Name of what layers add up for ``join_layers``, among their losses."""


def router_losses(routing: Routing, valid_BT: Tensor | None, config: ExpertsConfig) -> Auxiliary:
    """Return the losses of one layer by name, weighted by their coefficients, without those of coefficient 0.

    Each is a sum over sequences, of valid tokens only. ``router_z`` is the mean over the tokens of a sequence
    of the squared logarithm of the sum of exponentials of their logits (ST-MoE, arXiv 2202.08906, eq. 5).
    """
    losses = {}
    if config.balance_coefficient and config.choice == "token":
        if config.balance == "all_layers":
            losses[LAYER_SUMS] = balance_sums(routing, valid_BT, config)
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


def join_layers(losses: Auxiliary, sequences: int) -> None:
    """Replace ``balance_sums``, added up over layers, by the balance loss X sum_x f_x P_x, for each sequence.

    f_x and P_x are those of ``balance_loss`` over the tokens of the batch in all layers, as in
    ``load_balancing_loss_func`` of transformers: K is perfect balance.
    """
    if LAYER_SUMS in losses:
        chosen_X, weighted_X, tokens_X = losses.pop(LAYER_SUMS)
        losses["balance"] = sequences * (chosen_X * weighted_X / tokens_X.clamp_min(1).square()).sum()


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
