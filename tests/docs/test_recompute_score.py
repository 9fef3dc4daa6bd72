"""The score of the record, recomputed by a script that shares no code with the evaluation."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.experiments import commands

SCRIPT = ROOT / "docs" / "reference" / "recompute_score.py"


@pytest.mark.full
@pytest.mark.parametrize("backbone", ["decoder", "mamba"])
def test_a_score_is_what_plain_pytorch_says_of_the_exported_model(backbone: str, tmp_path: Path) -> None:
    words = [word for word in commands.TINY if not word.startswith("trainer.test_examples")]
    cache = tmp_path / "cache"
    folder = commands.train(
        f"backbone={backbone}",
        *commands.SHORT_TEXT,
        *words,
        "budget.tokens=20000",
        f"task.cache_dir={cache}",
        f"runs={tmp_path / 'runs'}",
    )
    metric = commands.result(folder)["metrics"][0]
    assert (metric["scored"], metric["window"], metric["stride"]) == ("whole split", 64, 32)
    exported = tmp_path / "exported"
    done = commands.run("export", f"run={folder}", f"to={exported}")
    assert done.returncode == 0, done.stderr
    (key,) = cache.iterdir()
    found = subprocess.run(
        [sys.executable, str(SCRIPT), str(exported), str(key), "64"],
        capture_output=True,
        text=True,
        check=True,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    ).stdout
    assert float(found.split()[0]) == pytest.approx(metric["value"], rel=1e-6)


@pytest.mark.full
def test_so_does_a_mamba_in_plain_pytorch(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    words = [word for word in commands.TINY if not word.startswith("trainer.test_examples")]
    folder = commands.train(
        "backbone=mamba",
        "backbone.d_model=24",
        "backbone.d_inner=50",
        "scale=given",
        *commands.SHORT_TEXT,
        *(word for word in words if not word.startswith("scale")),
        "budget.tokens=20000",
        f"task.cache_dir={cache}",
        f"runs={tmp_path / 'runs'}",
    )
    (key,) = cache.iterdir()
    script = SCRIPT.with_name("recompute_mamba.py")
    found = subprocess.run(
        [sys.executable, str(script), str(commands.newest_checkpoint(folder)), str(key), "64"],
        capture_output=True,
        text=True,
        check=True,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    ).stdout
    value = commands.result(folder)["metrics"][0]["value"]
    assert float(found.split()[0]) == pytest.approx(value, rel=1e-6)


def test_the_script_is_of_twenty_lines_and_imports_nothing_of_ours() -> None:
    code = SCRIPT.read_text().partition('"""\n\n')[2]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 22
    assert not any(name in code for name in ("experiments", "architectures", "analysis"))
    assert "recompute_score.py" in (ROOT / "docs" / "reference" / "scoring.md").read_text()
