"""The residual block and the contracts of its parts: mixers and feed-forwards.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.layers.canon import Canon, filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.normalization import NORMS, MakeNorm, for_products

Auxiliary = dict[str, Tensor]

BALANCE_SUMS = "balance_sums"
"""Key of a table (3, X) among the losses of a layer of experts, with ``balance=all_layers``. It is no loss:
the backbone adds up the tables of its layers, and ``join_layers`` replaces their sum by the loss."""
PLACEMENTS = ("pre", "post", "sandwich", "output")
Step = Callable[[Tensor, Any, Context], Tensor]
"""Maps the residual stream (B, T, D) before a block, the state of the layer and the context to the stream
after."""


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Norms, residual branches and dropout of a transformer block."""

    norm: str = "rmsnorm"
    """``rmsnorm``, ``rmsnorm_offset`` (times 1 + weight), ``layernorm`` or ``layernorm_no_bias``."""
    placement: str = "pre"
    """Position of the norms: ``pre`` x + f(norm(x)), ``post`` norm(x + f(x)), ``output`` x + norm(f(x)),
    ``sandwich`` x + norm(f(norm(x))). With ``post`` there is no norm after the last block."""
    parallel: bool = False
    """Attention and feed-forward read the same input and are added together; ``pre`` only."""
    shared_norm: bool = False
    """A single norm before both branches of a parallel block."""
    first_norm: bool = True
    """False leaves out the norm before the first mixer, where the embedding is normalised (ModernBERT)."""
    residual_scaling: bool = True
    """Output projections start smaller by the root of the number of residual branches (GPT-2)."""
    dropout: float = 0.0
    """Probability with which outputs of branches, and the embedding, are dropped in training."""
    stochastic_depth: float = 0.0
    """Probability that the last block's branches are skipped for a sequence in training; it rises linearly
    from 0 at the first block (Huang et al. 2016, arXiv 1603.09382)."""

    def __post_init__(self) -> None:
        for name, valid in (("norm", NORMS), ("placement", PLACEMENTS)):
            if getattr(self, name) not in valid:
                raise ValueError(f"block.{name}={getattr(self, name)!r} must be one of {', '.join(valid)}")
        if self.parallel and self.placement != "pre":
            raise ValueError(f"block.parallel=true goes with block.placement=pre, not {self.placement}")
        if self.shared_norm and not self.parallel:
            raise ValueError("block.shared_norm=true goes with block.parallel=true")
        if not self.first_norm and (self.placement != "pre" or self.shared_norm):
            raise ValueError("block.first_norm=false goes with block.placement=pre and shared_norm=false")
        for name in ("dropout", "stochastic_depth"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"block.{name}={getattr(self, name)} must be in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class MixerConfig:
    """Settings of a mixer."""

    def resolved(self, d_model: int) -> Self:
        """Return the same with nulls, and widths that are rounded, replaced by their values at this width."""
        return self

    @property
    def channel_multiple(self) -> int:
        """``d_model`` must be a multiple of this in a stack with this mixer and other types."""
        return 1


class Mixer(nn.Module, ABC):
    """Mixes information across positions: attention, a state-space model, ..."""

    layer_type: str = ""
    """Name of the mixer in the layers of a hybrid."""
    carries: str = ""
    """Name in ``Context.carried`` of the values that the first layer hands to all later layers of its type;
    empty for none."""

    accepts_low_precision_input: ClassVar[bool] = False
    """True where only matrix products read the input: under autocast it may come in their precision."""
    decode_kernel: ClassVar[str] = ""
    """Operation of ``fast_paths`` that returns the kernel of ``step``, with its norms and the sum, for one
    token of each row; empty for none."""

    def __init__(self) -> None:
        super().__init__()
        self.canon = nn.ModuleDict()
        """Canon layers of projected inputs (position B), by the names in ``canon_widths``."""

    @property
    def canon_widths(self) -> dict[str, int]:
        """Channels of the projected inputs that canon layers may filter, by name."""
        raise ValueError(f"canon: position B is not defined for {type(self).__name__}, leave out B")

    @abstractmethod
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Return the mixed sequence, of the same shape."""

    @abstractmethod
    def flops(self, length: int) -> Flops:
        """Return the forward FLOPs of one sequence."""

    def place(self, index: int, count: int) -> None:
        """Adapt to being the mixer ``index``, counted from 0, of ``count`` of this type in a stack; called
        before ``initialise``."""

    def scan_path(self) -> str:
        """Return the kernel path of training, as the record of a run names it; empty if there is only one."""
        return ""

    def step_flops(self, length: int) -> Flops:
        """Return the FLOPs of one more token after ``length`` tokens, through ``step``."""
        return self.flops(length + 1) - self.flops(length)

    def start(self, batch_size: int, max_length: int) -> Any:
        """Return an empty decoding state of this layer, an entry of ``DecodingState.layers``."""
        raise ValueError(f"{type(self).__name__} cannot decode step by step")

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        """Return the output for the next T positions, given by ``context``; advance ``state`` in place."""
        raise ValueError(f"{type(self).__name__} cannot decode step by step")

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """Return the bytes of this layer's state for one sequence after ``length`` tokens."""
        return 0

    def initialise(self, num_branches: int) -> None:
        """Initialise what the general initialisation must not: time steps, and the scale of the output,
        one of ``num_branches`` residual branches that add up."""


class FeedForward(nn.Module, ABC):
    """Operates on each position independently, except for canon layers. Returns auxiliary losses, empty where
    there are none."""

    accepts_low_precision_input: ClassVar[bool] = False
    """True where only matrix products read the input: under autocast it may come in their precision."""
    num_experts: int = 0
    """Routed experts; 0 for a dense layer."""
    decode_kernel: ClassVar[str] = ""
    """Name of the operation that decodes a step, like ``Mixer.decode_kernel``."""

    def __init__(self) -> None:
        super().__init__()
        self.canon = nn.ModuleDict()
        """Canon layers of the hidden layer (position D), by the names in ``canon_widths``."""

    @property
    def canon_widths(self) -> dict[str, int]:
        """Channels of the parts of the hidden layer that canon layers may filter, by name; empty for none."""
        return {}

    @abstractmethod
    def forward(self, x_BTD: Tensor, context: Context | None = None) -> tuple[Tensor, Auxiliary]:
        """Return the transformed positions, of the same shape, and losses summed over sequences.

        ``context`` is None for full sequences without padding, and then there are no canon layers.
        """

    def flops(self, length: int) -> Flops:
        """Return the forward FLOPs of one sequence."""
        return Flops(linear=linear_flops(self, length))

    def initialise(self, num_branches: int) -> None:
        """Initialise what the general initialisation must not."""

    def inactive_parameters(self) -> int:
        """Return the number of parameters that one token does not use."""
        return 0

    def after_step(self) -> None:
        """Update what gradients do not train; called after each optimizer step."""

    def forget_step(self) -> None:
        """Drop what was counted for ``after_step``; called when gradients are dropped."""


def add_losses(total: Auxiliary, more: Auxiliary) -> None:
    """Add the losses of one more layer to those of the layers before, by name."""
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


def join_layers(losses: Auxiliary, sequences: int) -> None:
    """Replace ``balance_sums``, added up over layers, by the balance loss X sum_x f_x P_x, for each sequence.

    f_x and P_x are those of ``router.balance_loss`` over the tokens of the batch in all layers, as in
    ``load_balancing_loss_func`` of transformers: K is perfect balance.
    """
    if BALANCE_SUMS in losses:
        chosen_X, weighted_X, tokens_X = losses.pop(BALANCE_SUMS)
        losses["balance"] = sequences * (chosen_X * weighted_X / tokens_X.clamp_min(1).square()).sum()


def feedforwards(model: nn.Module) -> Iterator[FeedForward]:
    """Yield all feed-forwards of a model."""
    return (part for part in model.modules() if isinstance(part, FeedForward))


class Residual(nn.Module):
    """A residual branch: norms, dropout and the sum around a sublayer."""

    def __init__(
        self, placement: str, make_norm: MakeNorm, *, dropout: float = 0.0, skip: float = 0.0
    ) -> None:
        super().__init__()
        self.placement = placement
        self.before = make_norm() if placement in ("pre", "sandwich") else None
        self.after = make_norm() if placement in ("post", "output", "sandwich") else None
        self.dropout = nn.Dropout(dropout)
        self.skip = skip

    def pre(self, x_BTD: Tensor, *, low_precision: bool = False) -> Tensor:
        """Return the input of the sublayer, in the precision of matrix products if ``low_precision``."""
        if self.before is None:
            return x_BTD
        return for_products(self.before, x_BTD) if low_precision else self.before(x_BTD)

    def add(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Return the residual stream after the sublayer's output is added to it."""
        y_BTD = self._skipped(self.dropout(y_BTD))
        if self.after is None:
            return x_BTD + y_BTD
        return self.after(x_BTD + y_BTD) if self.placement == "post" else x_BTD + self.after(y_BTD)

    def _skipped(self, y_BTD: Tensor) -> Tensor:
        """Apply stochastic depth: drop the branch for entire sequences, and scale up all remaining ones."""
        if not self.training or self.skip == 0:
            return y_BTD
        kept_B11 = torch.rand(y_BTD.shape[0], 1, 1, device=y_BTD.device) >= self.skip
        return y_BTD * kept_B11 / (1 - self.skip)


class UnsupportedError(Exception):
    """A layer cannot be decoded by kernels; the reason."""


class Branch(Protocol):
    """A residual branch for one token: adds a function of ``read_BD`` to ``stream_BD``."""

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None: ...


class BranchMaker(Protocol):
    """Makes the residual branches of one decoding state from kernels."""

    def branch(self, layer: Mixer | FeedForward, residual: Residual, norm: nn.Module | None) -> Branch:
        """Return the kernel of a layer's step, with its norms (``norm`` of its input) and the sum.

        Raises:
            UnsupportedError: there is none for such a layer, or not with its settings.
        """


class Block(nn.Module):
    """A mixer and, where there is one, a feed-forward, each in its residual branch."""

    def __init__(
        self,
        mixer: Mixer,
        feedforward: FeedForward | None,
        make_norm: MakeNorm,
        config: BlockConfig | None = None,
        *,
        skip: float = 0.0,
        first: bool = False,
        cross: nn.Module | None = None,
    ) -> None:
        """``cross`` is between the two, in a separate residual branch; a subclass applies it."""
        super().__init__()
        config = config or BlockConfig()

        def residual() -> Residual:
            return Residual(config.placement, make_norm, dropout=config.dropout, skip=skip)

        self.mixer_residual = residual()
        if first and not config.first_norm:
            self.mixer_residual.before = None
        self.mixer = mixer
        if cross is not None:
            self.cross_residual = residual()
            self.cross = cross
        self.feedforward_residual = None if feedforward is None else residual()
        self.feedforward = feedforward
        self.canon = nn.ModuleDict()
        """Canon layers of the inputs of the mixer (A) and of the feed-forward (C)."""
        self.canons: dict[str, Canon] = {}
        """All canon layers of the block, by their names in it."""
        self.parallel = config.parallel
        if config.shared_norm and self.feedforward_residual is not None:
            self.feedforward_residual.before = None
            self.shared_norm = True
        else:
            self.shared_norm = False

    def forward(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Auxiliary]:
        input_BTD = self.mixer_residual.pre(x_BTD, low_precision=self.mixer.accepts_low_precision_input)
        mixed_BTD = self.mixer(filtered(self, "A", input_BTD, context), context)
        return self._rest(x_BTD, input_BTD, mixed_BTD, context)

    def start(self, batch_size: int, max_length: int) -> Any:
        """Return an empty decoding state: that of the mixer, together with the windows of canon layers."""
        state = self.mixer.start(batch_size, max_length)
        if not self.canons:
            return state
        return {"mixer": state, "windows": {name: c.start(batch_size) for name, c in self.canons.items()}}

    def opened(self, state: Any, context: Context) -> tuple[Any, Context]:
        """Return the state of the mixer, and the context with the windows of canon layers."""
        if not self.canons:
            return state, context
        return state["mixer"], replace(context, windows=state["windows"])

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        state, context = self.opened(state, context)
        input_BTD = self.mixer_residual.pre(x_BTD, low_precision=self.mixer.accepts_low_precision_input)
        mixed_BTD = self.mixer.step(filtered(self, "A", input_BTD, context), state, context)
        return self._rest(x_BTD, input_BTD, mixed_BTD, context)[0]

    def _rest(
        self, x_BTD: Tensor, input_BTD: Tensor, mixed_BTD: Tensor, context: Context
    ) -> tuple[Tensor, Auxiliary]:
        """Return the output of the block, given that of its mixer, and the auxiliary losses."""
        y_BTD = self.mixer_residual.add(x_BTD, mixed_BTD)
        if self.feedforward is None or self.feedforward_residual is None:
            return y_BTD, {}
        read_BTD = input_BTD
        if not self.shared_norm:
            read_BTD = self.feedforward_residual.pre(
                x_BTD if self.parallel else y_BTD, low_precision=self.feedforward.accepts_low_precision_input
            )
        z_BTD, auxiliary = self.feedforward(filtered(self, "C", read_BTD, context), context)
        return self.feedforward_residual.add(y_BTD, z_BTD), auxiliary

    def decode_step(self, maker: BranchMaker) -> Step:
        """Return ``step`` for one token of each row, in evaluation, by kernels.

        Raises:
            UnsupportedError: a layer of the block has no kernel.
        """
        norm = self.mixer_residual.before
        branches = [maker.branch(self.mixer, self.mixer_residual, norm)]
        if self.feedforward is not None and self.feedforward_residual is not None:
            norm = norm if self.shared_norm else self.feedforward_residual.before
            branches.append(maker.branch(self.feedforward, self.feedforward_residual, norm))

        def step(x_B1D: Tensor, state: Any, context: Context) -> Tensor:
            read_BD = x_B1D[:, 0].contiguous()
            stream_BD = read_BD.clone()
            for branch in branches:
                branch(read_BD if self.parallel else stream_BD, stream_BD, state, context)
            return stream_BD[:, None]

        return step

    def flops(self, length: int) -> Flops:
        total = self.mixer.flops(length) + Flops(linear=linear_flops(self.canon, length))
        return total if self.feedforward is None else total + self.feedforward.flops(length)

    def step_flops(self, length: int) -> Flops:
        """Return the FLOPs of one more token after ``length`` tokens, through ``step``."""
        total = self.mixer.step_flops(length) + Flops(linear=linear_flops(self.canon, 1))
        if self.feedforward is None:
            return total
        return total + self.feedforward.flops(length + 1) - self.feedforward.flops(length)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """Return the bytes of the state of one sequence after ``length`` tokens."""
        windows = sum(canon.window_bytes(bytes_per_element) for canon in self.canons.values())
        return self.mixer.state_bytes(length, bytes_per_element) + windows

    @property
    def num_branches(self) -> int:
        return 1 if self.feedforward is None else 2
