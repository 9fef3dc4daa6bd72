import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.experiments.training.checkpoints.stored_state import gather_state, load_moments
from archbench.experiments.training.optimizer_step import (
    averaged,
    clip_gradients,
    gradient_norm,
    learning_rate_factor,
    set_learning_rate,
    update_average,
)
from archbench.experiments.training.optimizers.adamw import AdamW
from archbench.experiments.training.optimizers.combined import hidden_matrices
from archbench.experiments.training.optimizers.muon import Muon
from archbench.experiments.training.optimizers.nadam import NAdam
from archbench.experiments.training.optimizers.parameter_groups import parameter_groups, uncompiled
from archbench.experiments.training.optimizers.sgd import SGD
from tests.architectures.models import build as conformance_build

BACKBONES = {
    "decoder": (Decoder, DecoderConfig(d_model=16, tie_embeddings=True)),
    "moe": (MoE, MoEConfig(d_model=16)),
    "encoder": (Encoder, EncoderConfig(d_model=16)),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig(d_model=16)),
    "mamba": (Mamba, MambaConfig(d_model=16)),
    "s4": (S4, S4Config(d_model=16)),
}
SCHEDULES = ("cosine", "wsd", "constant", "linear", "one_minus_sqrt")
UNDECAYED = ("bias", "bias_C", "A_log_CN", "D_C", "D_D", "log_dt_D", "log_A_real_DM", "A_imag_DM")


def build(name):
    cls, config = BACKBONES[name]
    return cls(config, vocab_size=24, max_length=16)


def named_groups(model, config):
    """Settings of the group that each parameter is in, by name."""
    name_of = {id(p): name for name, p in model.named_parameters()}
    found = {}
    for group in parameter_groups(model, config):
        for parameter in group["params"]:  # type: ignore[attr-defined]
            name = name_of[id(parameter)]
            assert name not in found
            found[name] = group
    assert set(found) == set(name_of.values())
    return found


@pytest.mark.parametrize("name", BACKBONES)
def test_matrices_decay_and_norms_biases_and_dynamics_do_not(name):
    model = build(name)
    norms = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.RMSNorm | nn.LayerNorm)}
    spared = 0
    for parameter, group in named_groups(model, AdamW(weight_decay=0.1)).items():
        expected_spared = parameter in norms or parameter.endswith(UNDECAYED)
        assert group["weight_decay"] == (0.0 if expected_spared else 0.1), parameter
        spared += expected_spared
    assert spared >= len(norms) > 0


def test_state_space_dynamics_learn_no_faster_than_their_cap():
    model = build("s4")
    dynamics = ("log_dt_D", "log_A_real_DM", "A_imag_DM")
    for rate in (3e-3, 1e-4):
        for name, group in named_groups(model, AdamW(learning_rate=rate)).items():
            assert group["peak"] == (min(rate, 1e-3) if name.endswith(dynamics) else rate), name


def test_the_schedule_scales_every_group():
    config = AdamW(learning_rate=4e-3, schedule="constant", warmup_fraction=0.1)
    optimizer = config.build(build("s4"))
    assert set_learning_rate(optimizer, 4, 100, config) == pytest.approx(2e-3)
    assert {round(group["lr"], 9) for group in optimizer.param_groups} == {2e-3, 5e-4}


def test_warm_up_is_linear():
    for schedule in SCHEDULES:
        config = AdamW(schedule=schedule, warmup_fraction=0.1)
        rates = [learning_rate_factor(step, 200, config) for step in range(20)]
        assert rates == pytest.approx([(step + 1) / 20 for step in range(20)])


def test_cosine_falls_to_its_final_share():
    config = AdamW(schedule="cosine", warmup_fraction=0.1, min_lr_ratio=0.2)
    rates = [learning_rate_factor(step, 200, config) for step in range(200)]
    assert rates[199] == pytest.approx(0.2)
    assert rates[109] == pytest.approx(0.6)  # half way: the mean of 1 and 0.2
    assert rates[64] == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert all(a >= b for a, b in pairwise(rates[19:]))


