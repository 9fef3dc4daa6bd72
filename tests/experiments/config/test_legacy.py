"""Keys, values and classes of version 0.1: stored files open, typed words give the new name."""

from __future__ import annotations

import sys

import pytest
from omegaconf import DictConfig

from architectures.backbone import Backbone
from experiments.config.legacy import upgrade
from experiments.config.structured import load_class
from experiments.runtime.errors import ConfigError

STORED = {
    "initial": None,
    "fork": "runs/a",
    "names": {"backbone": "diffusion", "task": "text"},
    "backbone": {"_target_": "architectures.diffusion.Diffusion", "tied": True, "shifted": False},
    "objective": {"_target_": "experiments.objectives.denoising.Denoising", "rate": 0.3, "mean_span": 3.0},
    "scale": {"axis": "active_body", "target": 9},
    "optimizer": {"final": 0.1, "decay": 0.2, "decay_ends": [1.0], "warmup": 0.05, "weight_decay": 0.1},
    "trainer": {"tests": [], "stop_margin": 1, "hang_seconds": 2, "compile": "none"},
}
NOW = {
    "init_from": None,
    "continue_from": "runs/a",
    "names": {"backbone": "masked_diffusion", "task": "text"},
    "backbone": {
        "_target_": "architectures.backbones.masked_diffusion.MaskedDiffusion",
        "tie_embeddings": True,
        "shifted": False,
    },
    "objective": {
        "_target_": "experiments.objectives.language_modelling.denoising.Denoising",
        "mask_probability": 0.3,
        "poisson_lambda": 3.0,
    },
    "scale": {"axis": "active_non_embedding", "target": 9},
    "optimizer": {
        "min_lr_ratio": 0.1,
        "decay_fraction": 0.2,
        "decay_end_fractions": [1.0],
        "warmup_fraction": 0.05,
        "weight_decay": 0.1,
    },
    "trainer": {
        "extra_evaluations": [],
        "preemption_margin_seconds": 1,
        "step_timeout_seconds": 2,
        "compile": "none",
    },
}


def test_a_stored_tree_gets_the_words_of_this_version() -> None:
    assert upgrade(STORED) == NOW
    assert upgrade(NOW) == NOW


@pytest.mark.parametrize("section", STORED)
def test_a_section_alone_is_enough(section: str) -> None:
    new = {"initial": "init_from", "fork": "continue_from"}.get(section, section)
    assert upgrade({section: STORED[section]}) == {new: NOW[new]}


def test_a_model_of_a_hybrid() -> None:
    backbone = {"_target_": "architectures.hybrid.Hybrid", "tied": False, "s4": {"rate": 2.0, "d_state": 4}}
    found = upgrade({"name": "diffusion_moe", "backbone": backbone, "vocab_size": 9})
    assert found["name"] == "masked_diffusion_moe"
    assert found["backbone"]["s4"] == {"dt_scale": 2.0, "d_state": 4}
    assert found["backbone"]["_target_"] == "architectures.backbones.hybrid.Hybrid"


@pytest.mark.parametrize(
    ("key", "letters", "names"),
    [
        ("layers", "MAMM", ["mamba", "attention", "mamba*2"]),
        ("layers", "7M2A+S", ["mamba*7", "attention+mamba2*2"]),
        ("layers", "LHGDN", ["local_attention", "s4", "gla", "deltanet", "gated_deltanet"]),
        ("feedforwards", "3F58E", ["dense*3", "experts*58"]),
        ("encoder_feedforwards", "FO", ["dense", "none"]),
        ("attention.layers", "GLL", ["global", "local*2"]),
        ("positions.layers", "PPPN", ["positional*3", "none"]),
    ],
)
def test_letters_of_layer_patterns_become_names(key: str, letters: str, names: list[str]) -> None:
    part, _, leaf = key.rpartition(".")

    def tree(value: object) -> dict[str, object]:
        section = {leaf: value, "d_model": 8}
        return {"backbone": {"_target_": "mine.Own"} | ({part: section} if part else section)}

    assert upgrade(tree(letters)) == tree(names)
    assert upgrade(tree(names)) == tree(names)
    assert upgrade(tree("XYZ")) == tree("XYZ")


