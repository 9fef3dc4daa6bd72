import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from architectures.backbones.decoder import Decoder, DecoderConfig
from architectures.backbones.encoder import Encoder, EncoderConfig
from architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from architectures.backbones.mamba import Mamba, MambaConfig
from architectures.backbones.moe import MoE, MoEConfig
from architectures.backbones.s4 import S4, S4Config
from experiments.training.ema import averaged, update_average
from experiments.training.lr_schedule import decayed_steps, learning_rate_factor, set_learning_rate
from experiments.training.optimizer import OptimizerConfig, make_optimizer, parameter_groups

BACKBONES = {
    "decoder": (Decoder, DecoderConfig(d_model=16, tie_embeddings=True)),
    "moe": (MoE, MoEConfig(d_model=16)),
    "encoder": (Encoder, EncoderConfig(d_model=16)),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig(d_model=16)),
    "mamba": (Mamba, MambaConfig(d_model=16)),
    "s4": (S4, S4Config(d_model=16)),
}
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
    for parameter, group in named_groups(model, OptimizerConfig(weight_decay=0.1)).items():
        expected_spared = parameter in norms or parameter.endswith(UNDECAYED)
        assert group["weight_decay"] == (0.0 if expected_spared else 0.1), parameter
        spared += expected_spared
    assert spared >= len(norms) > 0


def test_state_space_dynamics_learn_no_faster_than_their_cap():
    model = build("s4")
    dynamics = ("log_dt_D", "log_A_real_DM", "A_imag_DM")
    for rate in (3e-3, 1e-4):
        for name, group in named_groups(model, OptimizerConfig(learning_rate=rate)).items():
            assert group["peak"] == (min(rate, 1e-3) if name.endswith(dynamics) else rate), name


def test_the_schedule_scales_every_group():
    config = OptimizerConfig(learning_rate=4e-3, schedule="constant", warmup_fraction=0.1)
    optimizer = make_optimizer(build("s4"), config)
    assert set_learning_rate(optimizer, 4, 100, config) == pytest.approx(2e-3)
    assert {round(group["lr"], 9) for group in optimizer.param_groups} == {2e-3, 5e-4}


def test_warm_up_is_linear():
    for schedule in ("cosine", "wsd", "constant"):
        config = OptimizerConfig(schedule=schedule, warmup_fraction=0.1)
        rates = [learning_rate_factor(step, 200, config) for step in range(20)]
        assert rates == pytest.approx([(step + 1) / 20 for step in range(20)])


def test_cosine_falls_to_its_final_share():
    config = OptimizerConfig(schedule="cosine", warmup_fraction=0.1, min_lr_ratio=0.2)
    rates = [learning_rate_factor(step, 200, config) for step in range(200)]
    assert rates[199] == pytest.approx(0.2)
    assert rates[109] == pytest.approx(0.6)  # half way: the mean of 1 and 0.2
    assert rates[64] == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert all(a >= b for a, b in pairwise(rates[19:]))


def test_wsd_is_stable_then_falls_linearly():
    config = OptimizerConfig(schedule="wsd", warmup_fraction=0.1, decay_fraction=0.2, min_lr_ratio=0.1)
    rates = [learning_rate_factor(step, 200, config) for step in range(200)]
    assert rates[19:160] == [1.0] * 141
    assert rates[160:] == pytest.approx([1 - 0.9 * (step + 1) / 40 for step in range(40)])


def test_wsd_decays_for_every_budget_as_a_run_of_that_budget_would():
    config = OptimizerConfig(
        schedule="wsd",
        warmup_fraction=0.0,
        decay_fraction=0.2,
        min_lr_ratio=0.1,
        decay_end_fractions=[0.25, 0.5, 1.0],
    )
    rates = [learning_rate_factor(step, 400, config) for step in range(400)]
    for begin, end in ((0, 100), (100, 200), (200, 400)):
        alone = OptimizerConfig(schedule="wsd", warmup_fraction=0.0, decay_fraction=0.2, min_lr_ratio=0.1)
        assert rates[begin:end] == pytest.approx(
            [learning_rate_factor(step, end, alone) for step in range(begin, end)]
        )
        assert rates[end - 1] == pytest.approx(0.1)
    assert decayed_steps(400, config) == [100, 200, 400]


@pytest.mark.parametrize("ends", [[], [0.5], [0.5, 0.5, 1.0], [1.0, 0.5], [0.0, 1.0], [0.5, 2.0]])
def test_decays_end_at_rising_shares(ends):
    with pytest.raises(ValueError, match="decay_end_fractions"):
        OptimizerConfig(schedule="wsd", decay_end_fractions=ends)


def test_only_wsd_decays_more_than_once():
    with pytest.raises(ValueError, match="only schedule=wsd"):
        OptimizerConfig(decay_end_fractions=[0.5, 1.0])


def test_constant_stays():
    config = OptimizerConfig(schedule="constant", warmup_fraction=0.0)
    assert [learning_rate_factor(step, 50, config) for step in range(50)] == [1.0] * 50


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
@pytest.mark.parametrize("total", [1, 2, 3, 7])
def test_short_runs_have_a_rate_at_every_step(schedule, total):
    for warmup, decay in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0)):
        config = OptimizerConfig(schedule=schedule, warmup_fraction=warmup, decay_fraction=decay)
        assert all(0 < learning_rate_factor(step, total, config) <= 1 for step in range(total))


def test_a_step_is_adamw_by_hand():
    """Loshchilov and Hutter 2019, algorithm 2, in float64, with the schedule and the groups."""
    config = OptimizerConfig(
        learning_rate=0.05, betas=[0.8, 0.9], eps=1e-6, weight_decay=0.3, warmup_fraction=0.4
    )
    torch.manual_seed(0)
    model = nn.Linear(5, 4, dtype=torch.float64)
    inputs = torch.randn(8, 5, dtype=torch.float64)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(w) for name, w in weights.items()}
    second = {name: torch.zeros_like(w) for name, w in weights.items()}
    optimizer = make_optimizer(model, config)
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
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**settings)


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
        OptimizerConfig(ema=decay)
