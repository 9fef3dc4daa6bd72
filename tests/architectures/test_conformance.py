"""Every YAML of conf/backbone without a width passes every check, models with a planted fault fail them."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.experiments.config import CONF
from archbench.experiments.config.schema import ScaleConfig
from archbench.experiments.config.structured import load_class, typed
from archbench.experiments.run.size_solver import Sizes, match
from tests.architectures.conformance import (
    check_batch_invariance,
    check_decoding,
    check_gradients,
    check_initialisation,
    check_moved_rows,
    check_no_leak,
    check_packed,
    check_padding,
    check_prompts_together,
    check_scored,
    check_sees_everything,
    enliven,
    random_inputs,
)
from tests.architectures.costs import check_flops, check_inactive, check_parameters, check_state_bytes
from tests.backbones import FAMILIES, SOLVED, class_of
from tests.tiers import fast_only

pytestmark = pytest.mark.fast

CANON = {
    "decoder": "backbone.canon=ABCD",
    "mamba": "backbone.canon=AB backbone.conv_width=0",
    "encoder": "backbone.canon=ABCD",
    "encoder_decoder": "backbone.canon=ABCD",
    "gated_deltanet": "backbone.canon=ABCD backbone.conv_width=0",
    "gla": "backbone.canon=ABCD backbone.conv_width=4",
    "mamba2": "backbone.canon=AB",
    "mamba2_bidirectional": "backbone.canon=AB backbone.conv_width=0",
    "hybrid": "backbone.canon=ABCD backbone.layers=[mlstm,attention+s4]",
    "falcon_h1": "backbone.canon=ABCD backbone.mamba2.conv_width=0",
    "moe": "backbone.canon=ABC",
    "moe_deepseek": "backbone.canon=ABCD backbone.feedforwards=[dense,experts]",
    "masked_diffusion": "backbone.canon=BD",
    "s4": "backbone.canon=ABCD",
    "rwkv7": "backbone.canon=ABCD",
    "mamba3": "backbone.canon=ABCD",
    "s4_bidirectional": "backbone.canon=ABCD",
}
"""Settings of models with convolutions in other places, by backbone."""
LOOPED = ("decoder", "mamba", "mamba2", "hybrid", "s4", "encoder", "masked_diffusion")
VARIANTS = [f"{name} {words}" for name, words in CANON.items()]
VARIANTS += [f"{name} backbone.loops=2" for name in LOOPED]
RESIDUAL = ("decoder", "moe", "encoder", "encoder_decoder", "masked_diffusion")
VARIANTS += [f"{name} backbone.attention.value_residual=true" for name in RESIDUAL]
FORGETTING = ("hybrid", "samba")
VARIANTS += [f"{name} backbone.attention.forget_gate=true" for name in FORGETTING]
VARIANTS += ["forgetting_attention backbone.loops=2 backbone.attention.value_residual=true"]
DIFFERENTIAL = ("hybrid", "hybrid_bidirectional", "masked_diffusion", "block_diffusion")
VARIANTS += [f"{name} backbone.attention.differential=true" for name in DIFFERENTIAL]
VARIANTS += ["diff_attention backbone.loops=2 backbone.attention.value_residual=true"]
DEPTHS = ("decoder", "encoder", "masked_diffusion", "hybrid", "mamba2", "s4", "gated_deltanet", "rwkv7")
VARIANTS += [f"{name} backbone.mixture_of_depths=0.3" for name in DEPTHS]
VARIANTS += ["mamba2_bidirectional backbone.mixture_of_depths=0.3 backbone.canon=A"]
VARIANTS += ["decoder backbone.mixture_of_depths=0.5 backbone.loops=2 backbone.canon=ABCD"]
VARIANTS += ["samba backbone.mixture_of_depths=0.5"]
VARIANTS += ["decoder backbone.mixture_of_depths=0.5 backbone.attention.value_residual=true"]
ALL = [*SOLVED, *VARIANTS]
FAST = [*FAMILIES, *VARIANTS[:3], "hybrid backbone.loops=2", VARIANTS[-1]]
BACKBONES = fast_only(ALL, FAST)
"""The fast tier takes one of each family, some with canon layers and one looped, in float64."""
DTYPES = fast_only([torch.float32, torch.float64], [torch.float64])
VOCABULARY, LONGEST = 29, 80


@functools.cache
def read_yaml(name: str) -> tuple[type[Backbone], BackboneConfig]:
    """The class and the configuration of a backbone's YAML at depth two, with the settings after its name."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        words = f"backbone={name} scale.depth=2 scale.mixer_depth=2".split()
        cfg = compose("config", overrides=words)
    values: Any = OmegaConf.to_container(cfg.backbone, resolve=True)
    cls = load_class(values.pop("_target_"), Backbone, "backbone")
    return cls, typed(cls.Config, values, "backbone")


