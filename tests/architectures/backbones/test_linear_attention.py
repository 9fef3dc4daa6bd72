"""Shapes: B batch, T length, D d_model, H heads."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from archbench.architectures import fast_paths
from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.linear_attention import GLA, KDA, DeltaNet, DeltaProduct, GatedDeltaNet
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer
from archbench.architectures.mixers.deltanet import DeltaConfig, DeltaRule
from archbench.architectures.mixers.deltaproduct import HouseholderConfig, delta_product
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig, GatedDeltaRule
from archbench.architectures.mixers.gla import GatedLinearAttention, GatedLinearConfig
from archbench.architectures.mixers.kda import KimiDeltaConfig, KimiDeltaRule
from archbench.architectures.mixers.mamba3 import Mamba3, Mamba3Config
from archbench.architectures.mixers.mlstm import MLSTM, MLSTMConfig
from archbench.architectures.mixers.rwkv7 import RWKV7, RWKV7Config
from tests.architectures.conformance import enliven

FAMILIES = [GLA, DeltaNet, GatedDeltaNet, KDA, DeltaProduct]
MIXERS = {
    "gla": (GatedLinearAttention, GatedLinearConfig),
    "gla, convolution": (
        GatedLinearAttention,
        lambda **more: GatedLinearConfig(conv_width=3, output_gate=False, **more),
    ),
    "delta": (DeltaRule, DeltaConfig),
    "delta, plain": (
        DeltaRule,
        lambda **more: DeltaConfig(conv_width=0, negative_eigenvalues=True, **more),
    ),
    "gated delta": (GatedDeltaRule, GatedDeltaConfig),
    "gated delta, shared keys": (
        GatedDeltaRule,
        lambda **more: GatedDeltaConfig(num_value_heads=6, **more),
    ),
    "kda": (KimiDeltaRule, KimiDeltaConfig),
    "kda, shared keys": (
        KimiDeltaRule,
        lambda **more: KimiDeltaConfig(
            num_value_heads=4, negative_eigenvalues=True, decay_rank=3, gate_rank=2, expand_v=1.5, **more
        ),
    ),
    "kda, plain": (
        KimiDeltaRule,
        lambda **more: KimiDeltaConfig(conv_width=0, output_gate=False, **more),
    ),
    "delta product": (delta_product, HouseholderConfig),
    "delta product, no gates": (
        delta_product,
        lambda **more: HouseholderConfig(
            num_householder=3, num_value_heads=6, forget_gate=False, output_gate=False, **more
        ),
    ),
    "mlstm": (MLSTM, MLSTMConfig),
    "mlstm, no cap": (MLSTM, lambda **more: MLSTMConfig(gate_cap=None, normaliser_eps=0.1, **more)),
    "rwkv7": (RWKV7, RWKV7Config),
    "mamba3": (Mamba3, lambda **more: Mamba3Config(d_state=6, chunk=16, **more)),
    "mamba3, two inputs": (Mamba3, lambda **more: Mamba3Config(d_state=6, mimo_rank=2, **more)),
}


PORTABLE = ("mlstm", "mamba3, two inputs")
"""Mixers without kernels in C++."""


def mixer(name: str, **settings: Any) -> RecurrentMixer:
    """A lively mixer of width 24 in float64."""
    torch.manual_seed(0)
    cls, config = MIXERS[name]
    made = cls(24, config(num_heads=2, **settings))
    made.initialise(1)
    return enliven(made).double()  # type: ignore[return-value]


def model(cls: type[Backbone], **settings: Any) -> Backbone:
    torch.manual_seed(0)
    return cls(cls.Config(**({"d_model": 32} | settings)), vocab_size=19, max_length=200)


def whole(x_BTD: torch.Tensor, **masks: torch.Tensor) -> Context:
    return Context.whole(x_BTD[..., 0], masks.get("valid"), masks.get("documents"))


@pytest.mark.parametrize("name", MIXERS)
def test_both_paths_are_one_function(name):
    """Outputs, last state and gradients, from a given state."""
    results = []
    for scan in ("torch", "reference"):
        made = mixer(name, scan=scan)
        generator = torch.Generator().manual_seed(1)
        x_BTD = torch.randn(2, 70, 24, generator=generator, dtype=torch.float64)
        state = {
            part: torch.randn(value.shape, generator=generator, dtype=torch.float64, requires_grad=True)
            for part, value in made.start(2, 70).items()
        }
        y_BTD, after = made.read(x_BTD, state, whole(x_BTD))
        loss = (y_BTD * y_BTD.detach().cos()).sum() + sum(value.square().sum() for value in after.values())
        gradients = torch.autograd.grad(loss, [*made.parameters(), *state.values()])
        results.append([y_BTD, *after.values(), *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.skipif(bool(fast_paths.problem()), reason=fast_paths.problem())
@pytest.mark.parametrize("mask", ["documents", "valid", "state"])
@pytest.mark.parametrize("name", [name for name in MIXERS if not name.startswith(PORTABLE)])
def test_the_kernels_are_the_same_function(name, mask):
    """Outputs, last state and gradients in float32, of packed documents, with padding, or from a state."""
    results = []
    for scan, dtype in (("cpp", torch.float32), ("reference", torch.float64)):
        made = mixer(name, scan=scan).to(dtype)
        generator = torch.Generator().manual_seed(1)
        x_BTD = torch.randn(2, 40, 24, generator=generator).to(dtype)
        position_BT = torch.arange(40).expand(2, 40)
        masks = {"documents": position_BT // 17} if mask == "documents" else {}
        if mask == "valid":
            masks = {"valid": position_BT < torch.tensor([[40], [23]])}
        parts = made.start(2, 40).items() if mask == "state" else ()
        state = {part: torch.randn(value.shape, generator=generator).to(dtype) for part, value in parts}
        y_BTD, after = made.read(x_BTD, state or None, whole(x_BTD, **masks))
        y_BTD = y_BTD[masks["valid"]] if mask == "valid" else y_BTD
        loss = y_BTD.sin().sum() + sum(value.square().sum() for value in after.values())
        results.append([y_BTD, *after.values(), *torch.autograd.grad(loss, [*made.parameters()])])
    for found, expected in zip(*results, strict=True):
        assert found.dtype == torch.float32
        assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("cut", [1, 2, 66])
@pytest.mark.parametrize("name", MIXERS)
def test_pieces_make_the_whole_and_gradients_flow_between_them(name, cut):
    made = mixer(name)
    x_BTD = torch.randn(2, 70, 24, dtype=torch.float64, requires_grad=True)
    y_BTD, last = made.read(x_BTD, None, whole(x_BTD))
    first_BTD, middle = made.read(x_BTD[:, :cut], None, whole(x_BTD[:, :cut]))
    second_BTD, end = made.read(x_BTD[:, cut:], middle, whole(x_BTD[:, cut:]))
    joined_BTD = torch.cat([first_BTD, second_BTD], dim=1)
    torch.testing.assert_close(joined_BTD, y_BTD, atol=1e-10, rtol=1e-10)
    for part, value in last.items():
        torch.testing.assert_close(end[part], value, atol=1e-10, rtol=1e-10)
    # Of the last output alone, which reaches the first piece through the state.
    gradients = [torch.autograd.grad(y[:, -1].square().sum(), x_BTD)[0] for y in (joined_BTD, y_BTD)]
    torch.testing.assert_close(*gradients, atol=1e-10, rtol=1e-10)
    assert gradients[0][:, :cut].any()


@pytest.mark.parametrize("name", MIXERS)
def test_packed_documents_longer_than_a_chunk_are_those_alone(name):
    """With padding behind the last of them, and gradients."""
    made = mixer(name)
    sizes = [70, 1, 3, 129]
    x_BTD = torch.randn(2, sum(sizes) + 5, 24, dtype=torch.float64, requires_grad=True)
    number_T = torch.repeat_interleave(torch.tensor([4, 2, 4, 1, 0]), torch.tensor([*sizes, 5]))
    valid_BT = (torch.arange(len(number_T)) < sum(sizes)).expand(2, -1)
    packed_BTD = made(x_BTD, whole(x_BTD, documents=number_T.expand(2, -1), valid=valid_BT))
    pieces = x_BTD.split([*sizes, 5], dim=1)[:-1]
    alone_BTD = torch.cat([made(piece, whole(piece)) for piece in pieces], dim=1)
    found_BTD = packed_BTD[:, : sum(sizes)]
    torch.testing.assert_close(found_BTD, alone_BTD, atol=1e-10, rtol=1e-10)
    gradients = [torch.autograd.grad(y.square().sum(), x_BTD)[0] for y in (found_BTD, alone_BTD)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", MIXERS)
def test_padding_leaves_the_state_as_it_is(name):
    """Also that of a row without a single token."""
    made = mixer(name)
    x_BTD = torch.randn(3, 9, 24, dtype=torch.float64)
    start = {part: torch.randn_like(value) for part, value in made.start(3, 9).items()}
    valid_BT = torch.arange(9) < torch.tensor([[4], [0], [9]])
    _, after = made.read(x_BTD, start, whole(x_BTD, valid=valid_BT))
    for row, length in enumerate([4, 0, 9]):
        own = {part: value[row : row + 1] for part, value in start.items()}
        if length:
            piece = x_BTD[row : row + 1, :length]
            own = made.read(piece, own, whole(piece))[1]
        for part, value in own.items():
            torch.testing.assert_close(after[part][row], value[0], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "part"), [("gated delta", "memory"), ("rwkv7", "memory"), ("mamba3", "ssm")]
)
def test_the_memory_is_kept_in_float32_under_autocast(name, part):
    made = mixer(name).float()
    x_BTD = torch.randn(2, 70, 24)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y_BTD, after = made.read(x_BTD, None, whole(x_BTD))
    assert y_BTD.dtype == torch.bfloat16
    assert after[part].dtype == torch.float32


@pytest.mark.parametrize("cls", FAMILIES)
def test_a_model_in_bfloat16_decodes(cls):
    ours = model(cls).bfloat16()
    tokens_BT = torch.randint(19, (2, 12))
    state = ours.start(2, 12)
    for piece in tokens_BT.split([5, 1, 6], dim=1):
        assert ours.step(piece, state).isfinite().all()
    assert {value.dtype for layer in state.layers for value in layer.values()} == {torch.bfloat16}


def test_the_memory_is_kept_in_float32_in_a_model_in_bfloat16():
    config = HybridConfig(d_model=32, num_layers=3, layers=["rwkv7", "mamba3", "rwkv7"])
    ours = Hybrid(config, vocab_size=19, max_length=200).bfloat16()
    tokens_BT = torch.randint(19, (2, 70))
    state = ours.start(2, 70)
    steps = [ours.step(piece, state) for piece in tokens_BT.split([60, 1, 9], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), ours(tokens_BT).logits_BTV, atol=0.05, rtol=0.05)
    assert {layer[part].dtype for layer in state.layers for part in layer.keys() & {"memory", "ssm"}} == {
        torch.float32
    }


@pytest.mark.parametrize("cls", FAMILIES)
def test_a_thousand_steps_stay_with_the_chunks_in_float32(cls):
    ours = enliven(model(cls, num_layers=1))
    x_BTD = torch.randn(1, 1000, 32)
    layer = ours.blocks[0].mixer
    with torch.no_grad():
        state = layer.start(1, 1000)
        steps = [layer.step(x_BD, state, whole(x_BD)) for x_BD in x_BTD.split(1, dim=1)]
        found, expected = torch.cat(steps, dim=1), layer(x_BTD, whole(x_BTD))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_negative_eigenvalues_double_beta():
    """With a zero projection beta is one half, or one: then a key's value is replaced, not mixed."""
    for negative, expected in ((False, 0.5), (True, 1.0)):
        made = DeltaRule(8, DeltaConfig(num_heads=1, conv_width=0, negative_eigenvalues=negative)).double()
        torch.nn.init.zeros_(made.beta.weight)
        x_BTD = torch.randn(1, 1, 8, dtype=torch.float64)
        _, after = made.read(x_BTD, None, whole(x_BTD))
        _, k, v = made.qkv(x_BTD)[0, 0].split(8)
        recalled = after["memory"][0, 0].T @ F.normalize(k, dim=-1)
        torch.testing.assert_close(recalled, expected * v, atol=1e-4, rtol=1e-4)


