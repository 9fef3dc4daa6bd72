import dataclasses

import pytest
import torch

from archbench.architectures.backbone import Parameters
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.experiments.config.schema import ScaleConfig
from archbench.experiments.run.size_solver import TOLERANCE, Sizes, match, training_flops_per_token
from archbench.experiments.runtime.errors import ConfigError
from tests.architectures.models import read_yaml
from tests.backbones import FAMILIES, SOLVED, class_of

SIZES = Sizes(vocab_size=80, length=48, raw_length=48)


def sizes_for(cls):
    """An encoder-decoder reads a source beside what it writes."""
    return (
        dataclasses.replace(SIZES, source_length=40, length=12) if cls.capabilities.encoder_decoder else SIZES
    )


def measured(cls, config, axis, sizes):
    """The axis on a real module, not on one without memory."""
    model = cls(config, vocab_size=sizes.vocab_size, max_length=48)
    parts = model.parameters_by_part()
    if axis == "flops":
        return round(3 * model.sequence_flops(sizes.length, sizes.source_length).total / 48)
    return {
        "non_embedding": parts.body,
        "active_non_embedding": parts.body - parts.inactive,
        "total": parts.total,
    }[axis]


def check_matched(name, axis, target):
    """Solve, and check that only the settings for it were changed. Returns what the solver chose."""
    cls, config = read_yaml(name)
    sizes = sizes_for(cls)
    matched = match(cls, config, ScaleConfig(axis=axis, target=target), sizes)
    assert abs(matched.residual) <= TOLERANCE == 0.01
    assert matched.value == measured(cls, matched.config, axis, sizes)
    assert matched.residual == matched.value / target - 1
    knobs = {"d_model", config.fine_knob}
    before, after = dataclasses.asdict(config), dataclasses.asdict(matched.config)
    assert {key for key in before if before[key] != after[key]} <= knobs
    assert after["d_model"] % config.width_step == 0
    return matched.config


@pytest.mark.parametrize("name", SOLVED)
def test_every_backbone_comes_within_a_percent_near_the_standard_proportion(name):
    """The fine knob only finishes what the width began."""
    config = check_matched(name, "non_embedding", 1_000_000)
    cls, standard = class_of(name), dataclasses.replace(config, **{config.fine_knob: None})
    assert measured(cls, standard, "non_embedding", SIZES) == pytest.approx(1_000_000, rel=0.15)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("axis", "target"),
    [
        ("non_embedding", 40_000),
        ("active_non_embedding", 200_000),
        ("total", 300_000),
        ("flops", 1_500_000),
    ],
)
def test_every_family_comes_within_a_percent_on_every_axis(name, axis, target):
    check_matched(name, axis, target)


@pytest.mark.parametrize("name", FAMILIES)
def test_large_models_are_sized_without_memory(name):
    cls, config = read_yaml(name)
    matched = match(cls, config, ScaleConfig(axis="non_embedding", target=85_000_000), sizes_for(cls))
    assert abs(matched.residual) <= TOLERANCE


def test_few_models_are_built():
    """Each width once, and few widths: each is the time of building a model."""
    built = []

    class Counted(Decoder):
        def __init__(self, config, **sizes):
            built.append(config)
            super().__init__(config, **sizes)

    match(Counted, DecoderConfig(), ScaleConfig(axis="non_embedding", target=3_000_000), SIZES)
    assert len(built) <= 20
    assert len({repr(config) for config in built}) == len(built) - 1  # the last one for its experts


