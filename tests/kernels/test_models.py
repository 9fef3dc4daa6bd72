"""Complete models train with the kernels of mamba-ssm and fla as with our PyTorch code."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from archbench.architectures.kernels import fla
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build_model
from tests.experiments import commands
from tests.kernels.differences import assert_close

pytestmark = pytest.mark.kernels

RUN = ("scale=given", "scale.mixer_depth=2", "scale.depth=2", "task=recall", "budget=smoke", "device=cpu")
MODELS = {
    "mamba2": ("backbone=mamba2", "backbone.d_model=16", "backbone.num_heads=2", "backbone.d_state=16"),
    "hybrid": (
        "backbone=hybrid", "backbone.d_model=16", "backbone.mamba2.num_heads=2", "backbone.mamba2.d_state=16",
        "backbone.layers=[mamba2,attention]",
    ),
}  # fmt: skip


LINEAR = ("gla", "deltanet", "gated_deltanet", "deltaproduct", "kda", "rwkv7", "mamba2")
"""Mixers with kernels of fla."""


def losses(path: str, *overrides: str, steps: int = 10) -> list[float]:
    """Train on random tokens; return the loss of each step."""
    settings = commands.settings(*overrides, *RUN)
    model = build_model(settings, plan(settings))
    assert path in model.kernels().values()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(steps):
        tokens_BT = torch.randint(model.vocab_size, (2, 17), generator=generator)
        logits_BTV = model(tokens_BT[:, :-1]).logits_BTV
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


@pytest.mark.parametrize("model", MODELS)
def test_ten_steps_are_those_of_the_torch_path(model: str, mamba_ssm: str) -> None:
    scan = "backbone.mamba2.scan" if model == "hybrid" else "backbone.scan"
    by_kernel, by_torch = (losses(path, *MODELS[model], f"{scan}={path}") for path in ("mamba_ssm", "torch"))
    assert by_kernel[-1] != by_kernel[0]
    assert_close(
        f"mamba-ssm {model}, ten training steps", *map(torch.tensor, (by_kernel, by_torch)), tolerance=1e-4
    )


def test_a_hybrid_of_all_linear_mixers_trains_by_fla_as_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "DEVICES", ("cpu",))
    hybrid = ["backbone=hybrid", "backbone.d_model=32", f"backbone.layers=[{','.join(LINEAR)},attention]"]
    hybrid += [f"backbone.{name}.num_heads=1" for name in LINEAR] + ["backbone.mamba2.d_state=16"]
    by_kernel, by_torch = (
        losses(path, *hybrid, *(f"backbone.{name}.scan={path}" for name in LINEAR), steps=3)
        for path in ("fla", "torch")
    )
    assert by_kernel[-1] != by_kernel[0]
    assert_close(
        "fla hybrid, three training steps", *map(torch.tensor, (by_kernel, by_torch)), tolerance=1e-4
    )
