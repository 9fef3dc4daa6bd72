"""Masked diffusion by every kind of bidirectional backbone: training, the bound, writing, filling in."""

import math
from pathlib import Path

import pytest

from archbench.experiments.config.hydra_overrides import literal
from archbench.experiments.generate import generate
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

ARMS = {
    "encoder of experts": ("backbone.feedforwards=[dense,experts]",),
    "masked_diffusion_moe": ("backbone.experts.choice=expert",),
    "s4_bidirectional": (),
    "mamba_bidirectional": (),
    "mamba2_bidirectional": ("backbone.directions=separate",),
    "hybrid_bidirectional": ("backbone.feedforwards=[dense,experts]", "backbone.layers=[mamba,attention]"),
}


def said(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> str:
    capsys.readouterr()
    generate(commands.composed_with("generate", {"run": str(run)}, *literal([*words]), "device=cpu"))
    return capsys.readouterr().out


@pytest.mark.parametrize("arm", ARMS)
def test_any_backbone_that_sees_both_sides_learns_to_fill_in(
    arm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = commands.train(
        f"backbone={arm.split()[0]}",
        "objective=masked_diffusion",
        *ARMS[arm],
        *commands.SHORT_TEXT,
        *commands.TINY,
        "budget.tokens=24000",
        "budget.batch_size=8",
        "optimizer.learning_rate=1e-2",
        "trainer.log_every=1",
        f"runs={tmp_path}",
    )
    losses = [row["loss"] for row in commands.rows(folder) if row["kind"] == "train"]
    first, last = (sum(part) / len(part) for part in (losses[:8], losses[-8:]))
    assert last < 0.85 * first
    bits, error = commands.result(folder)["metrics"]
    assert (bits["name"], bits["likelihood"]) == ("bits_per_byte", "bound")
    assert 1 < bits["value"] < math.log2(256)
    assert 0 < error["value"] < 3

    for guidance in (0, 2):
        words = ("prompt=['def', 'a']", "max_tokens=8", "filling.steps=4", f"filling.guidance={guidance}")
        written = said(capsys, folder, *words, "stop=[]")
        assert "def" in written
        assert written.count(" of 2 ---") == 2
    filled = said(capsys, folder, "prompt=a_c_e", "blank=_", "stop=[]")
    assert filled[0] == "a"
    assert filled.rstrip("\n").endswith("e")


@pytest.mark.parametrize("backbone", ["mamba_bidirectional", "mamba2_bidirectional", "hybrid_bidirectional"])
def test_what_only_other_backbones_can_is_refused(backbone: str) -> None:
    words = (f"backbone={backbone}", "task=text")
    with pytest.raises(ConfigError, match="time_embedding"):
        commands.settings(*words, "objective=masked_diffusion", "+backbone.time_embedding=true")
    with pytest.raises(ConfigError, match="objective=causal_lm needs a causal backbone"):
        commands.settings(*words, "objective=causal_lm")
    with pytest.raises(ConfigError, match="directions='both' must be one of tied, separate"):
        commands.settings(*words, "backbone.directions=both")