class Stepped(Decoder):
    """A model whose size jumps at some widths and stays between them."""

    def parameters_by_part(self):
        body = 100 + 1000 * (self.config.width // 64) ** 3
        return Parameters(embedding=0, body=body, head=0)


def test_sizes_that_follow_no_power_of_the_width_are_bracketed():
    config = DecoderConfig(d_ff=32)
    for target in (1100, 8100, 27_100, 1_000_100):
        matched = match(Stepped, config, ScaleConfig(axis="non_embedding", target=target), SIZES)
        assert matched.value == target


@pytest.mark.parametrize(
    ("cls", "config", "knob"),
    [
        (Decoder, DecoderConfig(d_model=96), "d_ff"),
        (MoE, MoEConfig(d_model=64), "d_ff"),
        (Mamba, MambaConfig(d_model=96), "d_inner"),
    ],
)
def test_a_given_width_is_kept_and_only_the_knob_turned(cls, config, knob):
    matched = match(cls, config, ScaleConfig(axis="non_embedding", target=250_000), SIZES)
    assert matched.config == dataclasses.replace(config, **{knob: getattr(matched.config, knob)})
    assert getattr(matched.config, knob) is not None
    assert abs(matched.residual) <= TOLERANCE


def test_a_given_knob_is_kept_and_only_the_width_turned():
    config = DecoderConfig(d_ff=200)
    with_room = match(Decoder, config, ScaleConfig(axis="non_embedding", target=2_000_000), SIZES)
    assert with_room.config == dataclasses.replace(config, d_model=with_room.config.d_model)


def test_widths_given_far_from_the_target_are_refused_with_a_remedy():
    with pytest.raises(ConfigError) as caught:
        match(
            Decoder,
            DecoderConfig(d_model=64, d_ff=128),
            ScaleConfig(axis="non_embedding", target=250_000),
            SIZES,
        )
    message = str(caught.value)
    value = measured(Decoder, DecoderConfig(d_model=64, d_ff=128), "non_embedding", SIZES)
    for part in (
        "scale.targets.non_embedding=250000",
        str(value),
        "backbone.d_model",
        "backbone.d_ff",
        "scale=given",
    ):
        assert part in message


def test_a_target_below_the_smallest_model_is_refused():
    with pytest.raises(ConfigError, match=r"scale\.targets\.non_embedding=100: Decoder comes no nearer"):
        match(Decoder, DecoderConfig(), ScaleConfig(axis="non_embedding", target=100), SIZES)


def test_a_knob_without_effect_is_left_alone():
    """No layer has a feed-forward: the width alone has to do, or it is said that it cannot."""
    config = HybridConfig(layers=["attention"], feedforwards=["none"])
    reached = match(
        Hybrid, config, ScaleConfig(axis="non_embedding", target=2 * (4 * 128**2 + 128) + 128), SIZES
    )
    assert (reached.config.d_model, reached.config.d_ff, reached.residual) == (128, None, 0)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"scale\.targets\.non_embedding=120000: Hybrid comes no nearer"):
        match(Hybrid, config, ScaleConfig(axis="non_embedding", target=120_000), SIZES)


def test_a_mixture_held_equal_on_all_its_experts_says_so():
    cls, config = read_yaml("moe")
    everything, used, flops = (
        match(cls, config, ScaleConfig(axis=axis, target=target), SIZES)
        for axis, target in (("non_embedding", 250_000), ("active_non_embedding", 250_000), ("flops", 10**6))
    )
    parts = SIZES.on_meta(cls, everything.config).parameters_by_part()
    assert parts.inactive > 0
    assert f"{parts.body - parts.inactive:,} of {parts.body:,}" in (everything.note or "")
    assert used.note is None
    assert flops.note is None
    assert match(Decoder, DecoderConfig(), ScaleConfig(axis="total", target=250_000), SIZES).note is None


def test_without_a_target_all_widths_stay():
    config = DecoderConfig(d_model=64)
    matched = match(Decoder, config, ScaleConfig(axis="non_embedding", target=None), SIZES)
    assert matched.config is config
    assert matched.target is None
    assert matched.residual == 0
    assert matched.value == measured(Decoder, config, "non_embedding", SIZES)


def test_without_a_width_or_a_target_the_message_names_both():
    with pytest.raises(ValueError, match=r"d_model is null.*scale\.targets"):
        match(Decoder, DecoderConfig(), ScaleConfig(axis="non_embedding", target=None), SIZES)


class ReadsValues(Decoder):
    def __init__(self, config, **sizes):
        super().__init__(config, **sizes)
        self.scale = next(self.parameters()).sum().item()


class Sparse(Decoder):
    def __init__(self, config, **sizes):
        super().__init__(config, **sizes)
        self.register_buffer("mask", torch.ones(3, 3).to_sparse())


@pytest.mark.parametrize("cls", [ReadsValues, Sparse])
def test_a_constructor_that_reads_values_is_told_of_the_meta_device(cls):
    with pytest.raises(RuntimeError, match=r'built without data .*: give .* device="cpu"$'):
        SIZES.on_meta(cls, DecoderConfig(d_model=64))


def test_training_costs_three_forward_passes_for_each_task_token():
    model = SIZES.on_meta(Decoder, DecoderConfig(d_model=64))
    assert all(parameter.is_meta for parameter in model.parameters())
    forward = model.sequence_flops(48).total
    assert training_flops_per_token(model, SIZES) == 3 * forward / 48
    halved = dataclasses.replace(SIZES, raw_length=96)
    assert training_flops_per_token(model, halved) == 3 * forward / 96
    assert training_flops_per_token(model, Sizes(vocab_size=80, length=48)) == 3 * forward / 48
