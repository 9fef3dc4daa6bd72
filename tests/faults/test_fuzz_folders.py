"""F49: random settings of Hugging Face folders are followed as their library does, or refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.run.model_files import hugging_face
from archbench.experiments.runtime.errors import ConfigError
from tests.architectures.pretrained.fields import CLASSES, random_case, try_case
from tests.architectures.pretrained.folders import make_model
from tests.faults.fuzzing import time_limit

PAIRS, WRONG = 30, 40
"""Cases of each class."""
VALUES = (
    None, True, False, -1, 0, 1, 7, 10**9, 2**63, 0.5, -0.5, 1e300, float("nan"), float("inf"), "", "abc",
    "auto", "8", [], [1], [[1]], ["abc"], {}, {"a": 1}, {"rope_type": 3}, {"full_attention": 3},
)  # fmt: skip
"""Values of every type, most of which no field takes."""


@pytest.mark.full
@pytest.mark.parametrize("name", CLASSES)
def test_f49_random_pairs_of_fields_are_followed_or_refused(name: str, tmp_path: Path, record: Any) -> None:
    rng = random.Random(f"{name} 1")
    for number in range(PAIRS):
        case = random_case(name, rng.choice((2, 2, 2, 3)), rng, tmp_path)
        outcome = try_case(case, tmp_path / str(case.base))
        assert not outcome.problem, f"seed {name} 1, case {number}: {outcome.problem}"
    record(
        "F49", "random pairs of fields of a folder", PAIRS, "the logits of transformers, or refused by name"
    )


@pytest.mark.full
@pytest.mark.parametrize("name", CLASSES)
def test_f49_values_of_any_type_are_refused_in_one_line(name: str, tmp_path: Path, record: Any) -> None:
    make_model(name).save_pretrained(tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    rng = random.Random(f"{name} 2")
    for number in range(WRONG):
        key, value = rng.choice(sorted(whole.keys() - {"model_type"})), rng.choice(VALUES)
        (tmp_path / "config.json").write_text(json.dumps(whole | {key: value}))
        about = f"seed {name} 2, case {number}: {key}={value!r}"
        try:
            with time_limit():
                hugging_face(tmp_path)
        except ConfigError as error:
            message = str(error)
        except BaseException as error:
            raise AssertionError(f"{about}: {type(error).__name__}: {error}") from error
        else:
            continue
        assert len(message.splitlines()) == 1, f"{about}: {message}"
        assert "object at 0x" not in message, f"{about}: {message}"
    record("F49", "random values in config.json of a folder", WRONG, "opened, or refused in one line")
