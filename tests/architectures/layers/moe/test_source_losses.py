"""Losses of the presets' routers against those of their sources: per layer, per token and per sequence.

The training loss divides what a router returns by the sequences of the batch.
Shapes: L layers, B batch, T length, X experts, K experts for each token.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from transformers.models.jamba import modeling_jamba
from transformers.models.mixtral import modeling_mixtral

from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.router import Router, router_losses
from tests.architectures.backbones.test_presets import preset

B, T = 3, 20


def experts_of(name: str) -> tuple[ExpertsConfig, int]:
    """The experts of a preset, and how many of its layers have them."""
    _, config = preset(name)
    layers = config.feedforward_types  # type: ignore[attr-defined]
    return config.experts, layers.count("experts")  # type: ignore[attr-defined]


def logits(X: int, seed: int = 0) -> Tensor:
    """Logits (B, T, X) of a router that prefers some experts."""
    generator = torch.Generator().manual_seed(seed)
    noise_BTX = torch.randn(B, T, X, dtype=torch.float64, generator=generator)
    return noise_BTX + torch.linspace(0, 2, X, dtype=torch.float64)


def losses(logits_BTX: Tensor, config: ExpertsConfig) -> dict[str, float]:
    """Return the loss that a layer with these logits adds in training."""
    router = Router(logits_BTX.shape[-1], config).double()
    with torch.no_grad():
        router.weight.copy_(torch.eye(logits_BTX.shape[-1]))
    found = router_losses(router.route(logits_BTX, None), None, config)
    return {name: value.item() / len(logits_BTX) for name, value in found.items()}


def test_olmoe_s_is_that_of_megablocks() -> None:
    """``batched_load_balancing_loss``: 0.01 X / (L tokens K) times counts times mean scores, all layers."""
    config, L = experts_of("olmoe_1b_7b")
    X, K, tokens = config.num_experts, config.experts_per_token, B * T
    theirs = ours = 0.0
    for layer in range(L):
        logits_BTX = logits(X, layer)
        score_NX = logits_BTX.flatten(0, 1).softmax(-1)
        count_X = score_NX.topk(K).indices.flatten().bincount(minlength=X).double()
        theirs += X * 0.01 / (L * tokens * K) * (count_X @ score_NX.mean(0)).item()
        ours += losses(logits_BTX, config)["balance"]
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert ours > 1.05 * 0.01  # not at balance


def test_olmoe_s_z_loss_is_that_of_megablocks() -> None:
    """``batched_router_zloss``, of one router: 0.001 times the mean square of the log-sum-exp of a token."""
    config, _ = experts_of("olmoe_1b_7b")
    logits_BTX = logits(config.num_experts)
    expected = 0.001 * logits_BTX.flatten(0, 1).logsumexp(-1).square().mean().item()
    assert losses(logits_BTX, config)["router_z"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "coefficient", "module"),
    [("mixtral_8x7b", 0.02, modeling_mixtral), ("jamba_v0_1", 0.001, modeling_jamba)],
)
def test_mixtral_s_and_jamba_s_are_that_of_transformers(
    name: str, coefficient: float, module: object
) -> None:
    """Where all layers route alike: theirs takes the layers as one, ours adds them up."""
    config, L = experts_of(name)
    logits_BTX = logits(config.num_experts)
    theirs = module.load_balancing_loss_func(  # type: ignore[attr-defined]
        (logits_BTX.flatten(0, 1),) * L, config.num_experts, config.experts_per_token
    )
    ours = L * losses(logits_BTX, config)["balance"]
    assert ours == pytest.approx(coefficient * theirs.item(), rel=1e-6)  # theirs is float32


@pytest.mark.parametrize("name", ["deepseek_v3", "moe_deepseek"])
def test_deepseek_s_is_equations_17_to_20(name: str) -> None:
    """Of a layer: the mean over sequences of 0.0001 sum f P, f = X / (K T) times the top K affinities."""
    config, _ = experts_of(name)
    X, K = config.num_experts, config.experts_per_token
    logits_BTX = logits(X)
    affinity_BTX = logits_BTX.sigmoid()
    expected = 0.0
    for affinity_TX in affinity_BTX:
        f_X = X / (K * T) * affinity_TX.topk(K).indices.flatten().bincount(minlength=X).double()
        P_X = (affinity_TX / affinity_TX.sum(-1, keepdim=True)).mean(0)
        expected += 0.0001 * (f_X * P_X).sum().item() / B
    assert losses(logits_BTX, config)["balance"] == pytest.approx(expected, rel=1e-9)
    assert config.bias_rate == 0.001  # section 4.2: the speed of the bias


def test_switch_s_is_equations_4_to_6() -> None:
    """Of each layer: 0.01 X sum f P over the batch, and over each sequence by default."""
    config, _ = experts_of("switch")
    X = config.num_experts
    logits_BTX = logits(X)

    def expected(score_NX: Tensor) -> float:
        f_X = score_NX.argmax(-1).bincount(minlength=X).double() / len(score_NX)
        return 0.01 * X * (f_X * score_NX.mean(0)).sum().item()

    score_BTX = logits_BTX.softmax(-1)
    by_batch = dataclasses.replace(config, balance="batch")
    assert losses(logits_BTX, by_batch)["balance"] == pytest.approx(
        expected(score_BTX.flatten(0, 1)), rel=1e-9
    )
    mean = sum(map(expected, score_BTX)) / B
    assert losses(logits_BTX, config)["balance"] == pytest.approx(mean, rel=1e-9)
