"""Shapes: B batch, D channels, M conjugate pairs, T length."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import scipy.signal
import torch

from archbench.architectures.backbones.s4 import S4, BidirectionalS4, S4Config
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.discretization import real_matrix, real_vector
from archbench.architectures.layers.ssm.s4_config import S4LayerConfig
from archbench.architectures.layers.ssm.s4_dplr import LAYERS, S4DPLR
from archbench.architectures.layers.ssm.s4d import LEAP, LONG, S4D, S4Layer
from tests.architectures.conformance import (
    check_no_leak,
    check_packed,
    check_sees_everything,
    enliven,
    random_inputs,
)
from tests.architectures.costs import arithmetic_of_one_sequence

KINDS: dict[str, dict[str, Any]] = {
    "legs": {},
    "inv": {"initialisation": "inv"},
    "lin": {"initialisation": "lin", "discretisation": "bilinear"},
    "real": {"initialisation": "real", "discretisation": "euler"},
    "dplr": {"parametrisation": "dplr", "discretisation": "bilinear"},
    "dplr euler": {"parametrisation": "dplr", "discretisation": "euler"},
    "authors": {"B": "trained", "B_clip": 2.0, "D": "normal", "dt_transform": "softplus"},
    "tied": {"num_systems": 2, "B": "trained"},
    "tied dplr": {"parametrisation": "dplr", "discretisation": "bilinear", "num_systems": 2},
    "legt": {"parametrisation": "dplr", "discretisation": "bilinear", "initialisation": "legt"},
    "fourier": {"parametrisation": "dplr", "discretisation": "bilinear", "initialisation": "fourier"},
    "C_length": {"parametrisation": "dplr", "discretisation": "bilinear", "C_length": 50},
}
DPLR = KINDS["dplr"]


def layer(width: int = 8, d_state: int = 8, *, bidirectional: bool = False, **settings: Any) -> S4Layer:
    """Float64, with states that differ between channels."""
    config = S4Config(d_model=width, d_state=d_state, **settings)
    mixer = LAYERS[config.parametrisation](config.width, config, bidirectional=bidirectional).double()
    mixer.out.reset_parameters()
    mixer.initialise(1)
    with torch.no_grad():
        mixer.A_imag_DM.add_(0.5 * torch.randn_like(mixer.A_imag_DM))
        if isinstance(mixer, S4DPLR):
            mixer.P_DM2.add_(0.1 * torch.randn_like(mixer.P_DM2))
    return mixer


def linear(mixer: S4Layer) -> S4Layer:
    """The linear system alone, without what follows it."""
    mixer._mix = lambda y_BTD: y_BTD  # type: ignore[method-assign]
    return mixer


def whole(x_BTD: torch.Tensor) -> Context:
    return Context.whole(x_BTD[..., 0], None, None)


@torch.no_grad()
def stepped(mixer: S4Layer, x_BTD: torch.Tensor) -> torch.Tensor:
    batch, length = x_BTD.shape[:2]
    state = mixer.start(batch, length)
    return torch.cat(
        [
            mixer.step(x_B1D, state, Context.next(x_B1D[..., 0], [t] * batch, None))
            for t, x_B1D in enumerate(x_BTD.split(1, dim=1))
        ],
        dim=1,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_recurrence_is_that_of_scipy(kind):
    """The differential equation, discretised and simulated by scipy."""
    mixer = linear(layer(dt_scale=1.3, **KINDS[kind]))
    A, B, C, D = (x.detach().numpy() for x in mixer.continuous())
    x_BTD = torch.randn(1, 40, 8, dtype=torch.float64)
    found = stepped(mixer, x_BTD)[0].numpy()
    by_hand = {"exp": math.exp, "softplus": lambda value: math.log(1 + math.exp(value))}
    for d in range(8):
        step = by_hand[mixer.config.dt_transform](mixer.log_dt_D[d].item()) * 1.3
        system = (A[d], B[d][:, None], C[d][None], np.array([[D[d]]]))
        A_bar, B_bar, *_ = scipy.signal.cont2discrete(system, step, method=mixer.discretisation)
        # scipy reads the state before the input enters it, S4 after.
        delayed = (A_bar, B_bar, C[d][None] @ A_bar, C[d][None] @ B_bar + D[d], step)
        _, expected, _ = scipy.signal.dlsim(delayed, x_BTD[0, :, d].numpy())
        np.testing.assert_allclose(found[:, d], expected[:, 0], atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_short_steps_approach_the_differential_equation(kind):
    """Half the step, half the error or less: of the convolution, against scipy's continuous simulation."""
    mixer = linear(layer(8, 8, dt_min=0.05, dt_max=0.1, **KINDS[kind]))
    A, B, C, D = (x.detach().numpy() for x in mixer.continuous())
    errors = []
    for refinement in (16, 32, 64):
        mixer.dt_scale, samples = 1 / refinement, 20 * refinement
        x_BTD = torch.stack([torch.sin(dt * torch.arange(samples)) for dt in mixer.dt().detach()], dim=-1)[
            None
        ]
        with torch.no_grad():
            found = mixer(x_BTD, whole(x_BTD))[0].numpy()
        worst = 0.0
        for d, step in enumerate(mixer.dt().tolist()):
            times = step / 4 * np.arange(4 * samples - 3)
            system = (A[d], B[d][:, None], C[d][None], np.array([[D[d]]]))
            _, expected, _ = scipy.signal.lsim(system, np.sin(times), times)
            worst = max(worst, np.abs(found[:, d] - expected[::4]).max())
        errors.append(worst)
    assert errors[1] < 0.6 * errors[0]
    assert errors[2] < 0.6 * errors[1]
    assert errors[2] < 0.2


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 63, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_kernel_is_the_reference(kind, length):
    settings = KINDS[kind]
    mixer = layer(d_state=8 if settings.get("discretisation") == "euler" else 64, **settings)
    kernel, reference = mixer.kernel(length), mixer.kernel_reference(length)
    assert kernel.shape == (8, length)
    torch.testing.assert_close(kernel, reference, atol=1e-10, rtol=0)
    # Not log_dt_D: the time step multiplies frequencies of a thousand.
    weights = [p for name, p in mixer.named_parameters() if name.split("_")[0] in ("C", "log", "A", "P", "B")]
    weights = [p for p in weights if p is not mixer.log_dt_D]
    assert len(weights) == (5 if isinstance(mixer, S4DPLR) else 3 + (mixer.B_DM2 is not None))
    gradients = [torch.autograd.grad((k * k.detach().cos()).sum(), weights) for k in (kernel, reference)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_in_single_precision(kind):
    mixer = layer(32, 8 if KINDS[kind].get("discretisation") == "euler" else 64, **KINDS[kind])
    single = copy.deepcopy(mixer).float()
    with torch.no_grad():
        exact, found = mixer.kernel_reference(256), single.kernel(256)
    assert (found - exact).abs().max() / exact.abs().max() < 2e-4


def test_the_kernel_is_the_impulse_response_of_the_real_system():
    """Both halves of every conjugate pair, run one step after another."""
    mixer = layer()
    log_A_DM, CB_DM = (tensor.detach() for tensor in mixer.discretised())
    response = []
    h_D2M = torch.ones(8, 2 * log_A_DM.shape[1], dtype=torch.complex128)
    for _ in range(20):
        response.append((h_D2M * torch.cat([CB_DM, CB_DM.conj()], dim=1) / 2).sum(1))
        h_D2M = h_D2M * torch.cat([log_A_DM, log_A_DM.conj()], dim=1).exp()
    expected_DT = torch.stack(response, dim=1)
    assert expected_DT.imag.abs().max() < 1e-12
    torch.testing.assert_close(mixer.kernel(20), expected_DT.real, atol=1e-10, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_the_convolution_is_the_recurrence(kind, length):
    mixer = layer(**KINDS[kind])
    x_BTD = torch.randn(2, length, 8, dtype=torch.float64)
    with torch.no_grad():
        found = mixer(x_BTD, whole(x_BTD))
        kernel = mixer.kernel_reference(length)
    torch.testing.assert_close(stepped(mixer, x_BTD), found, atol=1e-10, rtol=0)
    direct = np.stack([np.convolve(x_BTD[0, :, d], kernel[d])[:length] for d in range(8)], axis=1)
    skipped = torch.from_numpy(direct) + mixer.D_D.detach() * x_BTD[0]
    expected = torch.nn.functional.glu(mixer.out(torch.nn.functional.gelu(skipped)), dim=-1)
    torch.testing.assert_close(found[0], expected.detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_from_the_state_before_are_the_whole(kind):
    """Pieces read by leaps and token by token, with rows that end inside a leap."""
    mixer = layer(**KINDS[kind])
    sizes = [LONG + LEAP + 3, 5, LONG, LONG + 1]
    lengths = torch.tensor([sum(sizes), LONG + LEAP // 2, sum(sizes) - 7])
    x_BTD = torch.randn(3, sum(sizes), 8, dtype=torch.float64)
    valid_BT = torch.arange(sum(sizes)) < lengths[:, None]
    with torch.no_grad():
        expected = mixer(x_BTD, whole(x_BTD))
        state, outputs = mixer.start(3, sum(sizes)), []
        for x_BSD, valid_BS in zip(x_BTD.split(sizes, dim=1), valid_BT.split(sizes, dim=1), strict=True):
            outputs.append(mixer.step(x_BSD, state, Context.next(x_BSD[..., 0], [0, 0, 0], valid_BS)))
        torch.testing.assert_close(torch.cat(outputs, dim=1)[valid_BT], expected[valid_BT])
        # The final state is that of the valid tokens one by one.
        advance, _ = mixer.recurrence()
        for row in range(3):
            h_1DM = mixer.start(1, 1)["ssm"]
            for x_1D in x_BTD[row, : lengths[row]].split(1):
                h_1DM = advance(h_1DM, x_1D)
            torch.testing.assert_close(state["ssm"][row], h_1DM[0])


@pytest.mark.parametrize("kind", ["legs", "dplr"])
def test_long_prompts_are_read_by_leaps(kind, monkeypatch):
    mixer, read = layer(**KINDS[kind]), []
    leap = mixer.leap(LEAP)
    counted = dataclasses.replace(leap, keep=lambda h_BDM: read.append(LEAP) or leap.keep(h_BDM))
    monkeypatch.setattr(mixer, "leap", lambda length: counted)
    for length, leaps in ((LONG - 1, 0), (LONG, LONG // LEAP), (LONG + LEAP + 1, LONG // LEAP + 1)):
        read.clear()
        x_BTD = torch.randn(1, length, 8, dtype=torch.float64)
        with torch.no_grad():
            mixer.step(x_BTD, mixer.start(1, length), whole(x_BTD))
        assert len(read) == leaps


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_is_read_by_the_same_system_with_another_readout(kind):
    """A bidirectional layer is one over the sequence and one over its mirror image, a position behind."""
    mixer = linear(layer(bidirectional=True, **KINDS[kind]))
    past, future = linear(layer(**KINDS[kind])), linear(layer(**KINDS[kind]))
    for one, readout in ((past, mixer.C_DM2), (future, mixer.C_backward_DM2)):
        weights = {n: p for n, p in mixer.state_dict().items() if n != "C_backward_DM2"}
        one.load_state_dict(weights | {"C_DM2": readout})
    with torch.no_grad():
        future.D_D.zero_()
        x_BTD = torch.randn(2, 21, 8, dtype=torch.float64)
        mirrored = future(x_BTD.flip(1), whole(x_BTD)).flip(1)
        later = torch.cat([mirrored[:, 1:], torch.zeros_like(mirrored[:, :1])], dim=1)
        torch.testing.assert_close(mixer(x_BTD, whole(x_BTD)), past(x_BTD, whole(x_BTD)) + later)


@pytest.mark.parametrize("backbone", [S4, BidirectionalS4])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_contract(kind, backbone):
    config = S4Config(d_model=16, d_state=8, **KINDS[kind])
    model = backbone(config, vocab_size=13, max_length=40).double()
    if model.capabilities.causal:
        check_no_leak(model, 12)
    else:
        check_sees_everything(model, 12)
    check_packed(model)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_documents_with_padding_behind_them(bidirectional):
    mixer = layer(bidirectional=bidirectional)
    sizes, T = [[4, 9, 1], [7, 2]], 14
    x_BTD = torch.randn(2, T, 8, dtype=torch.float64)
    documents = torch.stack(
        [
            torch.cat(
                [torch.arange(len(row)).repeat_interleave(torch.tensor(row)), torch.full((T - sum(row),), 9)]
            )
            for row in sizes
        ]
    )
    valid_BT = documents != 9
    with torch.no_grad():
        found = mixer(x_BTD, Context.whole(documents, valid_BT, documents))
        for b, row in enumerate(sizes):
            pieces = [mixer(x, whole(x)) for x in x_BTD[b : b + 1, : sum(row)].split(row, dim=1)]
            torch.testing.assert_close(found[b : b + 1, : sum(row)], torch.cat(pieces, dim=1))


@pytest.mark.parametrize("kind", KINDS)
def test_another_sampling_rate(kind):
    """Every other sample at twice the step: the output is every other output, up to the discretisation."""
    settings = {"dt_min": 0.002, "dt_max": 0.01} | KINDS[kind]
    mixer = linear(layer(8, **settings))
    x_BTD = torch.sin(torch.arange(2000) * 0.01 + torch.arange(8)[:, None]).T[None].double()
    every_other = x_BTD[:, ::2]
    with torch.no_grad():
        expected = mixer(x_BTD, whole(x_BTD))[:, ::2]
        unaware = mixer(every_other, whole(every_other))
        mixer.dt_scale = 2.0
        found = mixer(every_other, whole(every_other))
    size = expected.std()
    assert (found - expected).square().mean().sqrt() < 0.05 * size
    assert (unaware - expected).square().mean().sqrt() > 0.2 * size


def test_the_rate_of_a_model_and_of_its_config():
    torch.manual_seed(0)
    model = S4(S4Config(d_model=16), vocab_size=11, max_length=9)
    faster = S4(S4Config(d_model=16, dt_scale=3.0), vocab_size=11, max_length=9)
    faster.load_state_dict(model.state_dict())
    tokens_BT = random_inputs(model, 1, 9).tokens_BT
    with torch.no_grad():
        expected = faster(tokens_BT).logits_BTV
        assert not torch.allclose(model(tokens_BT).logits_BTV, expected)
        model.resample(3.0)
        assert torch.equal(model(tokens_BT).logits_BTV, expected)
        assert torch.allclose(model.step(tokens_BT, model.start(1, 9)), expected, atol=1e-4)
    with pytest.raises(ValueError, match="rate=0 must be positive"):
        model.resample(0)


def test_dplr_without_its_low_rank_part_is_diagonal():
    """Both layers then have one kernel, if B is 1."""
    diagonal = layer(16, discretisation="bilinear")
    mixer = layer(16, **DPLR)
    with torch.no_grad():
        mixer.load_state_dict(diagonal.state_dict(), strict=False)
        mixer.P_DM2.zero_()
        mixer.B_DM2.copy_(torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(mixer.kernel(50), diagonal.kernel(50))
    A_bar, B_bar = mixer.discretised()
    log_A_DM, _ = diagonal.discretised()
    torch.testing.assert_close(A_bar, real_matrix(log_A_DM.exp()))
    assert B_bar.shape == real_vector(log_A_DM).shape


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("legs", {"log_dt_D", "log_A_real_DM", "A_imag_DM"}),
        ("dplr", {"log_dt_D", "log_A_real_DM", "A_imag_DM", "P_DM2", "B_DM2"}),
        ("authors", {"log_dt_D", "log_A_real_DM", "A_imag_DM", "B_DM2"}),
    ],
)
def test_dynamics_are_marked_for_the_optimizer(kind, expected):
    """No decay, and a learning rate of at most 1e-3, for A, B and the time step alone."""
    mixer = layer(**KINDS[kind])
    marked = {name for name, p in mixer.named_parameters() if getattr(p, "no_weight_decay", False)}
    assert marked == expected
    capped = {name for name, p in mixer.named_parameters() if getattr(p, "learning_rate_cap", 1) == 1e-3}
    assert capped == expected


def test_time_steps_may_learn_at_the_rate_of_the_other_weights():
    mixer = layer(dt_rate_cap=None)
    assert not hasattr(mixer.log_dt_D, "learning_rate_cap")
    assert getattr(mixer.log_dt_D, "no_weight_decay", False)
    assert getattr(mixer.A_imag_DM, "learning_rate_cap", None) == 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_training_cannot_make_it_unstable(kind):
    """Any parameters whatever keep all eigenvalues in the left half of the plane."""
    mixer = layer(**KINDS[kind])
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(3 * torch.randn_like(parameter))
    A_DNN = mixer.continuous()[0].detach().numpy()
    assert np.linalg.eigvals(A_DNN).real.max() < 0


@pytest.mark.parametrize("kind", ["legs", "dplr"])
@pytest.mark.parametrize("length", [1, 8, 9, 50])
def test_mixer_flops_are_the_arithmetic_that_runs(kind, length):
    mixer = layer(16, **KINDS[kind]).float()
    mixer.out.bias = None
    measured = arithmetic_of_one_sequence(
        lambda batch: mixer(torch.randn(batch, length, 16), Context(positions_BT=torch.arange(length)[None]))
    )
    assert mixer.flops(length).mixer == measured
    assert mixer.flops(length).linear == 2 * length * 16 * 32


@pytest.mark.parametrize("kind", KINDS)
def test_step_flops_are_the_arithmetic_that_runs(kind):
    mixer = layer(16, **KINDS[kind]).float()
    mixer.out.bias = None
    context = Context(positions_BT=torch.tensor([[7]]), start=7)
    measured = arithmetic_of_one_sequence(
        lambda batch: mixer.step(torch.randn(batch, 1, 16), mixer.start(batch, 8), context)
    )
    assert mixer.step_flops(7).mixer == measured


@pytest.mark.parametrize("kind", ["legs", "dplr"])
def test_a_thousand_steps_stay_with_the_convolution(kind):
    """In float32, where every step adds its rounding."""
    config = S4Config(d_model=16, num_layers=1, **KINDS[kind])
    model = enliven(S4(config, vocab_size=11, max_length=1000))
    tokens = torch.randint(11, (1, 1000))
    with torch.no_grad():
        state = model.start(1, 1000)
        steps = model.step(tokens, state)
        torch.testing.assert_close(steps, model(tokens).logits_BTV, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parametrisation": "dense"}, "parametrisation='dense' must be one of diagonal, dplr"),
        ({"initialisation": "random"}, "initialisation='random' must be one of legs, inv, lin, real"),
        ({"discretisation": "foh"}, "discretisation='foh' must be one of zoh, bilinear, euler"),
        ({"dt_scale": 0.0}, "dt_scale=0.0 must be positive"),
        ({"parametrisation": "dplr"}, "discretisation=zoh with parametrisation=dplr.* bilinear or euler"),
        (DPLR | {"initialisation": "lin"}, "initialisation=lin .* must be legs"),
        (
            {"initialisation": "legt"},
            "legt is no diagonal matrix: choose parametrisation=dplr, or one of legs",
        ),
        ({"C_length": 9}, "C_length=9 goes with parametrisation=dplr"),
        ({"dt_transform": "relu"}, "dt_transform='relu' must be one of exp, softplus"),
        ({"B": "zero"}, "B='zero' must be one of ones, trained"),
        ({"num_systems": 0}, "num_systems=0 must be positive, or null"),
        ({"discretisation": "euler"}, "dt_max=0.1 with discretisation=euler.* above 5.9e-07 .*d_state=64"),
        (KINDS["dplr euler"] | {"d_state": 32}, "steps above 0.062"),
        (KINDS["dplr euler"] | {"d_state": 16, "dt_scale": 1.3}, "dt_scale=1.3"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        S4Config(**settings)


def test_without_a_feed_forward_a_block_is_the_mixer_alone():
    """As in the authors' blocks: the layer's own linear unit is all that mixes channels."""
    model = S4(S4Config(d_model=16, num_layers=2, d_ff=0), vocab_size=11, max_length=20)
    assert not any("feedforward" in name for name, _ in model.named_parameters())
    own = sum(p.numel() for p in S4D(16, S4LayerConfig()).parameters())
    assert model.parameters_by_part().body == 2 * (own + 16) + 16  # and the norms
    check_no_leak(enliven(model), 12)
    with pytest.raises(ValueError, match="d_ff=-1 must be positive, 0 for none"):
        S4Config(d_ff=-1)