def test_decays_at_initialisation():
    """GLA: sigmoid^(1/16) of what has deviation one. Gated DeltaNet: time steps and A as in Mamba-2."""
    gla = model(GLA, d_model=256).blocks[0].mixer
    decay = gla.log_decay(torch.randn(4, 50, 256)).exp()
    assert decay.median().item() == pytest.approx(0.5 ** (1 / 16), abs=0.005)
    assert decay.min() > 0.7
    gated = model(GatedDeltaNet, d_model=512, num_heads=512, dt_min=0.01, dt_max=1.0).blocks[0].mixer
    position = F.softplus(gated.dt_bias_H).log10()
    assert position.min() >= -2.001
    assert position.max() <= 0.001
    assert position.mean().item() == pytest.approx(-1.0, abs=0.15)
    A = gated.A_log_H.exp()
    assert A.min() >= 0.01
    assert A.max() <= 16
    assert A.mean().item() == pytest.approx(8, abs=0.8)
    kimi = model(KDA, d_model=512, num_heads=512).blocks[0].mixer
    position = F.softplus(kimi.dt_bias_C).log10()
    assert -3.001 <= position.min() <= position.max() <= -0.999
    assert kimi.A_log_H.exp().aminmax().min >= 1
    assert kimi.A_log_H.exp().mean().item() == pytest.approx(8.5, abs=0.8)