def test_wsd_is_stable_then_falls_linearly():
    config = AdamW(schedule="wsd", warmup_fraction=0.1, decay_fraction=0.2, min_lr_ratio=0.1)
    rates = [learning_rate_factor(step, 200, config) for step in range(200)]
    assert rates[19:160] == [1.0] * 141
    assert rates[160:] == pytest.approx([1 - 0.9 * (step + 1) / 40 for step in range(40)])


def test_wsd_decays_for_every_budget_as_a_run_of_that_budget_would():
    config = AdamW(
        schedule="wsd",
        warmup_fraction=0.0,
        decay_fraction=0.2,
        min_lr_ratio=0.1,
        decay_end_fractions=[0.25, 0.5, 1.0],
    )
    rates = [learning_rate_factor(step, 400, config) for step in range(400)]
    for begin, end in ((0, 100), (100, 200), (200, 400)):
        alone = AdamW(schedule="wsd", warmup_fraction=0.0, decay_fraction=0.2, min_lr_ratio=0.1)
        assert rates[begin:end] == pytest.approx(
            [learning_rate_factor(step, end, alone) for step in range(begin, end)]
        )
        assert rates[end - 1] == pytest.approx(0.1)
    assert config.decayed_steps(400) == [100, 200, 400]


@pytest.mark.parametrize("ends", [[], [0.5], [0.5, 0.5, 1.0], [1.0, 0.5], [0.0, 1.0], [0.5, 2.0]])
def test_decays_end_at_rising_shares(ends):
    with pytest.raises(ValueError, match="decay_end_fractions"):
        AdamW(schedule="wsd", decay_end_fractions=ends)


def test_a_schedule_that_runs_to_the_end_decays_once():
    with pytest.raises(ValueError, match="schedule=cosine decays once"):
        AdamW(decay_end_fractions=[0.5, 1.0])


def test_a_line_falls_to_its_final_share():
    config = AdamW(schedule="linear", warmup_fraction=0.1, min_lr_ratio=0.2)
    rates = [learning_rate_factor(step, 200, config) for step in range(200)]
    assert rates[20:] == pytest.approx([1 - 0.8 * (step + 1) / 180 for step in range(180)])


def test_one_minus_sqrt_falls_fast_at_first():
    """Hägele et al. 2024: a quarter of the way down it has lost a half."""
    config = AdamW(schedule="one_minus_sqrt", warmup_fraction=0.1, decay_fraction=0.2, min_lr_ratio=0.0)
    rates = [learning_rate_factor(step, 200, config) for step in range(200)]
    assert rates[19:160] == [1.0] * 141
    assert rates[160:] == pytest.approx([1 - math.sqrt((step + 1) / 40) for step in range(40)])
    assert rates[169] == pytest.approx(0.5)
    twice = AdamW(
        schedule="one_minus_sqrt", warmup_fraction=0.0, min_lr_ratio=0.0, decay_end_fractions=[0.5, 1.0]
    )
    assert [learning_rate_factor(step, 200, twice) for step in (79, 99, 100)] == pytest.approx([1, 0, 1])


def test_a_schedule_of_ones_own(tmp_path, monkeypatch):
    """A module with a function, named by its path: nothing of the project is edited."""
    package = tmp_path / "my_rates"
    package.mkdir()
    text = "def factor(step, warmup, total, config):\n    return 0.5 ** (step - warmup)\n"
    (package / "halving.py").write_text(f"SEVERAL_DECAYS = False\n\n\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    config = AdamW(schedule="my_rates.halving", warmup_fraction=0.1)
    assert [learning_rate_factor(step, 20, config) for step in range(5)] == [0.5, 1.0, 1.0, 0.5, 0.25]
    for name, said in (
        ("os.path", "not a module of this project"),
        ("my_rates.absent", "no such module"),
    ):
        with pytest.raises(ValueError, match=said):
            AdamW(schedule=name)


def test_constant_stays():
    config = AdamW(schedule="constant", warmup_fraction=0.0)
    assert [learning_rate_factor(step, 50, config) for step in range(50)] == [1.0] * 50


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 3, 7])
def test_short_runs_have_a_rate_at_every_step(schedule, total):
    for warmup, decay in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0)):
        config = AdamW(schedule=schedule, warmup_fraction=warmup, decay_fraction=decay)
        assert all(0 < learning_rate_factor(step, total, config) <= 1 for step in range(total))


