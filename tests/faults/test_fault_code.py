"""F35, F10: the record describes the code that ran, also where its files were edited meanwhile."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.experiments.run.run import run
from archbench.experiments.runtime import imported_sources
from archbench.experiments.runtime.errors import Preempted
from archbench.experiments.runtime.preemption import Interruptions
from archbench.experiments.tracking import provenance as provenance_module
from archbench.experiments.tracking.provenance import code_hashes
from tests import SOURCE
from tests.experiments import commands

WORDS = (*commands.TINY, *commands.RECALL, "trainer.log_every=5", "trainer.checkpoint_every=10")
OPTIMIZER = """from archbench.experiments.training.optimizers.adamw import AdamW

class Own(AdamW):
    def build(self, model):
        RATE = 1
        {late}
        return super().build(model)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a new module with an optimizer, in a folder on the path of modules."""
    name = f"f35_own_{random.randrange(2**40)}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(OPTIMIZER.format(late=""))
    yield name
    for path in [path for path in provenance_module._hashed if path.startswith(str(tmp_path.resolve()))]:
        del provenance_module._hashed[path]  # other tests of this process do not use it


@pytest.mark.parametrize("edit", ["changed", "same size and time", "emptied", "removed", "syntax error"])
def test_the_code_that_was_imported_is_recorded(tmp_path: Path, module: str, edit: str, record: Any) -> None:
    words = (*WORDS, f"optimizer._target_={module}.Own", f"runs={tmp_path}")
    path, settings = tmp_path / f"{module}.py", commands.settings(*words)
    original = path.read_text()
    stat = path.stat()
    texts = {
        "changed": "x = 1\n",
        "emptied": "",
        "syntax error": "][",
        "same size and time": original.replace("1", "2"),
    }
    path.unlink() if edit == "removed" else path.write_text(texts[edit])
    if edit == "same size and time":
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    run(settings)
    recorded = json.loads((settings.folder / "provenance.json").read_text())
    path.write_text(original)
    provenance_module._hash.cache_clear()
    assert recorded["code"][module] == code_hashes([module])[module]
    assert commands.result(settings.folder)["resume"]["exact"]
    record(
        "F35", f"module of the user's {edit} between import and record", 1, "the imported code is recorded"
    )


def test_a_module_that_is_edited_before_its_late_import_is_said(
    tmp_path: Path, module: str, capsys: pytest.CaptureFixture[str], record: Any
) -> None:
    late = f"{module}_late"
    edit = f"open({str(tmp_path / late)!r} + '.py', 'w').write('x = 2'); import {late}"
    (tmp_path / f"{module}.py").write_text(OPTIMIZER.format(late=edit))
    (tmp_path / f"{late}.py").write_text("x = 1")
    folder = commands.train(*WORDS, f"optimizer._target_={module}.Own", f"runs={tmp_path}")
    resume = commands.result(folder)["resume"]
    assert (resume["exact"], resume["changed"]["code"][1]) == (False, f"{late} edited")
    assert f"{late} was edited while the run trained" in capsys.readouterr().out
    assert any("not exact" in line for line in Comparison(load_study(tmp_path, "single")).warnings)
    record("F35", "module edited between record and late import", 1, "warned, exact: false")


def test_bytecode_of_an_earlier_source_is_not_run(tmp_path: Path) -> None:
    """Python takes it for that of a source with the same size and time."""
    path, program = tmp_path / "f35_stale.py", "import archbench, f35_stale; print(f35_stale.x)"
    environment = os.environ | {"PYTHONPATH": f"{SOURCE}:{tmp_path}"}
    seed = 4
    rng, printed = random.Random(seed), []
    for value in (1, 2, 3, 4):
        path.write_text(f"x = {value}")
        when = rng.choice([0, 10**9, 1_700_000_000])
        os.utime(path, (10**9, 10**9 if value > 1 else when))
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        printed.append(int(done.stdout))
    assert printed == [1, 2, 3, 4], f"seed {seed}"


def test_sources_of_installed_packages_are_not_kept() -> None:
    kept = imported_sources.kept()
    assert any(path.endswith("experiments/run/run.py") for path in kept)
    assert not any("site-packages/torch" in path for path in kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ATEN_CPU_CAPABILITY", "default"), ("ARCHBENCH_ISA", "sse2"), ("MKL_CBWR", "COMPATIBLE"),
     ("ONEDNN_MAX_CPU_ISA", "SSE41")],
)  # fmt: skip
@pytest.mark.full
def test_f10_a_run_that_continues_on_another_instruction_set_is_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, record: Any
) -> None:
    words, steps = (*WORDS, f"runs={tmp_path}"), iter(range(14))
    for variable in ("ATEN_CPU_CAPABILITY", "ARCHBENCH_ISA", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(variable, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(
            Interruptions, "reason", property(lambda self: None if next(steps, None) is not None else "x")
        )
        with pytest.raises(Preempted):
            commands.train(*words)
    done = commands.run("train", *words, **{name: value})
    assert done.returncode == 0, done.stderr
    folder = commands.settings(*words).folder
    resume = commands.result(folder)["resume"]
    assert not resume["exact"]
    assert set(resume["changed"]) & {
        "device.instruction_set",
        "device.pytorch_instruction_set",
        "device.library_settings",
    }
    record("F10", f"{name}={value} before resuming", 1, "warned, exact: false")