@pytest.mark.parametrize(
    ("cls", "squares"), [(GLA, 4.0), (DeltaNet, 4.0), (GatedDeltaNet, 6.0), (DeltaProduct, 8.25)]
)
def test_the_standard_sizes_are_those_of_the_papers(cls, squares):
    """Parameters of a mixer in multiples of d_model squared, but for small projections and taps."""
    layer = model(cls, d_model=1024).blocks[0].mixer
    weights = sum(part.weight.numel() for part in (layer.qkv, layer.out, layer.gate) if part is not None)
    assert weights == squares * 1024**2


def test_kda_resolves_its_ranks():
    config = KDA.Config(d_model=32).resolved(32)
    assert (config.decay_rank, config.gate_rank, config.num_value_heads) == (16, 16, 2)
    layer = model(KDA, d_model=32, decay_rank=3).blocks[0].mixer
    assert (layer.dt[0].out_features, layer.gate[0].out_features) == (3, 16)


def test_heads_get_whole_numbers():
    layer = model(GatedDeltaNet, d_model=40, num_heads=3).blocks[0].mixer
    assert (layer.key_width, layer.value_width) == (10, 20)
    assert model(GLA, d_model=8, num_heads=8, expand_k=0.01).blocks[0].mixer.key_width == 1


@pytest.mark.parametrize("cls", FAMILIES)
def test_the_state_does_not_grow(cls):
    ours = model(cls)
    assert ours.state_bytes(1) == ours.state_bytes(1000) > 0