def test_a_step_is_adamw_by_hand():
    """Loshchilov and Hutter 2019, algorithm 2, in float64, with the schedule and the groups."""
    config = AdamW(learning_rate=0.05, betas=[0.8, 0.9], eps=1e-6, weight_decay=0.3, warmup_fraction=0.4)
    torch.manual_seed(0)
    model = nn.Linear(5, 4, dtype=torch.float64)
    inputs = torch.randn(8, 5, dtype=torch.float64)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(w) for name, w in weights.items()}
    second = {name: torch.zeros_like(w) for name, w in weights.items()}
    optimizer = config.build(model)
    for step in range(10):
        optimizer.zero_grad()
        (model(inputs) - 1).square().mean().backward()
        rate = set_learning_rate(optimizer, step, 10, config)
        assert rate == pytest.approx(0.05 * learning_rate_factor(step, 10, config))
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.9 * second[name] + 0.1 * gradient**2
            decay = 0.3 if name == "weight" else 0.0
            update = (first[name] / (1 - 0.8 ** (step + 1))) / (
                (second[name] / (1 - 0.9 ** (step + 1))).sqrt() + 1e-6
            )
            weights[name] = weights[name] - rate * decay * weights[name] - rate * update
        optimizer.step()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), weights[name], rtol=1e-10, atol=1e-12)


def test_muon_makes_hidden_matrices_orthogonal_and_leaves_the_rest_to_adamw():
    """First steps: a matrix moves by its gradient's orthogonal factor, as large as an update of AdamW."""
    torch.manual_seed(0)
    model, rate = build("decoder"), 0.01
    config = Muon(learning_rate=rate, weight_decay=0.0, schedule="constant", warmup_fraction=0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(torch.randint(24, (3, 9))).logits_BTV.square().sum().backward()
    optimizer = config.build(model)
    set_learning_rate(optimizer, 0, 10, config)
    optimizer.step()
    by_muon = set()
    for name, parameter in model.named_parameters():
        moved, gradient = parameter.detach() - before[name], parameter.grad
        if "momentum_buffer" in optimizer.state[parameter]:
            by_muon.add(name)
            U, _, V = torch.linalg.svd(gradient.double(), full_matrices=False)
            inside = U.mT @ -moved.double() @ V.mT / (rate * 0.2 * max(moved.shape) ** 0.5)
            size = inside.diagonal()
            assert size.median() > 0.6, name  # five steps bring all but the smallest near one
            assert size.min() > 0, name
            assert size.max() < 1.3, name
            assert (inside - torch.diag(size)).abs().max() < 0.2, name
        else:
            expected = -rate * gradient / (gradient.abs() + 1e-8)
            torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)
    assert by_muon == {
        n for n, p in model.named_parameters() if p.ndim == 2 and not n.startswith("embedding")
    }


class Layers(nn.Module):
    """Products, tables and filters."""

    low_precision_parameters = ("matrix",)

    def __init__(self):
        super().__init__()
        self.matrix, self.filter = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4, 3))
        self.table, self.convolution = nn.Embedding(4, 3), nn.Conv1d(4, 4, 3, groups=4)
        self.linear, self.rnn = nn.Linear(3, 4), nn.GRU(3, 2)
        self.attention = nn.MultiheadAttention(4, 2)


def test_muon_takes_factors_of_matrix_products_only():
    model = Layers()
    found = hidden_matrices(model)
    assert {name for name, p in model.named_parameters() if id(p) in found} == {
        "matrix", "linear.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0", "attention.in_proj_weight",
        "attention.out_proj.weight",
    }  # fmt: skip
    muon, adamw = Muon().division(model)
    assert muon == "Muon: attention.in_proj_weight, attention.out_proj.weight, linear.weight, matrix, " + (
        "rnn.weight_hh_l0, rnn.weight_ih_l0"
    )
    assert "convolution.weight" in adamw
    assert "filter" in adamw


