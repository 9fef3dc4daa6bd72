"""Bidirectional Mamba, Mamba-2 and hybrids of every letter, beyond what conformance asks of their YAMLs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.bidirectional_ssm import (
    BidirectionalHybrid,
    BidirectionalHybridConfig,
    BidirectionalMamba,
    BidirectionalMamba2,
    BidirectionalMamba2Config,
    BidirectionalMambaConfig,
)
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.hybrid import ATTENTION, RECURRENT
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.layer_pattern import pattern_types
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.ssm.s4_config import S4LayerConfig
from archbench.architectures.mixers.deltanet import DeltaConfig
from archbench.architectures.mixers.deltaproduct import HouseholderConfig
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig
from archbench.architectures.mixers.gla import GatedLinearConfig
from archbench.architectures.mixers.kda import KimiDeltaConfig
from archbench.architectures.mixers.mamba import SelectiveConfig
from archbench.architectures.mixers.mamba2 import SSDConfig
from archbench.architectures.mixers.mamba3 import Mamba3Config
from archbench.architectures.mixers.mlstm import MLSTMConfig
from archbench.architectures.mixers.rwkv7 import RWKV7Config
from archbench.architectures.pretrained.export import save_folder
from tests.architectures.conformance import (
    check_batch_invariance,
    check_gradients,
    check_packed,
    check_padding,
    check_sees_everything,
    enliven,
    random_inputs,
)
from tests.architectures.costs import check_flops, check_parameters, plain

PATTERNS = [
    (["mamba+s4"], "tied"),
    (["attention+mamba2"], "separate"),
    (["local_attention", "gla"], "tied"),
    (["deltanet", "gated_deltanet"], "separate"),
    (["s4", "attention+deltanet"], "tied"),
    (["mlstm", "attention+mlstm"], "tied"),
    (["rwkv7", "mamba3"], "tied"),
    (["kda", "deltaproduct"], "tied"),
]
LISTED = set().union(*(pattern_types(layers) for layers, _ in PATTERNS))
PATTERNS += [([mixer, "attention"], "tied") for mixer in RECURRENT if mixer not in LISTED]


def hybrid(layers: list[str], directions: str = "tied", **changes: Any) -> BidirectionalHybridConfig:
    """Small mixers, whose scans are written out, and experts in every second layer."""
    return BidirectionalHybridConfig(
        **{
            "d_model": 16,
            "num_layers": 2,
            "layers": layers,
            "directions": directions,
            "feedforwards": ["dense", "experts"],
            "attention": AttentionConfig(num_kv_heads=2, window=4 if "local_attention" in layers else None),
            "experts": ExpertsConfig(num_experts=3),
            "s4": S4LayerConfig(d_state=4),
            "mamba": SelectiveConfig(d_state=3, scan="reference"),
            "mamba2": SSDConfig(num_heads=4, d_state=5, scan="reference"),
            "mamba3": Mamba3Config(num_heads=4, d_state=4, scan="reference"),
            "gla": GatedLinearConfig(decay_rank=3, scan="reference"),
            "deltanet": DeltaConfig(scan="reference"),
            "gated_deltanet": GatedDeltaConfig(scan="reference"),
            "mlstm": MLSTMConfig(scan="reference"),
            "rwkv7": RWKV7Config(value_rank=3, scan="reference"),
            "kda": KimiDeltaConfig(scan="reference"),
            "deltaproduct": HouseholderConfig(scan="reference"),
        }
        | changes
    )


def build(config: BidirectionalHybridConfig) -> Backbone:
    torch.manual_seed(0)
    return enliven(BidirectionalHybrid(config, vocab_size=19, max_length=40).double())


@pytest.mark.parametrize(("layers", "directions"), PATTERNS)
def test_a_hybrid_of_any_mixers_keeps_its_promises(layers: list[str], directions: str) -> None:
    config = hybrid(layers, directions)
    model = build(config)
    check_sees_everything(model, 9)
    check_padding(model, 11)
    check_batch_invariance(model, 11)
    check_packed(model)
    check_flops(build(plain(config)), 9)
    check_parameters(model, tied=False)
    check_gradients(BidirectionalHybrid(config, vocab_size=19, max_length=40), 17, autocast=True)
    for name in pattern_types(layers) & RECURRENT.keys():
        assert f"{name} scan" in model.kernels()


def test_the_patterns_cover_every_letter() -> None:
    assert set().union(*(pattern_types(layers) for layers, _ in PATTERNS)) == {*ATTENTION, *RECURRENT}


def test_experts_may_choose_their_tokens() -> None:
    config = hybrid(
        ["mamba", "attention"],
        feedforwards=["experts"],
        experts=ExpertsConfig(num_experts=3, choice="expert"),
    )
    model = build(config)
    check_sees_everything(model, 9)
    check_padding(model, 11)
    check_batch_invariance(model, 11)
    check_flops(model, 9)


@pytest.mark.parametrize("family", ["hybrid", "encoder"])
def test_experts_that_choose_do_not_go_with_packed_documents(family: str) -> None:
    experts = ExpertsConfig(choice="expert")
    model = (
        build(hybrid(["mamba", "attention"], experts=experts))
        if family == "hybrid"
        else Encoder(
            EncoderConfig(d_model=16, feedforwards=["experts"], experts=experts), vocab_size=9, max_length=9
        )
    )
    tokens_BT = random_inputs(model, 2, 6).tokens_BT
    with pytest.raises(ValueError, match=r"experts\.choice=expert compares all tokens.*choice=token"):
        model(tokens_BT, documents_BT=torch.zeros_like(tokens_BT))


STACKS = {
    "mamba": (BidirectionalMamba, BidirectionalMambaConfig(d_model=16, d_state=3)),
    "mamba2": (BidirectionalMamba2, BidirectionalMamba2Config(d_model=16, d_state=5)),
    "hybrid": (BidirectionalHybrid, hybrid(["mamba", "mamba2"])),
}


@pytest.mark.parametrize("name", STACKS)
def test_tied_directions_weigh_little_more_than_one(name: str) -> None:
    """And each output starts smaller, as twice as many of them add up."""
    cls, config = STACKS[name]
    one_way: Any = cls.__base__
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(one_way.Config)}
    models = [one_way(one_way.Config(**fields), vocab_size=11, max_length=9)]
    for directions in ("tied", "separate"):
        changed = dataclasses.replace(config, directions=directions)  # type: ignore[call-arg]
        models.append(cls(changed, vocab_size=11, max_length=9))
    single, tied, separate = (model.parameters_by_part().body for model in models)
    assert single < tied < separate
    branches = [model.residual_branches(sum(b.num_branches for b in model.blocks)) for model in models]
    assert branches[1] == branches[2] == branches[0] + 2


@pytest.mark.parametrize("name", STACKS)
def test_what_no_library_reads_is_not_exported_as_something_else(name: str, tmp_path: Path) -> None:
    cls, config = STACKS[name]
    with pytest.raises(ValueError, match=cls.__name__):
        save_folder(cls(config, vocab_size=11, max_length=9), tmp_path / "folder")