@pytest.mark.parametrize("cls", FAMILIES)
def test_kernels_say_which_path_runs(cls):
    built = "torch" if fast_paths.problem() else "cpp"
    for scan, expected in {"auto": built, "torch": "torch", "reference": "reference"}.items():
        assert model(cls, scan=scan).kernels() == {"scan": expected, "decoding": "torch"}
    assert model(cls).double().kernels()["scan"] == "torch"


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (GLA, {"scan": "chunked"}, "scan='chunked' must be one of auto, fla, cpp, torch, reference"),
        (DeltaNet, {"num_heads": 0}, "num_heads=0 must be positive"),
        (GatedDeltaNet, {"expand_v": -1.0}, "expand_v=-1.0 must be positive"),
        (DeltaNet, {"conv_width": -1}, "conv_width=-1 must be positive, or 0"),
        (GLA, {"decay_rank": 0}, "decay_rank=0 must be positive"),
        (KDA, {"decay_rank": 0}, "decay_rank=0 must be positive, or null"),
        (KDA, {"gate_rank": -1}, "gate_rank=-1 must be positive, or null"),
        (DeltaProduct, {"num_householder": 0}, "num_householder=0 must be at least 1"),
        (GatedDeltaNet, {"dt_min": 1.0}, "dt_min=1.0 and dt_max=0.1 must satisfy"),
        (GLA, {"d_ff": 0}, "d_ff=0 must be positive, or null"),
        (GatedDeltaNet, {"num_layers": 0}, "num_layers=0 must be at least 1"),
        (DeltaNet, {"d_model": 12}, "d_model=12 must be a positive multiple of 8"),
    ],
)
def test_wrong_settings_are_refused(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls.Config(**settings)