@pytest.mark.parametrize("name", ["mamba", "encoder_decoder", "gated_deltanet", "switch"])
def test_muon_takes_no_convolutions_and_no_tables(name):
    model = conformance_build(name)
    found = hidden_matrices(model)
    by_muon = {name for name, p in model.named_parameters() if id(p) in found}
    assert by_muon
    assert not any(part in name for name in by_muon for part in ("convolution", "table", "embedding"))


def test_the_average_follows_weights_of_an_optimizer_without_moments():
    config = SGD(ema=0.9, momentum=0.0, learning_rate=0.5, weight_decay=0.0)
    model = nn.Linear(2, 1, dtype=torch.float64)
    optimizer, expected = config.build(model), None
    for step in range(5):
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        update_average(optimizer, step + 1, config.ema)
        decay, weight = min(0.9, (2 + step) / (11 + step)), model.weight.detach().clone()
        expected = weight if expected is None else decay * expected + (1 - decay) * weight
    with averaged(optimizer):
        torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-14, atol=1e-14)
    assert torch.equal(model.weight, weight)


def test_the_average_does_not_stand_for_moments_of_a_parameter_without_gradients():
    config, model = AdamW(ema=0.9), nn.Linear(2, 1)
    optimizer = config.build(model)
    for step, inputs in enumerate([torch.ones(0, 2), torch.ones(1, 2)]):
        loss = model(inputs).sum() if len(inputs) else model.bias.sum()
        loss.backward()
        optimizer.step()
        update_average(optimizer, step + 1, config.ema)
        optimizer.zero_grad()
    with averaged(optimizer):
        assert model.weight.isfinite().all()


def test_sgd_by_hand():
    config = SGD(learning_rate=0.1, momentum=0.5, weight_decay=0.2, schedule="constant", warmup_fraction=0.0)
    model = nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(2.0)
        model.bias.fill_(1.0)
    optimizer, weight, bias, sums = config.build(model), 2.0, 1.0, [0.0, 0.0]
    for step in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 1, dtype=torch.float64)) ** 2 / 2).sum().backward()
        error = weight + bias
        sums = [0.5 * sums[0] + error + 0.2 * weight, 0.5 * sums[1] + error]
        weight, bias = weight - 0.1 * sums[0], bias - 0.1 * sums[1]
        set_learning_rate(optimizer, step, 3, config)
        optimizer.step()
        assert model.weight.item() == pytest.approx(weight)
        assert model.bias.item() == pytest.approx(bias)


def test_nadam_by_hand():
    """Dozat 2016, algorithm 8, with its schedule of the momentum; the decay is decoupled."""
    config = NAdam(
        learning_rate=0.1, betas=[0.9, 0.99], weight_decay=0.2, schedule="constant", warmup_fraction=0.0
    )
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(2.0)
    optimizer, weight, first, second, product = config.build(model), 2.0, 0.0, 0.0, 1.0
    for t in range(1, 4):
        optimizer.zero_grad()
        (model(torch.ones(1, 1, dtype=torch.float64)) ** 2 / 2).sum().backward()
        now, ahead = (0.9 * (1 - 0.5 * 0.96 ** (at * 0.004)) for at in (t, t + 1))
        product *= now
        first, second = 0.9 * first + 0.1 * weight, 0.99 * second + 0.01 * weight**2
        step = ahead * first / (1 - product * ahead) + (1 - now) * weight / (1 - product)
        weight = weight * (1 - 0.1 * 0.2) - 0.1 * step / ((second / (1 - 0.99**t)) ** 0.5 + 1e-8)
        set_learning_rate(optimizer, t - 1, 3, config)
        optimizer.step()
        assert model.weight.item() == pytest.approx(weight)