def test_paths_of_kernels() -> None:
    stored = {
        "device": {"name": "cpu", "kernels": "portable"},
        "backbone": {"scan": "fused", "mamba": {"scan": "compiled"}, "mamba2": {"scan": "native"}},
    }
    assert upgrade(stored) == {
        "device": {"name": "cpu", "kernels": "torch"},
        "backbone": {"scan": "mamba_ssm", "mamba": {"scan": "torch"}, "mamba2": {"scan": "cpp"}},
    }


def test_keys_of_other_peoples_classes_stay() -> None:
    own = {"backbone": {"_target_": "mine.Own", "rate": 1}, "objective": {"_target_": "mine.Loss", "rate": 1}}
    assert upgrade(own) == own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.tests=[]"], "trainer.tests is now trainer.extra_evaluations"),
        (["trainer.stop_margin=5"], "trainer.stop_margin is now trainer.preemption_margin_seconds"),
        (["trainer.hang_seconds=5"], "trainer.hang_seconds is now trainer.step_timeout_seconds"),
        (["optimizer.final=0"], "optimizer.final is now optimizer.min_lr_ratio"),
        (["optimizer.decay=0.1"], "optimizer.decay is now optimizer.decay_fraction"),
        (["optimizer.warmup=0.1"], "optimizer.warmup is now optimizer.warmup_fraction"),
        (["optimizer.decay_ends=[1.0]"], "optimizer.decay_ends is now optimizer.decay_end_fractions"),
        (["initial=runs"], "initial is now init_from"),
        (["fork=runs"], "fork is now continue_from"),
        (["backbone=diffusion"], "backbone=diffusion is now backbone=masked_diffusion"),
        (["backbone=diffusion_moe"], "backbone=diffusion_moe is now backbone=masked_diffusion_moe"),
        (["backbone.tied=true"], "backbone.tied is now backbone.tie_embeddings"),
        (["backbone=s4", "backbone.rate=2"], "backbone.rate is now backbone.dt_scale"),
        (["backbone=hybrid", "backbone.s4.rate=2"], "backbone.s4.rate is now backbone.s4.dt_scale"),
        (["scale.axis=body"], "axis='body' is now non_embedding"),
        (["scale.axis=active_body"], "axis='active_body' is now active_non_embedding"),
        (["backbone=encoder", "objective.rate=0.2"], "objective.rate is now objective.mask_probability"),
        (
            ["backbone=encoder_decoder", "objective.density=0.2"],
            "objective.density is now objective.noise_density",
        ),
        (
            ["backbone=encoder_decoder", "objective=denoising", "objective.mean_span=2"],
            "objective.mean_span is now objective.poisson_lambda",
        ),
        (
            ["backbone=hybrid", "backbone.layers=MMMA"],
            "backbone.layers=MMMA is now backbone.layers=[mamba*3,attention]",
        ),
        (
            ["backbone=decoder", "backbone.attention.layers=LG"],
            "backbone.attention.layers=LG is now backbone.attention.layers=[local,global]",
        ),
        (
            ["backbone=decoder", "backbone.feedforwards=dense"],
            "backbone.feedforwards=dense must be a list: write backbone.feedforwards=[dense]",
        ),
        (["+optimizer.final=0"], "optimizer.final is now optimizer.min_lr_ratio"),
        (["+fork=runs"], "fork is now continue_from"),
        (["backbone=decoder", "+backbone.rate=2"], "backbone.rate: DecoderConfig has no such key"),
    ],
)
def test_an_old_word_on_the_command_line_gives_the_new_one(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.config.hydra_app import start
    from experiments.config.sections import read_sections
    from experiments.run.settings import read_settings

    def read(cfg: DictConfig) -> None:
        read_settings(read_sections(cfg))

    monkeypatch.setattr(sys, "argv", ["train", *words])
    with pytest.raises(SystemExit) as ended:
        start(read)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_old_path_of_a_class_gives_the_new_one() -> None:
    with pytest.raises(ConfigError, match=r"diffusion.Diffusion is now .*masked_diffusion.MaskedDiffusion"):
        load_class("architectures.diffusion.Diffusion", Backbone, "backbone")  # type: ignore[type-abstract]
