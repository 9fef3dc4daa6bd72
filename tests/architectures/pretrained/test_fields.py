"""Fields of every class, changed one by one and in pairs: followed, refused by name, or without effect."""

import random
from pathlib import Path

import pytest

from tests.architectures.pretrained.field_values import (
    DYNAMIC,
    LINEAR,
    LONGROPE,
    PLAIN,
    REMOVED,
    YARN,
    Settings,
)
from tests.architectures.pretrained.fields import CLASSES, Case, declared, random_case, try_case, try_some
from tests.architectures.pretrained.folders import make_model
from tests.docs.field_tables import APPLIED, REJECTED, RESIZED, read_rows

HIDING = (
    "phi3_longrope",
    "smollm3",
    "olmo3",
    "gemma3",
    "gpt_oss",
    "qwen2",
    "qwen2_moe",
    "deepseek_v3",
    "modernbert",
)
"""Classes with fields that decide whether others are read."""
PHI4_MINI: Settings = {
    "rope_parameters": REMOVED,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.0, 5.0]},
    "rope_theta": 300.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 10,
}
"""Rotary positions in the keys of its published file."""
FOLLOWED_BESIDE: list[tuple[str, int, Settings]] = [
    ("smollm3", 3, {"use_sliding_window": False}),
    ("gemma3", 0, {"rope_parameters": LINEAR}),
    ("gemma3_linear", 0, {"rope_scaling": YARN}),
    ("olmo3", 0, {"rope_scaling": YARN}),
    ("modernbert", 0, {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}}),
    ("gpt_neox", 0, {"rope_parameters": REMOVED, "rotary_pct": 1.0, "rope_theta": 50.0}),
    ("gpt_oss", 0, {"rope_parameters": {}}),
    ("llama", 2, {"original_max_position_embeddings": 5}),
    ("qwen3_next", 0, {"rope_parameters": REMOVED, "partial_rotary_factor": None}),
    ("gpt2", 0, {"num_attention_heads": 2, "n_head": REMOVED}),
    ("phi3", 0, {"rope_parameters": LONGROPE, "original_max_position_embeddings": 10}),
    ("phi3", 0, {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 10}}),
    (
        "phi3",
        0,
        {"rope_scaling": LONGROPE | {"attention_factor": 1.5}, "original_max_position_embeddings": 22},
    ),
    ("phi3", 0, PHI4_MINI),
    ("llama", 0, {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 10, "factor": 3.0}}),
    ("llama", 0, {"rope_parameters": DYNAMIC, "max_position_embeddings": 10}),
    ("gemma3", 0, {"rope_parameters": {"full_attention": DYNAMIC}, "max_position_embeddings": 10}),
    ("qwen3", 0, {"mlp_bias": True}),
    ("mt5", 0, {"scale_decoder_outputs": True}),  # theirs reads neither this
    ("switch", 0, {"is_gated_act": True}),  # nor that
]
"""A folder to begin with, and fields that are read beside or instead of others."""
REFUSED_BESIDE: list[tuple[str, int, Settings]] = [
    ("gpt2", 0, {"num_attention_heads": 2}),
    ("bloom", 0, {"num_attention_heads": 2}),
    ("nemotron_h", 0, {"mamba_dt_min": 0.5}),
    ("gpt_oss", 0, {"partial_rotary_factor": 0.25}),
    ("phi3", 0, {"rope_parameters": LONGROPE | {"short_factor": [1.5] * 4, "long_factor": [0.0] * 4}}),
    ("granite", 2, {"partial_rotary_factor": 0.25}),  # theirs repeats the only frequency
]
"""The same, where others contradict them."""


@pytest.mark.full
@pytest.mark.parametrize("name", CLASSES)
def test_no_field_is_ignored(name: str, tmp_path: Path) -> None:
    """In the first folder of a class; the table is of all values, in all of its folders."""
    outcomes = try_some(name, tmp_path)
    problems = [outcome.problem for each in outcomes.values() for outcome in each if outcome.problem]
    assert not problems, "\n".join(problems)
    effects = {(row["field"], row["effect"]) for row in read_rows() if row["family"] == name}
    for key in declared(make_model(name).config):  # fields of other families are not in the table
        each = outcomes[key]
        if any(outcome.kind == "equal" and outcome.moved for outcome in each):
            assert effects & {(key, APPLIED), (key, RESIZED)}, f"{key} is applied"
        if any(outcome.kind == "refused" for outcome in each):
            assert (key, REJECTED) in effects, f"{key} is rejected"


@pytest.mark.fast
@pytest.mark.parametrize(("name", "base", "changes"), FOLLOWED_BESIDE)
def test_fields_are_followed_beside_others(name: str, base: int, changes: Settings, tmp_path: Path) -> None:
    outcome = try_case(Case(name=name, base=base, changes=changes), tmp_path)
    assert outcome.kind == "equal", outcome


@pytest.mark.fast
@pytest.mark.parametrize(("name", "base", "changes"), REFUSED_BESIDE)
def test_fields_that_contradict_others_are_refused(
    name: str, base: int, changes: Settings, tmp_path: Path
) -> None:
    outcome = try_case(Case(name=name, base=base, changes=changes), tmp_path)
    assert outcome.kind == "refused", outcome


@pytest.mark.fast
@pytest.mark.parametrize("name", HIDING)
def test_some_pairs_of_fields_are_not_ignored(name: str, tmp_path: Path) -> None:
    """More of them are in ``tests/faults/test_fuzz_folders.py``."""
    rng = random.Random(f"{name} 0")
    for number in range(6):
        case = random_case(name, rng.choice((2, 2, 2, 3)), rng, tmp_path)
        outcome = try_case(case, tmp_path / str(case.base))
        assert not outcome.problem, f"seed {name} 0, case {number}: {outcome.problem}"
