"""Linear attention and delta rules against other implementations, and against their own special cases.

Shapes: B batch, T length, D d_model, H heads.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.qwen3_next import modeling_qwen3_next as oracle
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

from archbench.architectures.layers.context import Context
from archbench.architectures.mixers.deltanet import DeltaConfig, DeltaRule
from archbench.architectures.mixers.deltaproduct import HouseholderConfig, delta_product
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig, GatedDeltaRule
from archbench.architectures.mixers.kda import KimiDeltaConfig, KimiDeltaRule
from tests.architectures.conformance import enliven


def whole(x_BTD: torch.Tensor) -> Context:
    return Context.whole(x_BTD[..., 0], None, None)


@pytest.mark.parametrize("scan", ["torch", "reference"])
def test_gated_deltanet_is_that_of_the_transformers_library(scan):
    """The layer of Qwen3-Next, whose projections are ordered by head; in float32, as it computes there.

    The epsilon is large, so that the norm of a small output does not magnify its rounding; decays
    are weak, since differences of their cumulative sums lose digits there.
    """
    config = Qwen3NextConfig(
        hidden_size=32,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=6,
        linear_value_head_dim=12,
        linear_conv_kernel_dim=3,
        rms_norm_eps=0.01,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = enliven(oracle.Qwen3NextGatedDeltaNet(config, 0).eval())
    with torch.no_grad():
        theirs.A_log.sub_(3.0)
    ours = GatedDeltaRule(32, GatedDeltaConfig(num_heads=4, conv_width=3, scan=scan), norm_eps=0.01)
    projections_HED = theirs.in_proj_qkvz.weight.unflatten(0, (4, -1))
    q, k, v, z = (part.flatten(0, 1) for part in projections_HED.split([6, 6, 12, 12], dim=1))
    beta, dt = theirs.in_proj_ba.weight.unflatten(0, (4, 2)).unbind(1)
    ours.load_state_dict(
        {
            "qkv.weight": torch.cat([q, k, v]),
            "convolution.weight_CK": theirs.conv1d.weight[:, 0],
            "gate.weight": z,
            "beta.weight": beta,
            "dt.weight": dt,
            "dt_bias_H": theirs.dt_bias,
            "A_log_H": theirs.A_log,
            "norm.weight": theirs.norm.weight,
            "out.weight": theirs.out_proj.weight,
        }
    )
    x_BTD = torch.randn(2, 83, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(x_BTD, whole(x_BTD)), theirs(x_BTD), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scan", ["torch", "reference"])
def test_kda_is_that_of_the_transformers_library(scan):
    """The layer of Kimi Linear, whose queries, keys and values are projected one by one; in float32."""
    config = KimiLinearConfig(
        hidden_size=32,
        linear_num_heads=4,
        linear_head_dim=6,
        linear_conv_kernel_dim=3,
        rms_norm_eps=0.01,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs: Any = enliven(KimiLinearDeltaAttention(config, 0).eval())
    gate = theirs.forget_gate
    with torch.no_grad():  # what the library leaves to the initialisation of the whole model
        gate.A_log.copy_(torch.linspace(-3.0, 1.0, 4).view(1, 1, 4, 1))
        gate.dt_bias.copy_(torch.linspace(-2.0, 1.0, 24))
    settings = KimiDeltaConfig(num_heads=4, expand_k=0.75, expand_v=0.75, conv_width=3, scan=scan)
    ours = KimiDeltaRule(32, settings, norm_eps=0.01)
    ours.load_state_dict(
        {
            "qkv.weight": torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]),
            "convolution.weight_CK": theirs.conv1d.weight[:, 0],
            "gate.0.weight": theirs.g_a_proj.weight,
            "gate.1.weight": theirs.g_b_proj.weight,
            "beta.weight": theirs.b_proj.weight,
            "dt.0.weight": gate.f_a_proj.weight,
            "dt.1.weight": gate.f_b_proj.weight,
            "dt_bias_C": gate.dt_bias,
            "A_log_H": gate.A_log.flatten(),
            "norm.weight": theirs.o_norm.weight,
            "out.weight": theirs.o_proj.weight,
        }
    )
    x_BTD = torch.randn(2, 83, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(x_BTD, whole(x_BTD)), theirs(x_BTD), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scan", ["torch", "reference"])
def test_kda_with_equal_decays_in_a_head_is_gated_deltanet(scan):
    """But for the output gates, which are left out."""
    sizes = {"num_heads": 2, "expand_k": 1.0, "expand_v": 1.0, "output_gate": False, "scan": scan}
    torch.manual_seed(0)
    by_channel = KimiDeltaRule(24, KimiDeltaConfig(decay_rank=2, **sizes))
    by_channel.initialise(1)
    enliven(by_channel).double()
    by_head = GatedDeltaRule(24, GatedDeltaConfig(**sizes)).double()
    with torch.no_grad():
        by_channel.dt[1].weight.copy_(torch.eye(2).repeat_interleave(12, dim=0))
        by_channel.dt_bias_C.copy_(by_channel.dt_bias_C[::12].repeat_interleave(12))
    weights = by_channel.state_dict()
    weights["dt.weight"] = weights.pop("dt.0.weight")
    weights["dt_bias_H"] = weights.pop("dt_bias_C")[::12]
    del weights["dt.1.weight"]
    by_head.load_state_dict(weights)
    x_BTD = torch.randn(2, 150, 24, dtype=torch.float64)
    results = []
    for made in (by_channel, by_head):
        y_BTD, after = made.read(x_BTD, None, whole(x_BTD))
        results.append(
            [y_BTD, after["memory"], torch.autograd.grad(y_BTD.square().sum(), made.qkv.weight)[0]]
        )
    torch.testing.assert_close(*results, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("forget_gate", [False, True])
@pytest.mark.parametrize("scan", ["torch", "reference"])
def test_delta_product_of_one_update_is_deltanet(scan, forget_gate):
    """The same parameters give the same output to the last bit."""
    sizes = {"num_heads": 2, "expand_k": 1.0, "output_gate": True, "negative_eigenvalues": True, "scan": scan}
    one = HouseholderConfig(num_householder=1, forget_gate=forget_gate, **sizes)
    torch.manual_seed(0)
    product = delta_product(24, one)
    product.initialise(1)
    enliven(product)
    config = GatedDeltaConfig(**sizes) if forget_gate else DeltaConfig(expand_v=1.5, **sizes)
    deltanet = (GatedDeltaRule if forget_gate else DeltaRule)(24, config)
    deltanet.load_state_dict(product.state_dict())
    x_BTD = torch.randn(2, 83, 24)
    assert torch.equal(product(x_BTD, whole(x_BTD)), deltanet(x_BTD, whole(x_BTD)))
    assert product.flops(83) == deltanet.flops(83)
    assert product.state_bytes(83, 4) == deltanet.state_bytes(83, 4)


@pytest.mark.parametrize("scan", ["torch", "reference"])
def test_delta_product_multiplies_householder_matrices(scan):
    """Tokens by explicit matrices, in the order of the keys in the projection: all heads of the first update,
    then those of the second."""
    config = HouseholderConfig(
        num_heads=2, num_householder=2, conv_width=0, output_gate=False, expand_k=1.0, expand_v=1.0, scan=scan
    )
    torch.manual_seed(0)
    made = delta_product(8, config)
    made.initialise(1)
    enliven(made).double()
    x_BTD = torch.randn(1, 70, 8, dtype=torch.float64)
    _, after = made.read(x_BTD, None, whole(x_BTD))
    keys_T2HK = F.normalize(made.qkv(x_BTD)[0, :, 8:24].unflatten(-1, (2, 2, 4)), dim=-1)
    values_T2HV = made.qkv(x_BTD)[0, :, 24:].unflatten(-1, (2, 2, 4))
    beta_T2H = 2 * made.beta(x_BTD)[0].sigmoid().unflatten(-1, (2, 2))
    decay_TH = made.log_decay(x_BTD)[0].exp()
    eye = torch.eye(4, dtype=torch.float64)
    for h in range(2):
        memory = torch.zeros(4, 4, dtype=torch.float64)
        for t in range(70):
            (k1, k2), (v1, v2), (b1, b2) = keys_T2HK[t, :, h], values_T2HV[t, :, h], beta_T2H[t, :, h]
            first, second = eye - b1 * k1.outer(k1), eye - b2 * k2.outer(k2)
            memory = decay_TH[t, h] * second @ first @ memory
            memory = memory + second @ (b1 * k1.outer(v1)) + b2 * k2.outer(v2)
        torch.testing.assert_close(after["memory"][0, h], memory, atol=1e-5, rtol=1e-5)
