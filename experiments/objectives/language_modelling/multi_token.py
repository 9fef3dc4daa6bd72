"""Multi-token prediction: from each position the next tokens, by one head each (Gloeckle et al. 2024).

Shapes: B batch, T length, D d_model, F hidden width, V vocabulary, K heads for later tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Output, init_normal, linear_flops
from archbench.architectures.layers.cross_entropy import cross_entropy
from archbench.architectures.layers.feedforward import DenseFeedForward, FeedForwardConfig, swiglu_width
from archbench.architectures.layers.normalization import RMSNorm
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.objective import View
from archbench.experiments.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class MultiTokenConfig(CausalLMConfig):
    """Multi-token prediction. With one token it is causal language modelling."""

    num_tokens: int = 4
    """Tokens that are predicted from each position; four in most models of the paper."""
    weight: float = 1.0
    """Weight of the loss of each token after the next one, whose weight is 1."""

    def __post_init__(self) -> None:
        if self.num_tokens < 2:
            raise ValueError(f"num_tokens={self.num_tokens} must be at least 2; one is objective=causal_lm")
        if self.weight <= 0:
            raise ValueError(f"weight={self.weight} must be positive")


class MultiToken(CausalLM):
    """Next-token prediction, with further heads for the tokens after the next one in training.

    Scores and generation are those of the next token alone.
    """

    Config = MultiTokenConfig
    config: MultiTokenConfig

    def __init__(self, config: MultiTokenConfig, task: Task) -> None:
        super().__init__(config, task)
        if 0 < task.sequence_length < config.num_tokens:  # a loaded model may have a task without sequences
            raise ValueError(
                f"num_tokens={config.num_tokens} exceeds the {task.sequence_length} tokens of a sequence: "
                "the last head would have nothing to predict"
            )

    def make_readout(self, backbone: Backbone) -> FutureHeads:
        return FutureHeads(backbone, self.config.num_tokens - 1)

    def loss(self, output: Output, view: View) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of all heads (nats), and the number of positions that are scored.

        A head that looks k tokens further has k positions less in each document.
        """
        loss, count = super().loss(output, view)
        if output.readout is None:
            return loss, count
        for shift, logits_BTV in enumerate(output.readout.unbind(2), start=1):
            weight_BT = later_weights(view, shift)
            nats = cross_entropy(logits_BTV[:, :-shift].flatten(0, 1), view.target_BT[:, shift:].flatten())
            loss = loss + self.config.weight * (nats.view_as(weight_BT) * weight_BT).sum()
        return loss, count


def later_weights(view: View, shift: int) -> Tensor:
    """Return the weights (B, T - shift) of the tokens ``shift`` after the next one of each position.

    They are 0 where the two are in different documents, if the model keeps documents apart.
    """
    weight_BT = view.weight_BT[:, shift:]
    if view.documents_BT is None:
        return weight_BT
    return weight_BT * (view.documents_BT[:, shift:] == view.documents_BT[:, :-shift])


class FutureHeads(nn.Module):
    """Logits (B, T, K, V) of the tokens after the next one; in training only.

    A head is a residual feed-forward and a norm, on the last hidden states, before the projection to the
    vocabulary that all heads share with the model. In the paper a head is a transformer layer.
    """

    training_only = True
    """Exported models do not have it."""

    def __init__(self, backbone: Backbone, num_heads: int) -> None:
        super().__init__()
        width = backbone.config.width
        # A bound method, and no module: its weights stay those of the backbone alone.
        predict: Callable[[Tensor], Tensor] = getattr(backbone, "predict", backbone.head.forward)
        self.predict = predict
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(2 * num_heads))
        self.feedforwards = nn.ModuleList(
            DenseFeedForward(width, swiglu_width(width), FeedForwardConfig()) for _ in range(num_heads)
        )
        self.head_flops = linear_flops(backbone.head, 1)  # of one token
        init_normal(self)

    def forward(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> Tensor | None:
        if not self.training:
            return None
        logits = []
        for index, feedforward in enumerate(self.feedforwards):
            before, after = self.norms[2 * index], self.norms[2 * index + 1]
            logits.append(self.predict(after(hidden_BTD + feedforward(before(hidden_BTD))[0])))
        return torch.stack(logits, dim=2)

    def flops(self, length: int) -> int:
        """Return the FLOPs of all heads for one sequence."""
        heads = len(self.feedforwards)
        return linear_flops(self.feedforwards, length) + length * heads * self.head_flops
