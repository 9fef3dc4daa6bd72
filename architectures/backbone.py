"""The backbone contract, which every architecture in this suite fulfils.

A backbone is a plain single-device ``torch.nn.Module`` from tokens to
logits, independent of tasks, losses, optimizers and Hydra. Before it
is trained it answers four questions:

* what can it do?                      ``capabilities``
* how many parameters does it have?    ``parameters_by_part()``
* what does a forward pass cost?       ``sequence_flops(length)``
* how large is its decoding state?     ``state_bytes(length)``

Shapes: B batch, T length of the scored sequence, S length of the source (the
encoder's side of an encoder-decoder), D d_model, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from archbench.architectures.decoding_state import DecodingState

TRAINING = (
    "block.dropout",
    "block.stochastic_depth",
    "attention.dropout",
    "experts.capacity_factor",
    "experts.jitter",
    "experts.jitter_experts",
    "experts.balance",
    "experts.balance_counts",
    "experts.balance_coefficient",
    "experts.z_coefficient",
)
"""Settings of a backbone that matter only in training."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Abilities of a backbone. Objectives choose backbones by these, never by name."""

    causal: bool = False
    """Position i depends on positions <= i only: next-token likelihoods are exact."""
    bidirectional: bool = False
    """Every position depends on every other, so that masked tokens can be predicted."""
    encoder_decoder: bool = False
    """Encodes a source bidirectionally and decodes a target causally."""
    decodes: bool = False
    """Has ``start`` and ``step``: one more token costs one step, not a full forward pass."""
    packs: bool = False
    """Accepts ``documents_BT``: multiple documents in one sequence that do not attend to each other."""

    blockwise: bool = False
    """Attends to all previous blocks and the full current block: the last block is noisy, previous ones are
    clean. Accepts ``clean_BT`` with the noisy tokens, and decodes a block at a time (``step``,
    ``denoise``)."""
    denoises: bool = False
    """Trained to predict any fraction of masked tokens, all tokens of a text included."""

    def describe(self) -> str:
        """Return a description of the abilities, for error messages."""
        names = ("causal", "bidirectional", "encoder_decoder", "blockwise")
        return ", ".join(name for name in names if getattr(self, name)) or "nothing"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameter counts by part. ``body`` counts non-embedding parameters."""

    embedding: int
    """Token and position tables."""
    body: int
    """Everything between the embedding and the projection to the vocabulary."""
    head: int
    """The projection to the vocabulary; 0 when it is tied to the embedding."""
    inactive: int = 0
    """Parameters that a given token does not use (experts it is not routed to)."""

    @property
    def total(self) -> int:
        return self.embedding + self.body + self.head

    @property
    def active(self) -> int:
        return self.total - self.inactive


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Forward floating-point operations of one sequence, by the type of work.

    A multiply-add counts as two. Normalisation, activations, softmax and bias
    additions are left out, as is the field's custom.
    """

    linear: int = 0
    """Products with weight matrices, and convolutions with weights."""
    attention: int = 0
    """Scores and weighted sums of attention, only over the pairs that the mask allows."""
    mixer: int = 0
    """Recurrences, scans and FFT convolutions of state-space layers."""

    @property
    def total(self) -> int:
        return self.linear + self.attention + self.mixer

    def __add__(self, rhs: Flops) -> Flops:
        if not isinstance(rhs, Flops):
            raise TypeError(f"flops must return Flops, not {type(rhs).__name__}")
        return Flops(
            linear=self.linear + rhs.linear,
            attention=self.attention + rhs.attention,
            mixer=self.mixer + rhs.mixer,
        )

    def __sub__(self, rhs: Flops) -> Flops:
        return Flops(
            linear=self.linear - rhs.linear,
            attention=self.attention - rhs.attention,
            mixer=self.mixer - rhs.mixer,
        )


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """Inputs of a forward pass. All but the tokens may be None, and not every backbone accepts each."""

    tokens_BT: Tensor
    """Token ids, int64."""
    valid_BT: Tensor | None = None
    """True at tokens, False at padding on the right; None without padding. Padding does not affect the
    outputs at valid positions."""
    documents_BT: Tensor | None = None
    """The index of the document of each token, for packed documents, which are contiguous. Documents do
    not attend to each other, and positions restart in each."""
    segments_BT: Tensor | None = None
    """The segment (0, 1, ...) of each token, for backbones with segment tables."""
    source_BS: Tensor | None = None
    """Token ids that the encoder of an encoder-decoder reads."""
    source_valid_BS: Tensor | None = None
    """The validity of ``source_BS``, as ``valid_BT`` is that of ``tokens_BT``."""
    scored_BT: Tensor | None = None
    """True where logits are needed, at N valid positions; None for all. Other positions are not computed: the
    logits then have shape (1, N, V), in the order of the positions. It may be in CPU memory for models on any
    device, which saves a GPU synchronization."""
    time_B: Tensor | None = None
    """Fraction of each sequence's tokens that is masked, for backbones with a time embedding."""
    clean_BT: Tensor | None = None
    """The clean tokens of which a ``blockwise`` backbone reads the blocks before each noisy one; None to read
    them from ``tokens_BT``."""

    def refuse(self, model: str, *names: str) -> None:
        """Raise ValueError where one of these inputs is given to a model that does not accept it."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"{model} does not accept {name}")


@dataclass(kw_only=True)
class Output:
    """Outputs of a forward pass."""

    logits_BTV: Tensor
    """At every position, or (1, N, V) at the N positions of ``scored_BT``."""
    hidden_BTD: Tensor
    """The last hidden states, after the final norm and before the head."""
    readout: Tensor | None = None
    """Output of the attached readout for the hidden states; None where none is attached."""
    auxiliary: dict[str, Tensor] = field(default_factory=dict)
    """Extra losses by name, already weighted, each *summed over the sequences* of the batch: the loss divides
    by the number of sequences, so that micro-batches add up. A balance loss over a batch or over all layers
    is taken for each micro-batch; the mean of these differs from that of the full batch."""


EMBEDDING_STD = 0.3
"""Standard deviation of token and position tables at initialisation."""


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The base of every backbone's configuration.

    A subclass has a width, ``d_model``, and one fine knob (a hidden size that
    enters the parameter count linearly, null for the standard proportion). The
    size solver sets only those of the two that are null.
    """

    fine_knob: ClassVar[str] = "d_ff"

    d_model: int | None = None
    """Width of the residual stream; null leaves it to the size solver (``scale.targets``), which also sets
    the hidden width ``d_ff``, or ``d_inner`` of Mamba and ``d_state`` of Mamba-2, where that is null."""

    def __post_init__(self) -> None:
        if self.d_model is not None and (self.d_model < 1 or self.d_model % self.width_multiple):
            raise ValueError(f"d_model={self.d_model} must be a positive multiple of {self.width_multiple}")

    @property
    def width(self) -> int:
        """``d_model``, once it is known."""
        if self.d_model is None:
            raise ValueError(
                "d_model is null: give it a value, or give scale.targets for the solver to reach"
            )
        return self.d_model

    @property
    def width_multiple(self) -> int:
        """``d_model`` must be a multiple of this."""
        return 1

    @property
    def unused_sections(self) -> set[str]:
        """Names of settings without effect in this model, such as those of mixers that no layer has."""
        return set()

    @property
    def warnings(self) -> list[str]:
        """Return a line for each setting that is allowed and probably a mistake."""
        return []

    @property
    def width_step(self) -> int:
        """The size solver tries multiples of this."""
        return self.width_multiple


