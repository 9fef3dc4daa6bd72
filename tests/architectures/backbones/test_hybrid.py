"""Hybrids: patterns of layers, mixers side by side, stacks drawn at random.

Shapes: B batch, T length, V vocabulary.
"""

import dataclasses
import importlib
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.hybrid import ATTENTION, RECURRENT, Hybrid, HybridConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.backbones.transformer import FEEDFORWARDS
from archbench.architectures.fast_paths import path, problem
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.block import BlockConfig, Mixer
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.layers.ssm.s4_config import S4LayerConfig
from archbench.architectures.mixers.deltanet import DeltaConfig
from archbench.architectures.mixers.deltaproduct import HouseholderConfig
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig
from archbench.architectures.mixers.gla import GatedLinearAttention, GatedLinearConfig
from archbench.architectures.mixers.kda import KimiDeltaConfig
from archbench.architectures.mixers.mamba import SelectiveConfig
from archbench.architectures.mixers.mamba2 import SSDConfig
from archbench.architectures.mixers.mamba3 import Mamba3Config
from archbench.architectures.mixers.mlstm import MLSTMConfig
from archbench.architectures.mixers.rwkv7 import RWKV7Config
from tests import ROOT
from tests.architectures.conformance import (
    check_batch_invariance,
    check_close,
    check_decoding,
    check_gradients,
    check_moved_rows,
    check_no_leak,
    check_packed,
    check_padding,
    check_prompts_together,
    enliven,
)
from tests.architectures.costs import check_flops, check_inactive, check_parameters, check_state_bytes, plain

VOCABULARY, LONGEST = 23, 64
DRAWS = range(20)
MIXERS = [*ATTENTION, *RECURRENT]


def draw(seed: int) -> HybridConfig:
    """Any mixers and feed-forwards in any order."""
    rng = random.Random(seed)
    latent = rng.random() < 0.2
    types = [name for name in MIXERS if not (latent and name == "local_attention")]
    joined = ["+".join(rng.sample(types, rng.choice([1, 1, 2, 3]))) for _ in range(rng.choice([2, 3, 4]))]
    ranks = LatentConfig(kv_rank=4, nope_dim=3, rope_dim=2, v_dim=3) if latent else LatentConfig()
    heads = None if latent else rng.choice([None, 2, 1])
    attention = AttentionConfig(
        num_heads=4,
        num_kv_heads=heads,
        head_dim=None if latent else 4,
        window=rng.choice([1, 3, 6]),
        latent=ranks,
        cache=rng.choice(["contiguous", "paged"]),
    )
    kinds = ["rope", "none"] if latent else ["rope", "none", "alibi", "learned"]
    placement = rng.choice(["pre", "pre", "post", "sandwich", "output"])
    scan = rng.choice(["torch", "reference"])
    return HybridConfig(
        d_model=rng.choice([8, 12]),
        num_layers=len(joined) + rng.choice([0, 1]),
        d_ff=rng.choice([None, 11]),
        tie_embeddings=rng.random() < 0.5,
        layers=joined,
        feedforwards=[rng.choice(["dense", "experts", "none"]) for _ in range(rng.choice([1, 2, 3]))],
        attention=attention,
        positions=PositionsConfig(kind=rng.choice(kinds)),
        block=BlockConfig(placement=placement, parallel=placement == "pre" and rng.random() < 0.3),
        experts=ExpertsConfig(
            num_experts=3,
            experts_per_token=rng.choice([1, 2]),
            d_ff=rng.choice([None, 7]),
            num_shared_experts=rng.choice([0, 1]),
            renormalise=rng.random() < 0.5,
        ),
        s4=S4LayerConfig(d_state=rng.choice([2, 6]), discretisation=rng.choice(["zoh", "bilinear"])),
        mamba=SelectiveConfig(d_state=3, d_inner=rng.choice([None, 9]), selection_norm=rng.random() < 0.5),
        mamba2=SSDConfig(
            num_heads=4,
            d_state=5,
            num_groups=rng.choice([1, 2]),
            chunk=rng.choice([4, 64]),
            norm=rng.choice(["after_gate", "before_gate", "none"]),
            scan=scan,
        ),
        mamba3=Mamba3Config(num_heads=4, d_state=6, mimo_rank=rng.choice([1, 2]), chunk=4, scan=scan),
        gla=GatedLinearConfig(num_heads=2, decay_rank=3, conv_width=rng.choice([0, 3]), scan=scan),
        deltanet=DeltaConfig(num_heads=2, scan=scan),
        gated_deltanet=GatedDeltaConfig(num_heads=2, negative_eigenvalues=rng.random() < 0.5, scan=scan),
        mlstm=MLSTMConfig(num_heads=2, gate_cap=rng.choice([None, 2.0]), scan=scan),
        rwkv7=RWKV7Config(value_residual=rng.random() < 0.7, decay_rank=rng.choice([None, 3]), scan=scan),
        kda=KimiDeltaConfig(num_heads=2, decay_rank=rng.choice([None, 3]), scan=scan),
        deltaproduct=HouseholderConfig(
            num_heads=2, num_householder=rng.choice([1, 2, 3]), forget_gate=rng.random() < 0.5, scan=scan
        ),
    )


