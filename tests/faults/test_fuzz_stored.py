"""F48: random damage of stored frames, files of learning rates and YAML is refused, or read as it stands."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf

from archbench.analysis.files import parquet
from archbench.experiments.config import CONF
from archbench.experiments.run.tuned_rates import read_rates
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.yaml_state import parse_yaml
from archbench.experiments.tracking.results_frame import KEY, read_results
from tests.experiments.run.test_tuned_rates import ARM
from tests.faults.children import in_a_child, seeds
from tests.faults.fuzzing import time_limit
from tests.faults.test_fuzz_damage import flip_bit, other_digit, zero_half

EACH = 25
"""Cases for each seed."""
FRAME = CONF.parent / "docs" / "results" / "compare.parquet"
VALUES = (None, "x", "0", [1], 0.7, 1.0, -1, True, 2**40, float("nan"), float("inf"), {"a": 1}, b"x", "", "{")
RATES = yaml.safe_dump(
    {"study": "tune", "seeds": [100, 101], "arms": [ARM, {**ARM, "backbone": "mamba", "undecided": [0.1]}]}
)
SNIPPETS = (
    "\t", "\n", ": ", "- ", "[", "]", "{", "}", "&a ", "*a", "!!int ", "? ", "null", "'", '"', "#", "0.7",
    ".nan", "1e999", "\0", "\ufeff", "<<: ", "%", "@", "true", "|\n", "seeds: [7]\n", "[" * 5000,
)  # fmt: skip


def refused(work: Callable[..., object], argument: Any, about: str, name: str = "") -> bool:
    """Return True for what is refused by one line with ``name``; any other error ends the test."""
    said = None
    try:
        with time_limit():
            work(argument)
    except ValueError as error:
        if isinstance(error, RunError) == bool(name):
            said = str(error)
        else:
            raise AssertionError(f"{about}: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{about}: {type(error).__name__}: {error}") from error
    assert said is None or ("\n" not in said and name in said), f"{about}: {said}"
    return said is not None


def other_value(frame: pd.DataFrame, rng: random.Random) -> tuple[pd.DataFrame, str]:
    """Return a frame with another value, and what was done."""
    frame = frame.astype(object)
    column, row = rng.choice([*KEY, "status", "score", *rng.sample([*frame], 4)]), rng.randrange(len(frame))
    value = rng.choice(VALUES)
    kind = rng.choice(("cell", "cell", "column", "row", "row", "drop", "rename"))
    if kind == "cell":
        frame[column] = [value if place == row else old for place, old in enumerate(frame[column])]
    elif kind == "column":
        frame[column] = [value] * len(frame)
    elif kind == "row":
        again = frame.iloc[[row]].assign(
            **{column: pd.Series([value], index=frame.index[[row]], dtype=object)}
        )
        frame = pd.concat([frame, again], ignore_index=True)
    elif kind == "drop":
        frame = frame.drop(columns=column)
    else:
        frame = frame.rename(columns={column: f"{column}x"})
    return frame.convert_dtypes(
        dtype_backend="pyarrow"
    ) if rng.random() < 0.2 else frame, f"{kind} {column} {value!r}"


def check_frame(path: Path, about: str) -> None:
    """A frame that is read says what pandas reads, each run once, and nothing that cannot be."""
    found, written = read_results(path).to_pandas(), pd.read_parquet(path)
    assert [*found] == [*written], about
    names = [name for name in (*KEY, "status", "score") if name in written]
    runs = written[names].drop_duplicates()
    assert len(found) == len(runs), about
    for name in names:
        same = [a == b or (pd.isna(a) and pd.isna(b)) for a, b in zip(found[name], runs[name], strict=True)]
        assert all(same), f"{about}: {name}"
    assert set(found["status"]) <= {*RunStatus}, about
    assert found.loc[found["status"] == "complete", "score"].abs().lt(float("inf")).all(), about
    assert not found.duplicated([name for name in names if name in KEY]).any(), about


@pytest.mark.full
@seeds(2, recorded=8)
def test_f48_another_value_in_a_stored_frame_is_refused_or_kept(
    seed: int, tmp_path: Path, record: Any
) -> None:
    frame, count = pd.read_parquet(FRAME), 0
    for case in range(EACH):
        rng = random.Random(1000 * seed + case)
        other, done = other_value(frame, rng)
        about, path = f"seed {seed}, case {case}: {done}", tmp_path / "frame.parquet"
        try:
            path.write_bytes(parquet(other))
        except Exception:  # Arrow mixes no types in a column: as text it does
            column = done.split()[1]
            path.write_bytes(parquet(other.assign(**{column: other[column].map(str)})))
        if refused(read_results, path, about, path.name):
            count += 1
        else:
            check_frame(path, about)
    assert count > EACH // 4, f"seed {seed}: {count} refused"
    record(
        "F48", "another value, row or column in a stored frame", EACH, "refused with row and column, or kept"
    )


@pytest.mark.full
@seeds(1, recorded=4)
def test_f48_damaged_bytes_of_a_stored_frame_are_found(
    seed: int, tmp_path: Path, record: Any, capfd: Any
) -> None:
    """In a process of its own, which a library that is given damaged bytes may end."""
    frame, path = pd.read_parquet(FRAME), tmp_path / "frame.parquet"
    whole = parquet(frame)

    def work() -> None:
        for case in range(2 * EACH):
            rng = random.Random(1000 * seed + 500 + case)
            damages = (flip_bit, flip_bit, zero_half, other_digit, cut)
            path.write_bytes(rng.choice(damages)(whole, rng))
            about = f"seed {seed}, case {case}"
            if not refused(read_results, path, about, path.name):
                pd.testing.assert_frame_equal(read_results(path).to_pandas(), frame, obj=about)

    assert in_a_child(work) == 0, capfd.readouterr().err[-2000:]
    record("F48", "damaged bytes of a stored frame", 2 * EACH, "refused, or without effect")


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def other_text(text: str, rng: random.Random) -> str:
    """Return a text with lines repeated, removed or exchanged, or something put in."""
    lines, place = text.splitlines(keepends=True), rng.randrange(len(text))
    row, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    return rng.choice((
        lambda: text[:place] + rng.choice(SNIPPETS) + text[place + rng.randrange(4):],
        lambda: text[:place] + text[place + rng.randrange(1, 9):],
        lambda: text[:place],
        lambda: "".join([*lines[:row], lines[other], *lines[row:]]),
        lambda: "".join([*lines[:row], *lines[row + 1:]]),
        lambda: other_digit(text.encode(), rng).decode(errors="replace"),
        lambda: "".join([*lines[:row], lines[row].rstrip() + rng.choice(SNIPPETS) + "\n", *lines[row + 1:]]),
    ))()  # fmt: skip


def reference(text: str) -> Any:
    """Return what OmegaConf's reader, in Python, makes of YAML; None where it refuses it.

    It refuses tabs at the end of a line, which YAML allows.
    """
    try:
        return OmegaConf.to_container(OmegaConf.create(text.removeprefix("\ufeff").replace("\t", " ")))
    except Exception:
        return None


@pytest.mark.full
@seeds(2, recorded=8)
def test_f48_a_damaged_file_of_rates_is_refused_or_read_as_it_stands(
    seed: int, tmp_path: Path, record: Any
) -> None:
    path = tmp_path / "rates.yaml"
    for case in range(2 * EACH):
        rng = random.Random(1000 * seed + case)
        text = other_text(RATES, rng)
        path.write_text(text, newline="")
        about = f"seed {seed}, case {case}: {text!r}"
        if refused(read_rates, path, about, path.name):
            continue
        rates, expected = read_rates(path), reference(text)
        assert expected is not None, about
        assert str(rates.study) == str(expected["study"]), about
        assert rates.seeds == expected["seeds"], about
        assert len({arm.key for arm in rates.arms}) == len(expected["arms"]), about
        for arm, said in zip(rates.arms, expected["arms"], strict=True):
            for key, value in said.items():
                kept = getattr(arm, key)
                same = kept == value or str(kept) == str(value) or float(kept) == float(value)
                assert same, f"{about}: {key} is {kept}"
    record("F48", "damaged files of learning rates", 2 * EACH, "refused by name, or read as they stand")


@pytest.mark.full
@seeds(2, recorded=8)
def test_f48_a_damaged_yaml_file_is_refused_or_read_as_omegaconf_reads_it(seed: int, record: Any) -> None:
    files = sorted([*CONF.rglob("*.yaml"), *(CONF.parent / "docs").rglob("*.yaml")])
    for case in range(2 * EACH):
        rng = random.Random(1000 * seed + case)
        path = rng.choice(files)
        text = other_text(path.read_text(), rng)
        about = f"seed {seed}, case {case}: {path.name}: {text[:300]!r}"
        text = text.removeprefix("\ufeff")
        if refused(parse_yaml, text, about):
            continue
        found = parse_yaml(text)
        if isinstance(found, dict) and (expected := reference(text)) is not None:
            assert repr(found).replace("\\t", " ") == repr(expected), about
    record("F48", "damaged YAML files", 2 * EACH, "refused with line and column, or read as they stand")