class Backbone(nn.Module, ABC):
    """Base class of all architectures. Subclasses set ``Config`` and ``capabilities``.

    The token embedding must be registered in ``embedding`` (a module with
    every table), the vocabulary projection in ``head``; the rest is body.
    """

    Config: ClassVar[type[BackboneConfig]]
    capabilities: ClassVar[Capabilities]
    embedding: nn.Module
    head: nn.Module

    def __init__(self, config: BackboneConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__()
        if vocab_size < 1 or max_length < 1:
            raise ValueError(f"vocab_size={vocab_size} and max_length={max_length} must be positive")
        self.config = config
        self.vocab_size = vocab_size
        self.max_length = max_length

    def forward(self, tokens_BT: Tensor, **other_inputs: Tensor | None) -> Output:
        """Return the output for ``ModelInputs(tokens_BT, **other_inputs)``, which documents each input.

        Raises:
            ValueError: the model does not accept one of the inputs, or needs one that is missing, or padding
                is not on the right.
        """
        for name in ("valid_BT", "source_valid_BS"):
            check_padding(name, other_inputs.get(name))
        return self.compute(ModelInputs(tokens_BT=tokens_BT, **other_inputs))

    @abstractmethod
    def compute(self, inputs: ModelInputs) -> Output:
        """Return the output for these inputs; what ``forward`` calls."""

    @abstractmethod
    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        """Return the forward FLOPs of one sequence of ``length`` tokens (and a source, for
        encoder-decoders)."""

    def step_flops(self, length: int, source_length: int = 0) -> Flops:
        """Return the FLOPs of one more token after ``length`` tokens, through ``step``.

        Those of one more position of a causal model, unless a layer decodes by another algorithm.
        """
        return self.sequence_flops(length + 1, source_length) - self.sequence_flops(length, source_length)

    def start(
        self,
        batch_size: int,
        max_length: int,
        *,
        source_BS: Tensor | None = None,
        source_valid_BS: Tensor | None = None,
    ) -> DecodingState:
        """Return an empty decoding state with space for ``max_length`` tokens.

        The default for causal backbones stores the tokens (B, L), which each step reads again.
        """
        if not self.capabilities.causal or source_BS is not None:
            raise ValueError(f"{type(self).__name__} keeps no decoding state: it cannot decode step by step")
        device = next(self.parameters()).device
        tokens_BL = torch.zeros(batch_size, 0, dtype=torch.long, device=device)
        return DecodingState(lengths=[0] * batch_size, layers=[tokens_BL])

    def step(self, tokens_BT: Tensor, state: DecodingState, valid_BT: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) of the next tokens, given the state, which is advanced in place.

        ``valid_BT`` is False at padding on the right, so that prompts of different lengths can be
        read together; each sequence advances by its valid tokens.
        """
        num_new, counts = tokens_BT.shape[1], [tokens_BT.shape[1]] * len(tokens_BT)
        if valid_BT is not None:
            counts = valid_BT.sum(1).tolist()
        rows = [
            torch.cat([read_L[:length], tokens_T[:count]])
            for read_L, length, tokens_T, count in zip(
                state.layers[0], state.lengths, tokens_BT, counts, strict=True
            )
        ]
        read_BL = pad_sequence(rows, batch_first=True)
        with torch.no_grad():
            logits_BLV = self(read_BL).logits_BTV
        start_B1 = torch.tensor(state.lengths, device=read_BL.device)[:, None]
        index_BT = (start_B1 + torch.arange(num_new, device=read_BL.device)).clamp(max=read_BL.shape[1] - 1)
        state.layers = [read_BL]
        state.lengths = [length + count for length, count in zip(state.lengths, counts, strict=True)]
        return logits_BLV.gather(1, index_BT[..., None].expand(-1, -1, logits_BLV.shape[-1]))

    def denoise(self, tokens_BT: Tensor, state: DecodingState) -> Tensor:
        """Return the logits (B, T, V) of the next, still noisy block of each row; the state does not
        advance."""
        raise ValueError(f"{type(self).__name__} does not work block by block")

    @property
    def block_length(self) -> int | None:
        """Tokens of a block, of a ``blockwise`` backbone; None for all other backbones."""
        return None

    def state_bytes(self, length: int, source_length: int = 0) -> int:
        """Return the bytes of the decoding state of one sequence after ``length`` tokens; 0 where there is
        none."""
        return 0

    @property
    def takes_segments(self) -> bool:
        """True where the embedding has a table of segments."""
        return getattr(self.embedding, "segments", None) is not None

    @property
    def takes_time(self) -> bool:
        """True where ``forward`` accepts ``time_B``, the masked fraction of each sequence."""
        return False

    def attach_readout(self, readout: nn.Module) -> None:
        """Attach a module that is trained, saved and moved with the backbone.

        It is called with the hidden states (B, T, D) and ``valid_BT`` after every forward pass; what it
        returns is ``Output.readout``. Objectives that need more than logits (a class of the sequence,
        a label for each token, a vector) bring one.
        """
        self.readout = readout
        self.register_forward_hook(_read_out, with_kwargs=True)

    def after_step(self) -> None:
        """Update what gradients do not train, such as biases of routers; called after each optimizer step."""

    def forget_step(self) -> None:
        """Drop what forward and backward passes counted for ``after_step``."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and what was counted with them: a step that is computed again counts once."""
        super().zero_grad(set_to_none)
        self.forget_step()

    def inactive_parameters(self) -> int:
        """Return the number of parameters that one token does not use."""
        return 0

    def kernels(self) -> dict[str, str]:
        """Return the implementation of each costly part, for the record of a run."""
        return {}

    def parameters_by_part(self) -> Parameters:
        """Return parameter counts by part; shared tensors are counted once. Works on the meta device."""
        embedding = _count(self.embedding)
        tied = {id(p) for p in self.embedding.parameters()}
        head = sum(p.numel() for p in self.head.parameters() if id(p) not in tied)
        if hasattr(self, "readout"):
            head += _count(self.readout)
        total = _count(self)
        return Parameters(
            embedding=embedding,
            head=head,
            body=total - embedding - head,
            inactive=self.inactive_parameters(),
        )

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one number of the decoding state: the precision of the parameters."""
        return next(self.parameters()).element_size()


def gather_scored(x_BTD: Tensor, scored_BT: Tensor | None) -> Tensor:
    """Return the positions where logits are needed, in one row (1, N, D); all where ``scored_BT`` is None."""
    if scored_BT is None:
        return x_BTD
    return x_BTD.flatten(0, 1).index_select(0, flat_indices(scored_BT, x_BTD.device))[None]


def flat_indices(scored_BT: Tensor, device: torch.device) -> Tensor:
    """Return the indices (N,) at which the flattened ``scored_BT`` is True, on ``device``.

    Their number decides a shape, so that the host must know it: it does where ``scored_BT`` is in CPU
    memory, and otherwise waits for the device.
    """
    return to_device(scored_BT.flatten().nonzero().squeeze(1), device)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device; a copy from CPU memory to a GPU does not block the host."""
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def check_padding(name: str, valid_BJ: Tensor | None) -> None:
    """Raise ValueError for padding on the left or inside, where positions would be guessed.

    Only masks in CPU memory are checked: a check of other masks would need a synchronization.
    """
    if valid_BJ is None or valid_BJ.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if type(valid_BJ) is Tensor and (valid_BJ[:, 1:] & ~valid_BJ[:, :-1]).any():
        raise ValueError(f"{name}: padding must be on the right of each row: move it there")


def _read_out(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Output) -> None:
    assert isinstance(module.readout, nn.Module)
    output.readout = module.readout(output.hidden_BTD, kwargs.get("valid_BT"))


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def linear_flops(module: nn.Module, tokens: int) -> int:
    """Return the FLOPs of applying every ``nn.Linear``, and every depthwise ``nn.Conv1d``, inside ``module``
    once to ``tokens`` tokens."""
    weights = sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear | nn.Conv1d))
    return 2 * tokens * weights


def no_source(source_BS: Tensor | None, name: str) -> None:
    """Raise ValueError where a source is given and there is no encoder."""
    if source_BS is not None:
        raise ValueError(f"{name} has no encoder: it accepts tokens only, not a source")


@torch.no_grad()
def init_normal(module: nn.Module) -> None:
    """Draw linear weights from N(0, 1/fan_in), embeddings from N(0, EMBEDDING_STD^2); biases become zero.

    The width enters so that small and large models start with signals of the
    same size; a fixed 0.02 fits d_model near 2500, and makes signals of width 100 tiny.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(0.0, part.in_features**-0.5)
            if part.bias is not None:
                part.bias.zero_()
        elif isinstance(part, nn.Embedding):
            part.weight.normal_(0.0, EMBEDDING_STD)
