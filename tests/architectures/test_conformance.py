"""Every YAML of conf/backbone without a width passes every check, models with a planted fault fail them."""

import dataclasses
import zlib
from typing import Any

import pytest
import torch

from archbench.experiments.config.schema import ScaleConfig
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
    random_inputs,
)
from tests.architectures.costs import check_flops, check_inactive, check_parameters, check_state_bytes
from tests.architectures.models import (
    CANON,
    CHANGED,
    LONGEST,
    MIXERS,
    OPTIONS,
    VOCABULARY,
    build,
    changes,
    lively,
    read_yaml,
)
from tests.backbones import FAMILIES, SOLVED, class_of
from tests.tiers import fast_only

pytestmark = pytest.mark.fast

F32, F64 = torch.float32, torch.float64

ALL = [*SOLVED, *CHANGED, MIXERS]
FAST = [*FAMILIES, *CHANGED[:3]]
BACKBONES = fast_only(ALL, FAST)
"""The fast tier takes one of each family, and some with other settings, in float64."""


def cases(names: list[str], whole: list[Any], changed: Any, fast: Any) -> list[Any]:
    """Return names with values of another parameter: a family with each, other YAMLs with the last, and
    changed ones with one of their own."""
    each: list[tuple[str, Any]] = []
    for name in names:
        values = whole if name in FAMILIES else whole[-1:] if name in SOLVED else [changed]
        each += [(name, value) for value in values]
    chosen = [(n, value) for n, value in each if n in FAST and (value == fast or n in CHANGED)]
    return fast_only(each, chosen, unpack=True)


def in_precisions(names: list[str]) -> list[Any]:
    """Return names in float64, and one of each family in float32 as well."""
    each = [(name, torch.float64) for name in names]
    narrow = [(name, torch.float32) for name in names if name in FAMILIES]
    return fast_only([*each, *narrow], [case for case in each if case[0] in FAST], unpack=True)


def plain_kernels(config: Any) -> dict[str, Any]:
    """Changes after which every scan reads its state elementwise, so that no product is the mixer's, and
    attention has no columns besides those of its heads."""
    inner = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    parts = {name: part for name, part in inner.items() if hasattr(part, "scan")}
    changes = {name: dataclasses.replace(part, scan="reference") for name, part in parts.items()}
    if "attention" in inner:
        changes["attention"] = dataclasses.replace(config.attention, kernel="sdpa")
    return changes | ({"scan": "reference"} if "scan" in inner else {})


def able(*abilities: str) -> list[str]:
    """Return the backbones that have any of these capabilities."""
    return [n for n in ALL if any(getattr(class_of(n.split()[0]).capabilities, a) for a in abilities)]


def unable(*abilities: str) -> list[Any]:
    """Return the backbones that have none of these capabilities."""
    return fast_only([name for name in ALL if name not in able(*abilities)], FAST)


@pytest.mark.full
def test_every_setting_goes_with_a_backbone() -> None:
    """Each class takes other settings, and each setting of several classes goes with some class."""
    found = {name: changes(name.split()[0]) for name in CHANGED}
    assert all(found.values()), found
    assert all(any(option in each for each in found.values()) for option in (*CANON, *OPTIONS)), found


@pytest.mark.parametrize(("name", "length"), cases(able("causal", "encoder_decoder"), [5, 67], 33, 5))
def test_the_future_does_not_leak(name: str, length: int) -> None:
    check_no_leak(lively(name, training=False), length)


@pytest.mark.parametrize(("name", "length"), cases(able("bidirectional", "encoder_decoder"), [2, 21], 21, 21))
def test_every_position_is_seen(name: str, length: int) -> None:
    check_sees_everything(lively(name), length)


@pytest.mark.parametrize(("name", "dtype"), in_precisions(ALL))
def test_padding_changes_nothing(name: str, dtype: torch.dtype) -> None:
    check_padding(lively(name, dtype), 19)


@pytest.mark.parametrize(("name", "dtype"), in_precisions(ALL))
def test_neighbours_in_the_batch_change_nothing(name: str, dtype: torch.dtype) -> None:
    check_batch_invariance(lively(name, dtype), 17)


@pytest.mark.parametrize("name", BACKBONES)
def test_logits_only_where_they_are_scored(name: str) -> None:
    check_scored(lively(name, torch.float32), 17)


@pytest.mark.parametrize(("name", "dtype"), in_precisions(able("decodes")))
def test_decoding_is_the_forward_pass(name: str, dtype: torch.dtype) -> None:
    check_decoding(lively(name, dtype, training=False), 37 if name in SOLVED else 12)


@pytest.mark.parametrize("name", fast_only(able("decodes"), FAST))
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


@pytest.mark.parametrize(("name", "tied"), cases(ALL, [False, True], True, False))
def test_parameters_are_counted(name: str, tied: bool) -> None:
    check_parameters(build(name, tie_embeddings=tied), tied=tied)
    on_meta = Sizes(vocab_size=VOCABULARY, length=LONGEST).on_meta
    cls, config = read_yaml(name)
    config = dataclasses.replace(config, d_model=3 * config.width_multiple, tie_embeddings=tied)  # type: ignore[call-arg]
    real = cls(config, vocab_size=VOCABULARY, max_length=LONGEST)
    assert on_meta(cls, config).parameters_by_part() == real.parameters_by_part()


@pytest.mark.parametrize("name", fast_only([*SOLVED, *CHANGED], FAST))
def test_inactive_parameters_are_those_unused(name: str) -> None:
    check_inactive(lively(name))


@pytest.mark.parametrize(("name", "length"), cases(ALL, [1, 32], 7, 1))
def test_flops_are_those_that_run(name: str, length: int) -> None:
    _, config = read_yaml(name)
    check_flops(build(name, **plain_kernels(config)), length)


@pytest.mark.parametrize(("name", "case"), cases(able("decodes"), [(1, F32), (33, F64)], (6, F32), (33, F64)))
def test_the_state_has_the_predicted_size(name: str, case: tuple[int, torch.dtype]) -> None:
    length, dtype = case
    check_state_bytes(build(name, dtype), length)


@pytest.mark.parametrize(("name", "autocast"), cases(ALL, [False, True], True, True))
def test_every_parameter_learns(name: str, autocast: bool) -> None:
    torch.manual_seed(0)
    check_gradients(build(name), 33, autocast=autocast)


@pytest.mark.parametrize(("name", "tied"), cases(ALL, [False, True], False, False))
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


TARGETS = [
    ("non_embedding", 50_000),
    ("total", 250_000),
    ("active_non_embedding", 250_000),
    ("flops", 1_500_000),
]


@pytest.mark.parametrize("name", BACKBONES)
def test_the_solver_reaches_its_target(name: str) -> None:
    """On an axis that the name decides; test_size_solver.py has all axes."""
    axis, target = TARGETS[zlib.crc32(name.encode()) % len(TARGETS)]
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