def build(
    name: str, dtype: torch.dtype = torch.float32, vocab_size: int = VOCABULARY, **changes: Any
) -> Backbone:
    """A narrow model as it comes from its initialisation."""
    cls, config = read_yaml(name)
    multiple = config.width_multiple
    config = dataclasses.replace(config, d_model=multiple * -(-16 // multiple), **changes)
    return cls(config, vocab_size=vocab_size, max_length=LONGEST).to(dtype)


def plain_kernels(config: Any) -> dict[str, Any]:
    """Changes after which every scan reads its state elementwise, so that no product is the mixer's, and
    attention has no columns besides those of its heads."""
    inner = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    parts = {name: part for name, part in inner.items() if hasattr(part, "scan")}
    changes = {name: dataclasses.replace(part, scan="reference") for name, part in parts.items()}
    if "attention" in inner:
        changes["attention"] = dataclasses.replace(config.attention, kernel="sdpa")
    return changes | ({"scan": "reference"} if "scan" in inner else {})


@functools.cache
def enlivened(name: str, dtype: torch.dtype) -> Backbone:
    torch.manual_seed(0)
    return enliven(build(name, dtype))


def lively(name: str, dtype: torch.dtype = torch.float64, *, training: bool = True) -> Backbone:
    """The same with weights large enough for faults to show."""
    return enlivened(name, dtype).train(training)


def able(*abilities: str) -> list[Any]:
    """Return the backbones that have any of these capabilities."""
    names = [n for n in ALL if any(getattr(class_of(n.split()[0]).capabilities, a) for a in abilities)]
    return fast_only(names, FAST)


def unable(*abilities: str) -> list[Any]:
    """Return the backbones that have none of these capabilities."""
    names = [n for n in ALL if not any(getattr(class_of(n.split()[0]).capabilities, a) for a in abilities)]
    return fast_only(names, FAST)


@pytest.mark.parametrize("length", fast_only([5, 33, 67], [33]))
@pytest.mark.parametrize("name", able("causal", "encoder_decoder"))
def test_the_future_does_not_leak(name: str, length: int) -> None:
    check_no_leak(lively(name, training=False), length)


@pytest.mark.parametrize("length", fast_only([2, 21], [21]))
@pytest.mark.parametrize("name", able("bidirectional", "encoder_decoder"))
def test_every_position_is_seen(name: str, length: int) -> None:
    check_sees_everything(lively(name), length)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BACKBONES)
def test_padding_changes_nothing(name: str, dtype: torch.dtype) -> None:
    check_padding(lively(name, dtype), 19)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BACKBONES)
def test_neighbours_in_the_batch_change_nothing(name: str, dtype: torch.dtype) -> None:
    check_batch_invariance(lively(name, dtype), 17)


@pytest.mark.parametrize("name", BACKBONES)
def test_logits_only_where_they_are_scored(name: str) -> None:
    check_scored(lively(name, torch.float32), 17)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", able("decodes"))
def test_decoding_is_the_forward_pass(name: str, dtype: torch.dtype) -> None:
    check_decoding(lively(name, dtype, training=False), 37)


@pytest.mark.parametrize("name", able("decodes"))
def test_a_batch_is_decoded_as_its_rows(name: str) -> None:
    check_prompts_together(lively(name, training=False))
    check_moved_rows(lively(name, training=False))


