from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from archbench.architectures import fast_paths
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.layers.context import Context
from archbench.architectures.mixers.mamba2 import SSD, GatedNorm, SSDConfig
from tests.architectures.conformance import enliven
from tests.architectures.costs import arithmetic_of_one_sequence

WHOLE = Context(positions_BT=torch.arange(40)[None])
BASE = SSDConfig(num_heads=6, d_state=5, num_groups=2, conv_width=3, chunk=4)


def model(**changes: object) -> Mamba2:
    settings = {"d_model": 24, "num_layers": 3, "num_heads": 6, "d_state": 5, "chunk": 4}
    return Mamba2(Mamba2Config(**(settings | changes)), vocab_size=61, max_length=40)


def mixer(config: SSDConfig) -> SSD:
    """A mixer in float64 with weights large enough for faults to show."""
    torch.manual_seed(0)
    made = SSD(24, config)
    made.initialise(1)
    return enliven(made).double()  # type: ignore[return-value]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "before_gate"},
        {"norm": "none"},
        {"negative_eigenvalues": True},
        {"num_groups": 6},
        {"head_dim": 3, "bias": True, "conv_bias": False},
        {"dt_floor": 0.1, "dt_ceiling": 0.4},
    ],
)
def test_every_setting_reads_in_pieces_as_in_one(changes):
    """The same outputs, last state and gradients, chunked or step by step, whole or in pieces."""
    x_BTD = torch.randn(2, 17, 24, dtype=torch.float64, requires_grad=True)
    found = []
    for scan, sizes in (("reference", [17]), ("torch", [17]), ("torch", [5, 1, 9, 2])):
        made = mixer(replace(BASE, scan=scan, **changes))
        state, pieces = made.start(2, 17), []
        for piece in x_BTD.split(sizes, dim=1):
            y_BTD, state = made.read(piece, state, WHOLE)
            pieces.append(y_BTD)
        y_BTD = torch.cat(pieces, dim=1)
        loss = y_BTD.sin().sum() + state["ssm"].square().sum() + state["window"].square().sum()
        found.append([y_BTD, *state.values(), *torch.autograd.grad(loss, [x_BTD, *made.parameters()])])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)


PADDED = Context(
    positions_BT=torch.arange(17)[None], valid_BT=torch.arange(17) < torch.tensor([17, 9])[:, None]
)
PACKED = Context.whole(torch.zeros(2, 17), None, torch.tensor([[0] * 5 + [1] * 12, [0] * 16 + [1]]))


@pytest.mark.skipif(bool(fast_paths.problem()), reason=fast_paths.problem())
@pytest.mark.parametrize("context", [WHOLE, PADDED, PACKED], ids=["whole", "padded", "packed"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "before_gate"},
        {"norm": "none"},
        {"negative_eigenvalues": True},
        {"num_groups": 6},
        {"head_dim": 3, "bias": True, "conv_bias": False},
    ],
)
def test_the_cpp_layer_is_the_plain_one(changes, context):
    """Output, last state and gradients in float32, against the plain loop in float64."""
    x_BTD, found = torch.randn(2, 17, 24), []
    for scan, dtype in (("reference", torch.float64), ("cpp", torch.float32)):
        made = mixer(replace(BASE, scan=scan, **changes)).to(dtype)
        x = x_BTD.to(dtype).requires_grad_()
        y_BTD, state = made.read(x, None, context)
        loss = (
            (y_BTD * torch.linspace(-1, 1, 24).to(dtype)).sum() + state["ssm"].sum() + state["window"].sum()
        )
        names = [name for name, _ in made.named_parameters()]
        parts = [y_BTD, *state.values(), *torch.autograd.grad(loss, [x, *made.parameters()])]
        found.append(dict(zip(["y", *state, "x", *names], parts, strict=True)))
    for name, expected in found[0].items():
        error = (found[1][name] - expected).abs().max() / expected.abs().max()
        assert error < 5e-6, name


