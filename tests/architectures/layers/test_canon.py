"""Canon layers against explicit sums in float64, and at each position of a block.

Shapes: B batch, T length, D d_model, C channels, K taps.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures import fast_paths
from archbench.architectures.backbone import Backbone, Flops
from archbench.architectures.backbones.block_diffusion import BlockDiffusionConfig
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.linear_attention import GatedDeltaNet, GatedDeltaNetConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import Block, Mixer
from archbench.architectures.layers.canon import Canon
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.export import save_folder
from archbench.experiments.training.optimizers.adamw import AdamW
from archbench.experiments.training.optimizers.parameter_groups import parameter_groups
from tests.architectures.conformance import enliven

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 2}
SETTINGS: dict[str, Any] = {"vocab_size": 19, "max_length": 32}


def layer(*, causal: bool, channels: int = 5) -> Canon:
    torch.manual_seed(0)
    return Canon(channels, causal=causal).double()


def explicit(weight_CK: Tensor, x_TC: Tensor, first_lag: int) -> Tensor:
    """Sum over the tokens of one document by a loop: tap k reads the token ``first_lag - k`` before."""
    y_TC = x_TC.clone()
    for t in range(len(x_TC)):
        for tap, weight_C in enumerate(weight_CK.T):
            source = t - first_lag + tap
            if 0 <= source < len(x_TC):
                y_TC[t] += weight_C * x_TC[source]
    return y_TC


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_layer_adds_a_weighted_sum_of_near_tokens(length: int, causal: bool) -> None:
    made, x_BTC = layer(causal=causal), torch.randn(3, length, 5, dtype=torch.float64)
    assert made.weight.shape == (5, 1, 4 if causal else 7)
    expected = torch.stack([explicit(made.weight[:, 0], x_TC, 3) for x_TC in x_BTC])
    y_BTC = made(x_BTC, Context.whole(x_BTC[..., 0], None, None))
    torch.testing.assert_close(y_BTC, expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_documents_and_padding_are_kept_apart(causal: bool) -> None:
    made, sizes = layer(causal=causal), [5, 1, 2, 4]
    x_BTC = torch.randn(2, sum(sizes), 5, dtype=torch.float64)
    documents_BT = torch.repeat_interleave(torch.tensor([4, 0, 7, 2]), torch.tensor(sizes)).expand(2, -1)
    expected = torch.stack(
        [torch.cat([explicit(made.weight[:, 0], part, 3) for part in x_TC.split(sizes)]) for x_TC in x_BTC]
    )
    packed = made(x_BTC, Context.whole(documents_BT, None, documents_BT))
    torch.testing.assert_close(packed, expected, atol=1e-14, rtol=0)
    valid_BT = torch.arange(sum(sizes)) < torch.tensor([[sum(sizes)], [5]])
    padded = made(x_BTC, Context.whole(documents_BT, valid_BT, None))
    torch.testing.assert_close(
        padded[1, :5], explicit(made.weight[:, 0], x_BTC[1, :5], 3), atol=1e-14, rtol=0
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("length", "channels"), [(1, 5), (3, 16), (40, 37)])
def test_the_compiled_convolution_is_that_of_pytorch(length: int, channels: int, packed: bool) -> None:
    made = layer(causal=True, channels=channels).float()
    documents_BT = (torch.arange(length) // 7).expand(2, -1) if packed else None
    results = []
    for choice in ("torch", "cpp"):
        fast_paths.choose(choice)
        torch.manual_seed(1)
        x_BTC = torch.randn(2, length, channels, requires_grad=True)
        y_BTC = made(x_BTC, Context.whole(x_BTC[..., 0], None, documents_BT))
        results.append([y_BTC, *torch.autograd.grad((y_BTC * y_BTC.sin()).sum(), [x_BTC, made.weight])])
    fast_paths.choose("auto")
    for by_torch, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, by_torch, atol=1e-5, rtol=1e-5)


def test_a_centred_layer_is_symmetric() -> None:
    """With its taps in the opposite order, it gives the opposite of the mirrored sequence."""
    made, mirrored = layer(causal=False), layer(causal=False)
    mirrored.weight.data = made.weight.data.flip(-1)
    x_BTC = torch.randn(2, 11, 5, dtype=torch.float64)
    context = Context.whole(x_BTC[..., 0], None, None)
    torch.testing.assert_close(
        mirrored(x_BTC.flip(1), context).flip(1), made(x_BTC, context), atol=1e-14, rtol=0
    )


def test_initial_weights_are_uniform_as_in_the_authors_code() -> None:
    for causal, bound in ((True, 4**-0.5), (False, 7**-0.5)):
        weight = layer(causal=causal, channels=4000).weight
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.99 * bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


def causal_attention(q_THE: Tensor, k_THE: Tensor, v_THE: Tensor) -> Tensor:
    """Softmax attention by a loop over queries and heads, (T, H E)."""
    y_THE = torch.empty_like(q_THE)
    for t in range(len(q_THE)):
        for h in range(q_THE.shape[1]):
            score_S = k_THE[: t + 1, h] @ q_THE[t, h] / q_THE.shape[2] ** 0.5
            y_THE[t, h] = score_S.softmax(0) @ v_THE[: t + 1, h]
    return y_THE.flatten(1)


def reference_block(block: Any, x_TD: Tensor, letters: str) -> Tensor:
    """A block of a decoder without rotary positions, with its convolutions by loops."""

    def convolved(letter: str, canon: nn.Module, name: str, y_TC: Tensor) -> Tensor:
        return explicit(canon[name].weight[:, 0], y_TC, 3) if letter in letters else y_TC  # type: ignore[index]

    mixer, feedforward = block.mixer, block.feedforward
    read_TD = convolved("A", block.canon, "A", block.mixer_residual.before(x_TD))
    q, k, v = (
        convolved("B", mixer.canon, name, getattr(mixer, name)(read_TD)).unflatten(1, (mixer.num_heads, -1))
        for name in ("q", "k", "v")
    )
    x_TD = x_TD + mixer.out(causal_attention(q, k, v))
    read_TD = convolved("C", block.canon, "C", block.feedforward_residual.before(x_TD))
    gate, up = (
        convolved("D", feedforward.canon, name, getattr(feedforward, name)(read_TD))
        for name in ("gate", "up")
    )
    return x_TD + feedforward.down(F.silu(gate) * up)


@pytest.mark.parametrize("letters", ["A", "B", "C", "D", "AC", "ABCD"])
def test_each_letter_is_a_position_of_the_block(letters: str) -> None:
    config = DecoderConfig(**SIZES, canon=letters, positions=PositionsConfig(kind="none"))
    model = enliven(Decoder(config, **SETTINGS).double())
    block, x_1TD = model.blocks[0], torch.randn(1, 9, 16, dtype=torch.float64)
    found, _ = block(x_1TD, Context.whole(x_1TD[..., 0], None, None))
    torch.testing.assert_close(found[0], reference_block(block, x_1TD[0], letters), atol=1e-12, rtol=0)


BUILDERS: dict[str, Any] = {
    "decoder": lambda **more: Decoder(DecoderConfig(**SIZES, **more), **SETTINGS),
    "experts": lambda **more: MoE(MoEConfig(**SIZES, **more), **SETTINGS),
    "mamba": lambda **more: Mamba(MambaConfig(**SIZES, **more), **SETTINGS),
    "s4": lambda **more: S4(S4Config(**SIZES, d_ff=0, **more), **SETTINGS),
    "source": lambda **more: EncoderDecoder(EncoderDecoderConfig(**SIZES, **more), **SETTINGS),
    "hybrid": lambda **more: Hybrid(
        HybridConfig(d_model=16, num_layers=2, layers=["mamba2+attention", "mlstm"], **more), **SETTINGS
    ),
    "delta": lambda **more: GatedDeltaNet(GatedDeltaNetConfig(**SIZES, **more), **SETTINGS),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_other_layers_begin_with_the_same_weights(name: str) -> None:
    """So that runs with and without canon layers, of the same seed, are pairs."""
    letters = {"experts": "ABC", "mamba": "AB", "s4": "AB"}.get(name, "ABCD")
    models: list[Backbone] = []
    for canon in (None, letters):
        torch.manual_seed(3)
        models.append(BUILDERS[name](canon=canon))
    plain, with_canon = (model.state_dict() for model in models)
    assert all(torch.equal(value, with_canon[key]) for key, value in plain.items())
    assert {key for key in with_canon if key not in plain} == {key for key in with_canon if ".canon." in key}
    assert len(with_canon) > len(plain)


@pytest.mark.parametrize("canon", ["", "E", "abcd", "CA", "AA", "A,B"])
def test_letters_that_are_no_positions_are_refused(canon: str) -> None:
    with pytest.raises(ValueError, match=f"canon='{canon}' must be letters of ABCD in this order"):
        DecoderConfig(canon=canon)


@pytest.mark.parametrize(
    ("name", "canon", "message"),
    [
        ("mamba", "ABC", "canon=ABC: these layers have no feed-forward, leave out C"),
        ("s4", "D", "canon=D: these layers have no dense feed-forward, leave out D"),
        ("experts", "ABCD", "canon=ABCD: these layers have no dense feed-forward, leave out D"),
    ],
)
def test_positions_that_a_model_lacks_are_refused(name: str, canon: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BUILDERS[name](canon=canon)


def test_a_mixer_without_position_b_is_refused_there() -> None:
    class Identity(Mixer):
        def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
            return x_BTD

        def flops(self, length: int) -> Flops:
            return Flops(linear=0, mixer=0)

    class Plain(Decoder):
        def make_mixer(self, layer: int) -> Mixer:
            return Identity()

    Plain(DecoderConfig(**SIZES, canon="ACD"), **SETTINGS)
    with pytest.raises(ValueError, match="position B is not defined for Identity"):
        Plain(DecoderConfig(**SIZES, canon="AB"), **SETTINGS)


def test_blocks_with_canon_layers_are_decoded_by_pytorch() -> None:
    assert BUILDERS["decoder"](canon="A").eval().kernels()["decoding"] == "torch"
    assert BUILDERS["mamba"](conv_width=0).eval().kernels()["decoding"] == "torch"
    assert BUILDERS["mamba"]().eval().kernels()["decoding"] == "cpp"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("decoder", {"canon": "AC"}, "canon=AC"),
        ("mamba", {"canon": "AB"}, "canon=AB"),
        ("mamba", {"conv_width": 0}, "conv_width=0"),
    ],
)
def test_export_to_hugging_face_is_refused(name: str, settings: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        save_folder(BUILDERS[name](**settings), tmp_path / "folder")


def test_norms_of_queries_and_keys_come_first() -> None:
    """The authors do the same; each head is normed by itself before its channels are convolved."""
    attention = AttentionConfig(num_heads=4, num_kv_heads=2, qk_norm="head")
    model = enliven(BUILDERS["decoder"](canon="B", attention=attention).double())
    mixer = model.blocks[0].mixer
    x_1TD = torch.randn(1, 7, 16, dtype=torch.float64)
    context = Context.whole(x_1TD[..., 0], None, None)
    normed_TC = mixer.k_norm(mixer.k(x_1TD[0]).unflatten(1, (2, 4))).flatten(1)
    k_THE = explicit(mixer.canon["k"].weight[:, 0], normed_TC, 3).unflatten(1, (2, 4))
    k_BGTE, _ = mixer.keys_values(x_1TD, context)
    tables = mixer.rotary.tables(context.positions_BT)
    torch.testing.assert_close(
        k_BGTE, mixer.rotary.rotate(k_THE.transpose(0, 1)[None], tables), atol=1e-12, rtol=0
    )


def test_weights_decay_as_those_of_other_convolutions() -> None:
    model = BUILDERS["mamba"](canon="AB")
    groups = parameter_groups(model, AdamW(learning_rate=0.1, weight_decay=0.2))
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}  # type: ignore[attr-defined]
    for part in (*(b.canon["A"].weight for b in model.blocks), model.blocks[0].mixer.convolution.weight_CK):
        assert decay[id(part)] == 0.2


def test_blocks_of_block_diffusion_take_none() -> None:
    with pytest.raises(ValueError, match="block diffusion has no canon layers"):
        BlockDiffusionConfig(canon="A")


def test_the_state_of_a_plain_block_is_that_of_its_mixer() -> None:
    block = BUILDERS["mamba"]().blocks[0]
    assert isinstance(block, Block)
    assert block.start(2, 5).keys() == {"window", "ssm"}