def build(config: HybridConfig) -> Backbone:
    torch.manual_seed(0)
    return enliven(Hybrid(config, vocab_size=VOCABULARY, max_length=LONGEST).double()).eval()


@pytest.mark.parametrize("seed", DRAWS)
def test_a_hybrid_keeps_its_promises(seed: int) -> None:
    check_hybrid(draw(seed))


def check_hybrid(config: HybridConfig) -> None:
    model = build(config)
    check_padding(model, 13)
    check_batch_invariance(model, 13)
    check_decoding(model, 19)
    check_packed(model)
    check_prompts_together(model)
    check_moved_rows(model)
    check_state_bytes(model, 17)
    check_parameters(model, tied=config.tie_embeddings)
    if "local_attention" not in config.mixer_types:  # what is beyond every window has no gradient
        check_no_leak(model, 9)


def with_attention(mixer: str, **settings: Any) -> HybridConfig:
    """A layer of a mixer, by default with its default settings, and one of attention."""
    config = HybridConfig(layers=[mixer, "attention"], num_layers=2, **settings)
    return dataclasses.replace(config, d_model=config.width_multiple * -(-16 // config.width_multiple))


@pytest.mark.parametrize("canon", [None, "B"])
@pytest.mark.parametrize("mixer", RECURRENT)
def test_each_mixer_keeps_the_promises_of_a_hybrid(mixer: str, canon: str | None) -> None:
    config = with_attention(mixer, canon=canon)
    layer = build(with_attention(mixer)).get_submodule("blocks.0.mixer")
    assert isinstance(layer, Mixer)
    if canon is None or type(layer).canon_widths is not Mixer.canon_widths:
        check_hybrid(config)
        check_flops(build(plain(config)), 12)
    else:
        with pytest.raises(ValueError, match="position B is not defined"):
            build(config)


class TiedKeys(GatedLinearAttention):
    """Keys are one minus the decays, as in HGRN2 (Qin et al. 2024, arXiv 2404.07904)."""

    def __init__(self, d_model: int, config: GatedLinearConfig, *, norm_eps: float) -> None:
        super().__init__(d_model, config, norm_eps=norm_eps)
        self.decay = nn.Sequential()  # not used

    def keys_and_decay(self, x_BTD: Tensor, k_BTUHK: Tensor) -> tuple[Tensor, Tensor]:
        return (-k_BTUHK).sigmoid(), F.logsigmoid(k_BTUHK[:, :, 0])


def test_keys_may_depend_on_the_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECURRENT, "gla", SimpleNamespace(Config=GatedLinearConfig, make=TiedKeys))
    check_hybrid(with_attention("gla"))


def test_the_mixer_of_the_documentation_keeps_the_promises_of_a_hybrid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "how-to" / "backbone.md").read_text()
    code = re.search(r"```python\n(# architectures/mixers/mine\.py\n.*?)```", page, flags=re.DOTALL)
    assert code is not None
    (tmp_path / "mine_of_the_page.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("mine_of_the_page")
    monkeypatch.setitem(RECURRENT, "gla", module)
    config = with_attention("gla", gla=module.Config())
    check_hybrid(config)
    check_flops(build(plain(config)), 12)


def test_a_layer_type_that_is_never_built_is_named() -> None:
    cut = HybridConfig(layers=["mamba*3", "attention"], num_layers=2)
    assert len(cut.warnings) == 1
    assert "backbone.layers=[mamba*3,attention]: none of the 2 layers is attention" in cut.warnings[0]
    assert HybridConfig(layers=["mamba*3", "attention"], num_layers=4).warnings == []
    dense = HybridConfig(layers=["mamba"], feedforwards=["dense*2", "experts"], num_layers=2)
    assert "backbone.feedforwards=[dense*2,experts]: none of the 2 layers is experts" in dense.warnings[0]


@pytest.mark.parametrize("layers", [["mamba", "attention"], ["attention+mamba2"]], ids=",".join)
def test_a_token_leaves_the_experts_it_does_not_visit(layers: list[str]) -> None:
    experts = ExpertsConfig(num_experts=5, experts_per_token=2, num_shared_experts=1, renormalise=False)
    config = HybridConfig(
        d_model=8, d_ff=6, layers=layers, feedforwards=["dense", "experts"], experts=experts
    )
    assert build(config).parameters_by_part().inactive == 3 * 3 * 8 * 6
    check_inactive(build(config))


@pytest.mark.parametrize("seed", DRAWS)
def test_flops_are_those_that_run(seed: int) -> None:
    check_flops(build(plain(draw(seed))), 12)


@pytest.mark.parametrize("seed", DRAWS)
def test_every_parameter_learns(seed: int) -> None:
    torch.manual_seed(0)
    config = draw(seed)
    if config.attention.window == 1:  # alone in its window, a key is seen whatever the query
        config = dataclasses.replace(config, attention=dataclasses.replace(config.attention, window=2))
    check_gradients(Hybrid(config, vocab_size=VOCABULARY, max_length=LONGEST), 21, autocast=seed % 2 == 0)


@pytest.mark.parametrize("seed", DRAWS)
def test_a_step_costs_what_it_is_said_to(seed: int) -> None:
    config, length = plain(draw(seed)), 9
    contiguous = dataclasses.replace(config.attention, cache="contiguous")  # a paged one reads whole blocks
    model = build(dataclasses.replace(config, attention=contiguous))
    counts = []
    for batch in (1, 2):
        state = model.start(batch, length + 1)
        tokens_BT = torch.randint(VOCABULARY, (batch, length + 1))
        model.step(tokens_BT[:, :length], state)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model.step(tokens_BT[:, length:], state)
        counts.append(counter.get_total_flops())
    found = model.step_flops(length)
    assert found.linear + found.attention == counts[1] - counts[0]


def test_the_draws_cover_every_layer_type() -> None:
    configs = [draw(seed) for seed in DRAWS]
    assert set().union(*(config.mixer_types for config in configs)) == set(MIXERS)
    assert set().union(*(config.feedforward_types for config in configs)) == set(FEEDFORWARDS)
    assert any("+" in layer for config in configs for layer in config.layers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ["mamba*0"]}, r"layers: 'mamba\*0' is not one of attention, local_attention, .*s4"),
        ({"layers": ["mamba", "atention"]}, r"layers: 'atention' is not one of .*did you mean 'attention'\?"),
        ({"feedforwards": ["dense+experts"]}, r"feedforwards: 'dense\+experts' joins layer types"),
        ({"feedforwards": ["dense", "expert"]}, r"feedforwards: 'expert' is not .*did you mean 'experts'\?"),
        ({"layers": ["mamba", "local_attention"]}, r"set attention\.window"),
        (
            {"attention": AttentionConfig(layers=["local"], window=3)},
            r"attention\.layers=\[local\].*local_attention",
        ),
        (
            {
                "layers": ["mamba", "local_attention"],
                "attention": AttentionConfig(window=3, latent=LatentConfig(kv_rank=4)),
            },
            "global layers only",
        ),
        ({"layers": ["mamba2"], "d_model": 6}, "d_model=6 must be a positive multiple of 4"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HybridConfig(**settings)


@pytest.mark.parametrize("settings", [{"experts_per_token": 5}, {"d_ff": 0}, {"num_shared_experts": -1}])
def test_impossible_experts_are_named(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=rf"experts\.{next(iter(settings))}="):
        ExpertsConfig(**settings)


def test_widths_are_multiples_of_what_is_there() -> None:
    assert HybridConfig(layers=["mamba"]).width_multiple == 1
    assert HybridConfig(layers=["mamba", "attention"]).width_multiple == 8  # four heads of pairs
    assert HybridConfig(layers=["mamba2"], mamba2=SSDConfig(num_heads=6)).width_multiple == 3
    assert HybridConfig(layers=["attention+mamba2"], mamba2=SSDConfig(num_heads=6)).width_multiple == 24


ONE_KIND: dict[str, tuple[type[Backbone], Any, dict[str, Any]]] = {
    "s4": (
        S4,
        S4Config(d_model=16, num_layers=3, d_state=4),
        {"layers": ["s4"], "s4": S4LayerConfig(d_state=4)},
    ),
    "attention": (
        Decoder,
        DecoderConfig(d_model=16, num_layers=3, attention=AttentionConfig(num_kv_heads=2)),
        {"layers": ["attention"], "attention": AttentionConfig(num_kv_heads=2)},
    ),
    "local attention": (
        Decoder,
        DecoderConfig(
            d_model=16, num_layers=3, attention=AttentionConfig(window=4, layers=["global", "local"])
        ),
        {"layers": ["attention", "local_attention"], "attention": AttentionConfig(window=4)},
    ),
    "mamba": (
        Mamba,
        MambaConfig(d_model=16, num_layers=3, d_state=4),
        {"layers": ["mamba"], "feedforwards": ["none"], "mamba": SelectiveConfig(d_state=4)},
    ),
    "mamba2": (
        Mamba2,
        Mamba2Config(d_model=16, num_layers=3, d_state=4, num_heads=2),
        {"layers": ["mamba2"], "feedforwards": ["none"], "mamba2": SSDConfig(d_state=4, num_heads=2)},
    ),
}


@pytest.mark.parametrize("name", ONE_KIND)
def test_a_hybrid_of_one_kind_is_that_family(name: str) -> None:
    """From the same seed also the same initialisation."""
    cls, config, settings = ONE_KIND[name]
    models = []
    for one in (lambda: cls(config, vocab_size=19, max_length=30), lambda: hybrid(**settings)):
        torch.manual_seed(3)
        models.append(one().eval())
    theirs, ours = models
    tokens_BT = torch.randint(19, (2, 17))
    assert torch.equal(ours(tokens_BT).logits_BTV, theirs(tokens_BT).logits_BTV)
    assert ours.sequence_flops(17) == theirs.sequence_flops(17)
    assert ours.state_bytes(17) == theirs.state_bytes(17)
    taken, expected = ours.kernels(), theirs.kernels()
    for paths in (taken, expected):
        paths.pop("pointwise", None)  # stacks without transformer parts do not name it
    assert set(taken.values()) == set(expected.values())


def hybrid(**settings: Any) -> Hybrid:
    return Hybrid(HybridConfig(**{"d_model": 16, "num_layers": 3} | settings), vocab_size=19, max_length=30)


def test_mixers_side_by_side_are_added() -> None:
    """Block by block: x + attention(norm(x)) + mamba2(norm(x))."""
    joined = enliven(hybrid(layers=["attention+mamba2"], feedforwards=["none"], num_layers=1).double())
    attention, mamba2 = (
        enliven(hybrid(layers=[kind], feedforwards=["none"], num_layers=1).double())
        for kind in ("attention", "mamba2")
    )
    block, norm = joined.blocks[0], joined.blocks[0].mixer_residual.before
    attention.blocks[0].mixer.load_state_dict(block.mixer.mixers[0].state_dict())
    mamba2.blocks[0].mixer.load_state_dict(block.mixer.mixers[1].state_dict())
    tokens_BT = torch.randint(19, (2, 11))
    x_BTD = joined.embedding.tokens(tokens_BT)
    context = Context.whole(tokens_BT, None, None)
    expected = x_BTD + sum(m.blocks[0].mixer(norm(x_BTD), context) for m in (attention, mamba2))
    check_close(joined(tokens_BT).hidden_BTD, joined.final(expected), "side by side")


def test_kernels_name_every_kind_of_layer() -> None:
    mamba2, mamba = SSDConfig(scan="reference"), SelectiveConfig(scan="torch")
    scan = "torch" if problem() else "cpp"
    model = hybrid(
        layers=["attention+mamba2", "mamba", "gated_deltanet"],
        feedforwards=["experts"],
        mamba=mamba,
        mamba2=mamba2,
        attention=AttentionConfig(window=3),
    )
    assert model.kernels() == {
        "attention": "cpp" if path(model.head.weight) == "cpp" else "sdpa",
        "mamba2 scan": "reference",
        "mamba scan": "torch",
        "gated_deltanet scan": scan,
        "pointwise": path(model.head.weight),
        "experts": "sorted loop",
        "decoding": "torch",
    }
    assert hybrid(layers=["local_attention", "gla"], attention=AttentionConfig(window=3)).kernels() == {
        "local attention": "cpp" if path(model.head.weight) == "cpp" else "sdpa",
        "gla scan": scan,
        "decoding": "torch",
        "pointwise": path(model.head.weight),
    }


def test_decoding_state_grows_with_the_global_attention_only() -> None:
    """Two layers of keys and values of 8 numbers in float32, and a window of 5 of them with positions."""
    attention = AttentionConfig(num_heads=2, num_kv_heads=1, window=5)
    model = hybrid(
        layers=["attention+mamba2", "mamba", "local_attention", "gated_deltanet", "attention"],
        num_layers=5,
        attention=attention,
    )
    cache = 2 * 8 * 4
    assert model.state_bytes(90) - model.state_bytes(40) == 2 * 50 * cache
    local = hybrid(layers=["local_attention"], attention=attention)
    assert local.state_bytes(90) == local.state_bytes(40) == 3 * 5 * (cache + 4)


def test_output_projections_start_smaller_by_the_number_of_branches() -> None:
    """Three layers of two mixers and a feed-forward are nine branches."""
    stds = []
    for scaling in (True, False):
        torch.manual_seed(0)
        model = hybrid(layers=["attention+mamba2"], d_model=128, block=BlockConfig(residual_scaling=scaling))
        mixers = [mixer for block in model.blocks for mixer in block.mixer.mixers]
        stds.append(torch.stack([mixer.out.weight.std() for mixer in mixers]))
    torch.testing.assert_close(stds[0] * 3, stds[1])


def test_feedforwards_have_their_own_widths() -> None:
    """Three matrices each; the router has a row for each of three experts."""
    experts = ExpertsConfig(num_experts=3, experts_per_token=1, d_ff=5, num_shared_experts=2)
    model = hybrid(layers=["attention"], feedforwards=["dense", "experts", "none"], d_ff=12, experts=experts)
    dense, routed, none = (block.feedforward for block in model.blocks)
    assert none is None
    assert sum(p.numel() for p in dense.parameters()) == 3 * 16 * 12
    assert sum(p.numel() for p in routed.parameters()) == 3 * 16 + 3 * 16 * 5 * (3 + 2)
    assert routed.config == experts
    standard = hybrid(
        layers=["attention"], feedforwards=["experts"], experts=dataclasses.replace(experts, d_ff=None)
    )
    assert standard.blocks[0].feedforward.gate_XFD.shape == (3, 48, 16)  # 8/3 of 16, in eights