@pytest.mark.parametrize(
    "config", [AdamW(), Muon(), NAdam(), SGD()], ids=lambda config: type(config).__name__
)
@pytest.mark.parametrize("name", ["decoder", "moe", "s4"])
def test_moments_that_were_saved_continue_as_if_they_had_not_been(config, name):
    def steps(model, optimizer, first):
        for step in range(first, first + 2):
            tokens = torch.randint(24, (3, 9), generator=torch.Generator().manual_seed(step))
            model(tokens).logits_BTV.square().sum().backward()
            set_learning_rate(optimizer, step, 10, config)
            optimizer.step()
            optimizer.zero_grad()

    torch.manual_seed(0)
    model = build(name)
    optimizer = config.build(model)
    steps(model, optimizer, 0)
    saved = {
        kind: {k: v.clone() for k, v in part.items()} for kind, part in gather_state(model, optimizer).items()
    }
    steps(model, optimizer, 2)
    other = build(name)
    again = config.build(other)
    other.load_state_dict(saved["model"], strict=False)
    load_moments(again, saved["optimizer"])
    steps(other, again, 2)
    for (label, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs), label


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"betas": [0.9]}, "betas="),
        ({"betas": [0.9, 1.0]}, "betas="),
        ({"warmup_fraction": 1.5}, "warmup_fraction=1.5"),
        ({"min_lr_ratio": -0.1}, "min_lr_ratio=-0.1"),
        ({"eps": 0.0}, "eps=0.0 must be positive"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be positive"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AdamW(**settings)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.NAdam, {"decoupled_weight_decay": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Muon, {}),
    ],
)
def test_uncompiled_optimizers_step_as_those_of_pytorch(optimizer, settings):
    weights, gradients = torch.randn(4, 3), torch.randn(5, 4, 3)
    ends, states = [], []
    for kind in (optimizer, uncompiled(optimizer), optimizer):
        weight = nn.Parameter(weights.clone())
        steps = kind([weight], lr=0.1, weight_decay=0.1, **settings)
        for gradient in gradients:
            weight.grad = gradient.clone()
            steps.step()
            steps.zero_grad()
            assert weight.grad is None
        ends.append(weight.detach())
        states.append(steps.state_dict()["state"][0])
    assert issubclass(uncompiled(optimizer), optimizer)
    for end, state in zip(ends, states, strict=True):
        torch.testing.assert_close(end, ends[0], rtol=0, atol=0)
        assert all(torch.equal(torch.as_tensor(state[key]), torch.as_tensor(states[0][key])) for key in state)


@pytest.mark.parametrize(("limit", "expected"), [(1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (None, [3.0, 4.0])])
def test_gradients_are_scaled_down_to_a_norm_or_left_alone(limit, expected):
    """Two parameters with gradients 3 and 4 have a total norm of 5."""
    weights = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2)]
    for weight, gradient in zip(weights, (3.0, 4.0), strict=True):
        weight.grad = torch.full((1,), gradient, dtype=torch.float64)
    clip_gradients(weights, AdamW(clip_norm=limit).clip_norm, gradient_norm(weights))
    assert [weight.grad.item() for weight in weights] == pytest.approx(expected, rel=1e-6)


def test_the_average_is_that_of_the_weights_after_each_step() -> None:
    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = torch.optim.AdamW([*model.parameters(), frozen], lr=0.1)
    expected, decay = None, 0.5
    for step in range(1, 8):
        model(torch.randn(4, 3, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        update_average(optimizer, step, decay)
        now = model.weight.detach().clone()
        rate = min(decay, (1 + step) / (10 + step))
        expected = now if expected is None else rate * expected + (1 - rate) * now
    with averaged(optimizer):
        torch.testing.assert_close(model.weight.detach(), expected)
        assert not torch.equal(model.weight, now)
    assert torch.equal(model.weight, now)
    with pytest.raises(RuntimeError, match="inside"), averaged(optimizer):
        raise RuntimeError("inside")
    assert torch.equal(model.weight, now)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_a_decay_of_the_average_lies_between_0_and_1(decay: float) -> None:
    with pytest.raises(ValueError, match="ema="):
        AdamW(ema=decay)
