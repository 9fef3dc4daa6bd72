"""A mixture of experts: each token is routed to a few of them.

Shapes: B batch, T length, N = B T tokens, D d_model, F hidden width of an
expert, X experts, K experts for each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.layers.block import Auxiliary, FeedForward
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.feedforward import DenseFeedForward, FeedForwardConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.dispatch import (
    Run,
    Weights,
    dispatch,
    grouped_product,
    product_dtype,
    run_all,
    run_grouped,
    run_loop,
    run_padded,
)
from archbench.architectures.layers.moe.router import Router, Routing, router_losses

RUNS: dict[str, Run] = {"loop": run_loop, "grouped": run_grouped, "padded": run_padded}
PATHS = {
    "loop": "sorted loop",
    "grouped": "grouped product",
    "padded": "padded product",
    "reference": "all experts on all tokens",
}
"""Name of each dispatch in the record of a run."""


MATRICES = ("gate_XFD", "up_XFD", "down_XDF")
BIASES = ("gate_bias_XF", "up_bias_XF", "down_bias_XD")
STACKS = (*MATRICES, *BIASES)
"""Parameters with a slice for each expert; a layer may lack some."""


class Experts(FeedForward):
    """Routed experts and shared experts. ``ExpertsConfig`` selects every variant.

    The load-balancing loss is in ``router``.
    """

    accepts_low_precision_input = (
        True  # the router reads rounded inputs, and computes in float32, as in Switch (section 2.4)
    )
    low_precision_parameters = MATRICES
    decode_kernel = "decode experts"
    gate_XFD: nn.Parameter | None
    gate_bias_XF: nn.Parameter | None
    up_bias_XF: nn.Parameter | None
    down_bias_XD: nn.Parameter | None

    def __init__(
        self, d_model: int, d_ff: int, config: ExpertsConfig, feedforward: FeedForwardConfig | None = None
    ) -> None:
        super().__init__()
        feedforward = feedforward or FeedForwardConfig()
        X = config.num_experts
        self.config, self.num_experts = config, X
        self.activation = feedforward.function
        self.router = Router(d_model, config)
        gate_XFD = nn.Parameter(torch.empty(X, d_ff, d_model)) if feedforward.gated else None
        self.register_parameter("gate_XFD", gate_XFD)
        self.up_XFD = nn.Parameter(torch.empty(X, d_ff, d_model))
        self.down_XDF = nn.Parameter(torch.empty(X, d_model, d_ff))
        widths = {"gate_bias_XF": d_ff, "up_bias_XF": d_ff, "down_bias_XD": d_model}
        for name, width in widths.items():
            absent = not config.bias or (name == "gate_bias_XF" and not feedforward.gated)
            self.register_parameter(name, None if absent else expert_bias(torch.zeros(X, width)))
        # Shared experts add up, so they are one feed-forward of their common width.
        plain = FeedForwardConfig(activation=feedforward.activation, gated=feedforward.gated)
        shared = config.num_shared_experts
        self.shared = DenseFeedForward(d_model, shared * d_ff, plain) if shared else None
        self.shared_gate = nn.Linear(d_model, 1, bias=False) if config.shared_gate else None
        self.exchange: Callable[[Run], Run] | None = None
        """Sends tokens to the processes that hold their experts; see ``expert_parallel``."""
        self.watcher: Callable[[Routing, Tensor | None], None] | None = None
        """Receives every routing decision; see ``routing_record``."""

    def forward(self, x_BTD: Tensor, context: Context | None = None) -> tuple[Tensor, Auxiliary]:
        valid_BT = None if context is None else context.valid_BT
        noisy_BTD = self.router.noisy(x_BTD)
        documents_BT = None if context is None else context.documents_BT
        routing = self.router.route(noisy_BTD, valid_BT, documents_BT)
        if self.config.jitter_experts:
            x_BTD = noisy_BTD.to(x_BTD.dtype)
        if self.watcher is not None:
            self.watcher(routing, valid_BT)
        y_BTD = self._routed(x_BTD, routing)
        if self.shared is not None:
            shared_BTD = self.shared(x_BTD)[0]
            if self.shared_gate is not None:
                shared_BTD = self.shared_gate(x_BTD).sigmoid() * shared_BTD
            y_BTD = y_BTD + shared_BTD
        return y_BTD, router_losses(routing, valid_BT, self.config)

    def _routed(self, x_BTD: Tensor, routing: Routing) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        expert_NK, gate_NK = routing.expert_BTK.flatten(0, 1), routing.gate_BTK.flatten(0, 1)
        kept_NK = None if routing.kept_BTK is None else routing.kept_BTK.flatten(0, 1)
        biases = (self.gate_bias_XF, self.up_bias_XF, self.down_bias_XD)
        weights = Weights(self.gate_XFD, self.up_XFD, self.down_XDF, self.activation, *biases)
        path = self.path(x_BTD)
        if path == "reference":
            y_ND = run_all(x_ND, expert_NK, gate_NK, kept_NK, weights)
        else:
            run = RUNS[path] if self.exchange is None else self.exchange(RUNS[path])
            y_ND = dispatch(
                x_ND,
                expert_NK,
                gate_NK,
                kept_NK,
                num_experts=self.config.num_experts,
                run=lambda x_MD, counts_X: run(x_MD, counts_X, weights),
            )
        return y_ND.view_as(x_BTD).to(x_BTD.dtype)

    def path(self, x_BTD: Tensor) -> str:
        """Return the dispatch that runs for such an input, ``auto`` resolved."""
        device, dispatch_name = x_BTD.device.type, self.config.dispatch
        dtype = product_dtype(x_BTD)
        d_ff, d_model = self.up_XFD.shape[1:]
        possible = grouped_product(device, dtype, d_model, d_ff)
        if dispatch_name == "grouped" and not possible:
            raise ValueError(
                "experts.dispatch=grouped takes bfloat16 on a GPU, float32 or less on a CPU, and widths of "
                f"multiples of 16 bytes, not {str(dtype).removeprefix('torch.')} on {device} with "
                f"d_model={d_model} and experts of {d_ff}: use auto"
            )
        if dispatch_name == "auto":
            # On the CPU the loop is as fast.
            return "grouped" if possible and device == "cuda" else "loop"
        return dispatch_name

    def kernel(self) -> str:
        """Description of the kernel of the experts."""
        if self.config.dispatch == "auto" and self.up_XFD.is_cuda:
            return "grouped product in bfloat16, else sorted loop"
        return PATHS["loop" if self.config.dispatch == "auto" else self.config.dispatch]

    def after_step(self) -> None:
        self.router.after_step()

    def forget_step(self) -> None:
        self.router.forget_step()

    def flops(self, length: int) -> Flops:
        c = self.config
        visits = c.experts_per_token * length
        if c.choice == "expert":
            visits = c.num_experts * math.ceil(visits / c.num_experts)
        shared_layers = (self.shared, self.shared_gate)
        shared = sum(linear_flops(layer, length) for layer in shared_layers if layer is not None)
        routed = self._expert_parameters(MATRICES) * visits + self.router.weight.numel() * length
        return Flops(linear=2 * routed + shared)

    def inactive_parameters(self) -> int:
        """Parameters of the experts that a token does not visit; on average, where the experts choose."""
        return (self.config.num_experts - self.config.experts_per_token) * self._expert_parameters(STACKS)

    def _expert_parameters(self, names: Sequence[str]) -> int:
        """Parameters of one expert, of the stacks of these names."""
        stacks = (getattr(self, name) for name in names)
        return sum(stack[0].numel() for stack in stacks if stack is not None)

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        for weight in (self.gate_XFD, self.up_XFD, self.down_XDF):
            if weight is not None:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)  # as in a dense layer: the inputs come last
        self.down_XDF.mul_(num_branches**-0.5)
        for bias in (self.router.bias, self.gate_bias_XF, self.up_bias_XF, self.down_bias_XD):
            if bias is not None:
                bias.zero_()


def expert_bias(bias: Tensor) -> nn.Parameter:
    """Return the biases of multiple experts as a parameter: a matrix, but not a weight."""
    parameter = nn.Parameter(bias)
    parameter.no_weight_decay = True  # type: ignore[attr-defined]
    return parameter
