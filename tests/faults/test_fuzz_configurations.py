"""F45: random configurations around the schema are planned as they were typed, or refused in clear words."""

from __future__ import annotations

import itertools
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.experiments import commands
from tests.faults.children import in_a_child, seeds
from tests.faults.fuzzing import HangError, composed, outcome, random_words, time_limit

EACH = 20
"""Cases for each seed."""
CODES = {0, 2, 3, 4, 5, 6}
MEMORY = 12 * 2**30
"""Bytes that a process may address: what asks for more is refused by the system, and not by the machine."""


@pytest.mark.full
@seeds(5, recorded=25)
def test_f45_a_random_configuration_is_planned_or_refused(seed: int, record: Any, capfd: Any) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
        found: Counter[str] = Counter()
        for case in range(EACH):
            words = random_words(random.Random(1000 * seed + case))
            # Hydra itself composes some; for the others its rules are applied to a configuration made before.
            found[outcome(words, composed if case % 5 else lambda given: commands.compose(*given))] += 1
        assert set(found) <= {"planned", *map(str, CODES)}, found

    assert in_a_child(work) == 0, f"seed {seed}: {capfd.readouterr().err[-2000:]}"
    record("F45", "random configurations, composed and planned", EACH, "as typed, or refused")


@pytest.mark.full
@seeds(2, recorded=4)
def test_f45_a_random_command_ends_with_a_documented_code(seed: int, tmp_path: Path, record: Any) -> None:
    words = (*random_words(random.Random(90_000 + seed)), "budget.tokens=500", "device.threads=1")
    command = [
        sys.executable,
        "-m",
        "archbench.experiments.train",
        *words,
        f"runs={tmp_path}",
        "trainer.test_examples=8",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode in CODES, (words, done.stderr)
    assert "Traceback" not in done.stderr, (words, done.stderr)
    assert (done.returncode == 0) == (not done.stderr.startswith("error")), (words, done.stderr)
    record("F45", "random commands, trained", 1, "a documented exit code, no traceback")


@pytest.mark.full
def test_the_time_limit_finds_what_hangs() -> None:
    with pytest.raises(HangError), time_limit(10, wall=1):
        time.sleep(60)
    with pytest.raises(HangError), time_limit(1, wall=60):
        any(number < 0 for number in itertools.count())