@pytest.mark.parametrize("changes", [{"norm": "before_gate"}, {"norm": "none"}, {"num_groups": 6}])
def test_settings_change_the_result(changes):
    x_BTD = torch.randn(1, 9, 24, dtype=torch.float64)
    plain, changed = mixer(BASE), mixer(replace(BASE, **changes))
    if "norm" in changes:
        changed.load_state_dict(plain.state_dict(), strict=False)
    assert (plain(x_BTD, WHOLE) - changed(x_BTD, WHOLE)).abs().max() > 1e-3


def test_gated_norm_by_hand():
    y = torch.tensor([[[3.0, 4.0, 1.0, 1.0]]])
    gate = torch.full((1, 1, 4), 100.0)  # silu(100) = 100
    gate[..., 3] = 0.0
    after, before = (GatedNorm(4, 2, 0.0, before_gate=flag) for flag in (False, True))
    root = (25 / 2) ** 0.5
    assert after(y, gate).flatten().tolist() == pytest.approx([3 / root, 4 / root, 2**0.5, 0.0])
    assert before(y, gate).flatten().tolist() == pytest.approx([300 / root, 400 / root, 100.0, 0.0])


def test_time_steps_and_decay_at_initialisation():
    """softplus of the bias log-uniform between dt_min and dt_max; A uniform between A_min and A_max."""
    made = model(d_model=64, num_heads=1024, head_dim=1, dt_min=0.01, dt_max=1.0).blocks[0].mixer
    position = F.softplus(made.dt_bias_H).log10()
    assert position.min() >= -2.001
    assert position.max() <= 0.001
    assert position.mean().item() == pytest.approx(-1.0, abs=0.1)
    rate = made.A_log_H.exp()
    assert rate.min() >= 1
    assert rate.max() <= 16
    assert rate.mean().item() == pytest.approx(8.5, abs=0.6)
    assert made.D_H.eq(1).all()


def test_sizes_left_null_are_those_said():
    made = model(d_model=48, head_dim=None, d_state=None).blocks[0].mixer
    assert (made.config.head_dim, made.config.d_state, made.channels) == (16, 64, 96)


def test_mixer_flops_are_the_arithmetic_that_runs():
    """The gate after the scan, one product for each channel, is an activation and not counted."""
    made = SSD(16, SSDConfig(num_heads=4, d_state=5, norm="none", scan="reference"))
    made.initialise(1)
    for length in (1, 8, 13):
        measured = arithmetic_of_one_sequence(lambda batch, T=length: made(torch.randn(batch, T, 16), WHOLE))
        biases = length * 4  # of the time steps
        assert made.flops(length).mixer == measured - length * 32 - biases


def test_the_state_does_not_grow():
    ours = model()
    assert ours.state_bytes(1) == ours.state_bytes(1000) == 3 * 4 * (48 * 5 + 3 * (48 + 10))


def test_the_state_stays_in_float32():
    made = SSD(24, BASE).to(torch.bfloat16)
    state = made.start(2, 10)
    assert (state["ssm"].dtype, state["window"].dtype) == (torch.float32, torch.bfloat16)
    assert made.state_bytes(3, 2) == sum(value.nbytes for value in made.start(1, 10).values())


def test_heads_that_do_not_divide_the_width_are_named():
    with pytest.raises(ValueError, match="num_heads=7 must divide 2 d_model=48"):
        SSD(24, SSDConfig(num_heads=7))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 7}, "d_model=24 must be a positive multiple of 7"),
        ({"num_groups": 4}, "num_heads=6 must be a multiple of num_groups=4"),
        ({"norm": "rms"}, "norm='rms' must be one of after_gate"),
        ({"scan": "compiled"}, "scan='compiled' must be one of auto"),
        ({"dt_min": 0.2}, "0 < dt_min <= dt_max"),
        ({"A_min": 0.0}, "0 < A_min <= A_max"),
        ({"dt_floor": 1.0, "dt_ceiling": 0.5}, "dt_ceiling=0.5"),
        ({"chunk": 0}, "chunk=0 must be positive"),
        ({"vocab_size": 60}, "vocab_size=60 is smaller than the task's vocabulary of 61"),
    ],
)
def test_impossible_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        model(**changes)
