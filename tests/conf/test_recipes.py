"""Scales have published shapes, and every recipe composes, is planned, and runs in miniature."""

from __future__ import annotations

from pathlib import Path

import pytest

from archbench.experiments.config import CONF
from archbench.experiments.run.estimate.resources import GIB, estimate
from archbench.experiments.run.estimate.stand_in import with_stand_in
from archbench.experiments.run.plan import plan
from tests.backbones import SOLVED
from tests.experiments import commands
from tests.tiers import fast_only

RECIPES = sorted(path.stem for path in (CONF / "study" / "recipe").glob("*.yaml"))
SHAPES = {  # width, layers, heads: GPT-3 (arXiv 2005.14165, table 2.1), Llama 2 7B (arXiv 2307.09288)
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 16),
    "1_3b": (2048, 24, 16),  # table 2.1 says 24 heads of 128 beside a width of 2,048
    "7b": (4096, 32, 32),
}
RATES = {"125m": 6e-4, "350m": 3e-4, "760m": 2.5e-4, "1_3b": 2e-4, "7b": 1.2e-4}
FAMILIES = [name for name in SOLVED if name != "s4_listops"]  # which reads classes, and no text
MINIATURE = (
    "device=cpu",
    "scale.targets={flops: 900000, total: 1000}",
    "scale.depth=2",
    "scale.mixer_depth=2",
    "task.sequence_length=64",
    "task.source=embedded",
    "task.dataset=null",
    "task.dataset_config=null",
    "task.streaming=false",
    "budget.batch_tokens=512",
    "budget.micro_batch_size=4",
    "trainer.validation_examples=8",
    "trainer.test_examples=8",
)


@pytest.mark.parametrize("scale", SHAPES)
def test_a_decoder_has_the_published_shape(scale: str) -> None:
    found = plan(commands.settings(f"scale={scale}", "device=cpu")).cost
    shape = found.setup
    assert (shape.d_model, shape.num_layers, shape.num_heads) == SHAPES[scale]
    width, layers, _ = SHAPES[scale]
    if scale == "7b":
        assert found.parameters.body == 6_476_271_616  # of Llama 2: 6,738,415,616 less both tables
    else:
        assert found.parameters.body == pytest.approx(12 * layers * width**2, rel=0.002)
    assert abs(found.matched.residual) < 0.002


@pytest.mark.parametrize("backbone", fast_only(FAMILIES, ["mamba", "moe"]))
@pytest.mark.parametrize("scale", fast_only(list(SHAPES), ["125m"]))
def test_every_family_reaches_every_scale(scale: str, backbone: str) -> None:
    matched = plan(commands.settings(f"scale={scale}", f"backbone={backbone}", "device=cpu")).matched
    assert abs(matched.residual) <= 0.01


@pytest.mark.parametrize("recipe", SHAPES)
def test_a_recipe_is_planned(recipe: str) -> None:
    settings, stands_in = with_stand_in(commands.settings(f"study=recipe/{recipe}"))
    assert stands_in
    planned = plan(settings)
    assert planned.cost.setup.d_model == SHAPES[recipe][0]
    assert settings.optimizer.learning_rate == RATES[recipe]
    total = planned.cost.parameters.total
    assert settings.budget.tokens == pytest.approx(20 * total, rel=0.01)
    assert settings.budget.batch_size % settings.parallel.processes == 0
    found = estimate(settings, planned)
    assert found.peak is not None
    assert settings.device.memory_gib is not None
    assert found.peak < 0.8 * settings.device.memory_gib * GIB
    assert found.gpu_hours is not None
    flops = planned.cost.planned.flops
    assert found.gpu_hours == pytest.approx(flops / (0.4 * 989e12) / 3600)


def test_every_recipe_is_tried_here() -> None:
    assert set(RECIPES) == set(SHAPES)
    assert {path.stem for path in (CONF / "scale").glob("*.yaml")} >= set(SHAPES)


@pytest.mark.parametrize("recipe", fast_only(RECIPES, ["125m"]))
@pytest.mark.parametrize("backbone", fast_only(["decoder", "mamba2", "moe", "masked_diffusion"], ["decoder"]))
def test_a_recipe_runs_in_miniature(recipe: str, backbone: str, tmp_path: Path) -> None:
    words = (f"study=recipe/{recipe}", f"backbone={backbone}", f"runs={tmp_path}", *MINIATURE)
    settings = commands.settings(*words)
    assert (settings.budget.tokens, settings.budget.batch_size) == (20_000, 8)
    found = commands.result(commands.train(*words))
    assert found["status"] == "complete", found["message"]
    assert found["training"]["tokens"] == 39 * 8 * 64


@pytest.mark.parametrize("device", ["h100", "h200", "a100"])
def test_a_device_states_peak_and_memory(device: str) -> None:
    settings = commands.settings(f"device={device}", "task=recall")
    assert settings.device.precision == "bf16"
    assert settings.device.peak_flops in (312e12, 989e12)
    assert settings.device.memory_gib in (79, 139)