@pytest.mark.parametrize("name", BACKBONES)
def test_packed_documents_are_kept_apart_or_refused(name: str) -> None:
    model = lively(name)
    if model.capabilities.packs:
        check_packed(model)
        check_packed(model.eval())
    else:
        inputs = random_inputs(model, 1, 4)
        with pytest.raises(ValueError, match="packed documents"):
            model(inputs.tokens_BT, documents_BT=inputs.tokens_BT, source_BS=inputs.source_BS)


@pytest.mark.parametrize("name", unable("decodes", "blockwise"))
def test_without_a_state_decoding_is_refused(name: str) -> None:
    model = lively(name)
    assert model.state_bytes(10) == 0
    with pytest.raises(ValueError, match="no decoding state"):
        model.start(1, 10)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", BACKBONES)
def test_parameters_are_counted(name: str, tied: bool) -> None:
    check_parameters(build(name, tie_embeddings=tied), tied=tied)
    on_meta = Sizes(vocab_size=VOCABULARY, length=LONGEST).on_meta
    cls, config = read_yaml(name)
    config = dataclasses.replace(config, d_model=3 * config.width_multiple, tie_embeddings=tied)  # type: ignore[call-arg]
    real = cls(config, vocab_size=VOCABULARY, max_length=LONGEST)
    assert on_meta(cls, config).parameters_by_part() == real.parameters_by_part()


@pytest.mark.parametrize("name", BACKBONES)
def test_inactive_parameters_are_those_unused(name: str) -> None:
    check_inactive(lively(name))


@pytest.mark.parametrize("length", fast_only([1, 7, 32], [7]))
@pytest.mark.parametrize("name", BACKBONES)
def test_flops_are_those_that_run(name: str, length: int) -> None:
    _, config = read_yaml(name)
    check_flops(build(name, **plain_kernels(config)), length)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", fast_only([1, 6, 33], [33]))
@pytest.mark.parametrize("name", able("decodes"))
def test_the_state_has_the_predicted_size(name: str, length: int, dtype: torch.dtype) -> None:
    check_state_bytes(build(name, dtype), length)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", BACKBONES)
def test_every_parameter_learns(name: str, autocast: bool) -> None:
    torch.manual_seed(0)
    check_gradients(build(name), 33, autocast=autocast)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", BACKBONES)
def test_initialisation(name: str, tied: bool) -> None:
    check_initialisation(lambda: build(name, vocab_size=300, tie_embeddings=tied))


@pytest.mark.parametrize("name", BACKBONES)
def test_widths_are_checked(name: str) -> None:
    _, config = read_yaml(name)
    multiple = config.width_multiple
    assert dataclasses.replace(config, d_model=5 * multiple).width == 5 * multiple
    for wrong in {0, -multiple, 5 * multiple + 1} - {5 * multiple + 1 if multiple == 1 else None}:
        with pytest.raises(ValueError, match=f"d_model={wrong} .*multiple of {multiple}"):
            dataclasses.replace(config, d_model=wrong)
    with pytest.raises(ValueError, match="d_model is null"):
        _ = config.width


TARGETS = [(axis, target) for axis in ("non_embedding", "total") for target in (50_000, 250_000, 1_000_000)]
TARGETS += [("active_non_embedding", 250_000), ("flops", 1_500_000)]
TARGETS = fast_only(TARGETS, [("total", 250_000)], unpack=True)


@pytest.mark.parametrize(("axis", "target"), TARGETS)
@pytest.mark.parametrize("name", BACKBONES)
def test_the_solver_reaches_its_target(name: str, axis: str, target: int) -> None:
    cls, config = read_yaml(name)
    sizes = Sizes(vocab_size=100, length=64, source_length=64 if cls.capabilities.encoder_decoder else 0)
    matched = match(cls, config, ScaleConfig(axis=axis, target=target), sizes)
    assert abs(matched.value / target - 1) <= 0.01
    left_alone = {f.name for f in dataclasses.fields(config)} - {"d_model", config.fine_knob}
    assert all(getattr(matched.config, name) == getattr(config, name) for name in left_alone)
    parts = cls(matched.config, vocab_size=100, max_length=64).parameters_by_part()
    built = {
        "non_embedding": parts.body,
        "total": parts.total,
        "active_non_embedding": parts.body - parts.inactive,
    }
    assert built.get(axis, matched.value) == matched.value
