"""Width transfer: what is measured inside a model does not grow with its width, as Yang et al. check it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build_model
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.training import mup
from archbench.experiments.training.optimizers.adamw import AdamW
from archbench.experiments.training.optimizers.parameter_groups import parameter_groups
from tests.experiments import commands

WIDTHS = (64, 128, 256)
BASE = 64
VOCABULARY = 32


def build(cls: type[Backbone], config: Any, width: int, base: int | None) -> Backbone:
    """A model at a width, by muP where there is a base width."""
    torch.manual_seed(0)
    config = mup.at_width(config, width)
    if base is not None:
        config = mup.scaled_attention(config, base)
    model = cls(config, vocab_size=VOCABULARY, max_length=16)
    if base is not None:
        mup.parametrise(model, cls(mup.at_width(config, base), vocab_size=VOCABULARY, max_length=16))
    return model


def coordinates(model: Backbone, steps: int = 4) -> dict[str, float]:
    """Mean size of what each block gives, and of the logits, after some steps of Adam.

    The head starts at zero (appendix D.2 of the paper): what is left of a random one shrinks with the width.
    """
    nn.init.zeros_(model.head.weight)  # type: ignore[arg-type]
    config = AdamW(learning_rate=0.01, weight_decay=0.0)
    optimizer = config.build(model)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"]
    tokens_BT = torch.randint(VOCABULARY, (4, 17), generator=torch.Generator().manual_seed(0))
    found: dict[str, float] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            found[name] = output[0].detach().abs().mean().item()

        return hook

    for number, block in enumerate(model.blocks):  # type: ignore[arg-type]
        block.register_forward_hook(note(f"block {number}"))
    for _ in range(steps):
        optimizer.zero_grad()
        logits_BTV = model(tokens_BT[:, :-1]).logits_BTV
        nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten()).backward()
        optimizer.step()
    return found | {"logits": model(tokens_BT[:, :-1]).logits_BTV.detach().abs().mean().item()}


def slopes(cls: type[Backbone], config: Any, base: int | None) -> dict[str, float]:
    """The exponent by which each coordinate grows with the width."""
    measured = [coordinates(build(cls, config, width, base)) for width in WIDTHS]
    return {
        name: np.polyfit(np.log(WIDTHS), np.log([found[name] for found in measured]), 1)[0]
        for name in measured[0]
    }


FAMILIES = [(Decoder, DecoderConfig()), (Mamba, MambaConfig())]
MORE = [(S4, S4Config()), (MoE, MoEConfig())]


@pytest.mark.parametrize(
    ("cls", "config"), [*FAMILIES, *(pytest.param(*more, marks=pytest.mark.full) for more in MORE)]
)
def test_activations_do_not_grow_with_the_width(cls: type[Backbone], config: Any) -> None:
    """The coordinate check. Without muP the same rate moves wide models further at each step."""
    transferred, plain = slopes(cls, config, BASE), slopes(cls, config, None)
    print({k: (round(transferred[k], 3), round(plain[k], 3)) for k in plain})
    assert all(abs(slope) < 0.2 for slope in transferred.values()), transferred
    assert all(slope > 0.3 for slope in plain.values()), plain


def test_rates_decay_and_readouts_by_the_table() -> None:
    model, plain = (build(Decoder, DecoderConfig(), 128, base) for base in (32, None))
    config = AdamW(learning_rate=0.01, weight_decay=0.1)
    peaks, decays = {}, {}
    for group in parameter_groups(model, config):
        for parameter in group["params"]:  # type: ignore[attr-defined]
            peaks[id(parameter)], decays[id(parameter)] = group["peak"], group["weight_decay"]
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and not name.startswith("embedding")
        if name.endswith("down.weight"):
            hidden = DecoderConfig().feedforward.standard_width
            factor = hidden(32) / hidden(128)
        else:
            factor = 32 / 128 if matrix else 1.0
        assert peaks[id(parameter)] == pytest.approx(0.01 * factor), name
        # A step decays by rate times decay: as much at every width.
        assert peaks[id(parameter)] * decays[id(parameter)] == pytest.approx(0.001 * (parameter.ndim == 2)), (
            name
        )
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        expected = theirs * 0.5 if name == "head.weight" else theirs  # the root of 32 / 128
        torch.testing.assert_close(ours, expected)


def test_attention_scores_are_equal_at_the_base_width_and_fall_by_the_head_dim() -> None:
    at = {w: mup.scaled_attention(DecoderConfig(d_model=w), 64).attention.scale for w in (64, 256)}
    assert at == {64: pytest.approx(16**-0.5), 256: pytest.approx(16**-0.5 / 4)}
    fixed = DecoderConfig(d_model=256, attention=AttentionConfig(head_dim=16))
    assert mup.scaled_attention(fixed, 64) is fixed
    assert mup.scaled_attention(S4Config(d_model=64), 32) == S4Config(d_model=64)


def test_at_the_base_width_nothing_changes() -> None:
    for cls, config in (*FAMILIES, *MORE):
        ours, plain = (build(cls, config, BASE, base) for base in (BASE, None))
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one, other)
        groups = [parameter_groups(model, AdamW()) for model in (ours, plain)]
        for one, other in itertools.zip_longest(*groups):
            assert (one["peak"], one["weight_decay"]) == (other["peak"], other["weight_decay"])


def test_a_router_is_a_readout() -> None:
    model = build(MoE, MoEConfig(), 128, 32)
    routers = {name: p for name, p in model.named_parameters() if "router" in name and p.ndim == 2}
    assert routers
    for name, parameter in routers.items():
        assert parameter.learning_rate_factor == 0.25, name  # type: ignore[attr-defined]
        assert parameter.std().item() == pytest.approx(0.5 * 128**-0.5, rel=0.2), name


def test_a_table_that_is_also_the_head_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the head is the token table.*tie_embeddings=false"):
        build(Decoder, DecoderConfig(tie_embeddings=True), 64, 32)


SMALL = (*commands.RECALL, "backbone=decoder", "scale=given", "backbone.d_model=64")


def test_a_run_is_built_by_it_and_keeps_it_in_its_record() -> None:
    settings = commands.settings(*SMALL, "optimizer.mup_base_width=16")
    planned = plan(settings)
    assert planned.matched.config.attention.scale == pytest.approx(4**-0.5 / 4)  # type: ignore[attr-defined]
    assert planned.cost.widths["attention"]["scale"] == planned.matched.config.attention.scale  # type: ignore[attr-defined]
    model = build_model(settings, planned)
    factors = {getattr(p, "learning_rate_factor", 1.0) for p in model.parameters()}
    assert min(factors) == 0.25


def test_a_base_width_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="mup_base_width=0 must be positive"):
        commands.settings(*SMALL, "optimizer.mup_base_width=0")
    settings = commands.settings(*SMALL, "optimizer.mup_base_width=30")
    with pytest.raises(
        ConfigError, match=r"optimizer.mup_base_width=30: d_model=30 must be a positive multiple"
    ):
        build_model(settings, plan(settings))
