"""Mixers read in both directions, against the definition written out.

Shapes: B batch, T length, D d_model.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from archbench.architectures import fast_paths
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.bidirectional_mixer import DIRECTIONS, Bidirectional, DirectionsConfig
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer
from archbench.architectures.mixers.deltanet import DeltaConfig, DeltaRule
from archbench.architectures.mixers.deltaproduct import HouseholderConfig, delta_product
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig, GatedDeltaRule
from archbench.architectures.mixers.gla import GatedLinearAttention, GatedLinearConfig
from archbench.architectures.mixers.kda import KimiDeltaConfig, KimiDeltaRule
from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM
from archbench.architectures.mixers.mamba2 import SSD, SSDConfig
from archbench.architectures.mixers.mamba3 import Mamba3, Mamba3Config
from archbench.architectures.mixers.mlstm import MLSTM, MLSTMConfig
from archbench.architectures.mixers.rwkv7 import RWKV7, RWKV7Config

WIDTH = 8
KINDS: dict[str, tuple[Callable[..., RecurrentMixer], Any]] = {
    "mamba": (SelectiveSSM, SelectiveConfig(d_state=3, selection_norm=True)),
    "mamba2": (SSD, SSDConfig(num_heads=4, d_state=5, num_groups=2, chunk=4)),
    "mamba3": (Mamba3, Mamba3Config(num_heads=4, d_state=4, num_groups=2, mimo_rank=2, chunk=4)),
    "gla": (GatedLinearAttention, GatedLinearConfig(num_heads=2, decay_rank=3, conv_width=3)),
    "deltanet": (DeltaRule, DeltaConfig(num_heads=2)),
    "gated_deltanet": (GatedDeltaRule, GatedDeltaConfig(num_heads=2)),
    "mlstm": (MLSTM, MLSTMConfig(num_heads=2)),
    "rwkv7": (RWKV7, RWKV7Config(num_heads=2, gate_rank=3)),
    "kda": (KimiDeltaRule, KimiDeltaConfig(num_heads=2)),
    "deltaproduct": (delta_product, HouseholderConfig(num_heads=2)),
}
LENGTHS, DOCUMENTS = [13, 6, 1], [[4, 8, 1], [1, 5], [1]]


def make(kind: str, *, tied: bool = True, **changes: Any) -> Bidirectional:
    """One of a kind with weights that differ in every channel, in float64."""
    cls, config = KINDS[kind]
    torch.manual_seed(0)
    config = dataclasses.replace(config, **changes)
    mixer = Bidirectional(cls(WIDTH, config), cls(WIDTH, config), tied=tied)
    for part in (mixer.past, mixer.future):
        part.initialise(1)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer.double()


def contexts(x_BTD: Tensor, *, padded: bool, packed: bool) -> tuple[Context, list[list[int]]]:
    """The context of a batch, and the lengths of the documents in each of its rows."""
    B, T = x_BTD.shape[:2]
    if packed and not padded:
        sizes = [[4, 8, 1], [1, 5, 7], [13]]
    else:
        sizes = DOCUMENTS if packed else [[n] for n in LENGTHS] if padded else [[T]] * B
    valid_BT = torch.arange(T) < torch.tensor([sum(row) for row in sizes])[:, None] if padded else None
    documents = None
    if packed:
        rows = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in sizes]
        documents = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    return Context.whole(x_BTD[..., 0], valid_BT, documents), sizes


def naive(mixer: Bidirectional, x_BTD: Tensor, sizes: list[list[int]]) -> list[Tensor]:
    """Each document alone: the first mixer, and the second over the mirror image, mirrored back."""

    def alone(one: RecurrentMixer, x_1SD: Tensor) -> Tensor:
        return one(x_1SD, Context.whole(x_1SD[..., 0], None, None))

    found = []
    for row, lengths in enumerate(sizes):
        pieces = x_BTD[row : row + 1, : sum(lengths)].split(lengths, dim=1)
        found += [alone(mixer.past, x) + alone(mixer.future, x.flip(1)).flip(1) for x in pieces]
    return [piece[0] for piece in found]


@pytest.mark.parametrize(("padded", "packed"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_the_definition(
    kind: str, directions: str, padded: bool, packed: bool
) -> None:
    mixer = make(kind, tied=directions == "tied")
    x_BTD = torch.randn(3, 13, WIDTH, dtype=torch.float64, requires_grad=True)
    context, sizes = contexts(x_BTD, padded=padded, packed=packed)
    found_BTD = mixer(x_BTD, context)
    found = [piece for row, own in enumerate(sizes) for piece in found_BTD[row, : sum(own)].split(own)]
    expected = naive(mixer, x_BTD, sizes)
    readout = [torch.randn_like(piece) for piece in expected]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    inputs = [x_BTD, *mixer.parameters()]
    gradients = [
        torch.autograd.grad(sum((piece * r).sum() for piece, r in zip(pieces, readout, strict=True)), inputs)
        for pieces in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scan", ["torch", "cpp"])
@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_every_path_of_the_scan_reads_both_ways(kind: str, scan: str) -> None:
    if scan == "cpp" and fast_paths.problem():
        pytest.skip(fast_paths.problem())
    plain, fast = (make(kind, scan=path).float() for path in ("reference", scan))
    x_BTD = torch.randn(3, 13, WIDTH)
    for padded, packed in ((True, False), (True, True)):
        context, _ = contexts(x_BTD, padded=padded, packed=packed)
        assert context.valid_BT is not None
        found, expected = (mixer(x_BTD, context)[context.valid_BT] for mixer in (fast, plain))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_tied_directions_share_projections_and_nothing_that_moves_the_state(kind: str) -> None:
    tied, separate = make(kind), make(kind, tied=False)
    once = {name for name, _ in tied.named_parameters() if name.startswith("past.")}
    own = {name.removeprefix("future.") for name, _ in tied.named_parameters()} - once
    shared = {name.removeprefix("past.") for name in once} - own
    assert {name.split(".")[0] for name in shared} <= set(tied.past.projections)
    assert {f"past.{name}" for name in shared | own} == once
    both, two = tied.flops(7), separate.flops(7)
    assert both.mixer == two.mixer == 2 * tied.past.flops(7).mixer
    saved = 2 * 7 * sum(p.numel() for n, p in tied.past.named_parameters() if n in shared and p.dim() == 2)
    assert both.linear == two.linear - saved


@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_left_is_told_from_right(kind: str, directions: str) -> None:
    mixer = make(kind, tied=directions == "tied")
    x_BTD = torch.randn(1, 9, WIDTH, dtype=torch.float64)
    context, _ = contexts(x_BTD, padded=False, packed=False)
    forth, back = mixer(x_BTD, context), mixer(x_BTD.flip(1), context).flip(1)
    assert (forth - back).abs().max() > 1e-3 * forth.abs().max()
    same = copy.deepcopy(mixer)
    same.future.load_state_dict(same.past.state_dict())
    torch.testing.assert_close(same(x_BTD, context), same(x_BTD.flip(1), context).flip(1))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_borrowed_is_scaled_once(kind: str) -> None:
    """Output weights start smaller by the root of the number of branches, tied or not."""
    cls, config = KINDS[kind]
    sizes = []
    for branches in (1, 16):
        torch.manual_seed(0)
        mixer = Bidirectional(cls(64, config), cls(64, config), tied=True)
        for part in mixer.modules():
            if isinstance(part, RecurrentMixer):
                part.initialise(branches)
        sizes.append(mixer.past.out.weight.std())
    torch.testing.assert_close(sizes[0] / sizes[1], torch.tensor(4.0))


def test_a_mistyped_direction_is_named() -> None:
    with pytest.raises(ValueError, match="directions='both' must be one of tied, separate"):
        DirectionsConfig(directions="both")
