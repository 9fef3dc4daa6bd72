"""``archbench slurm prepare``: its commands, and an array of tasks, one of them killed and one requeued."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from archbench.experiments.runtime.errors import ConfigError
from archbench.slurm.cluster import ClusterConfig
from archbench.slurm.prepare import SubmitPreparationConfig, commands, split
from tests import ROOT, SOURCE
from tests.slurm import jobs


def test_its_own_words_are_told_from_those_of_the_preparation() -> None:
    config, others = split(["task=fineweb_edu", "tasks=8", "processes=2", "submit=true"])
    assert config == SubmitPreparationConfig(tasks=8, submit=True)
    assert others == ["task=fineweb_edu", "processes=2"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tasks=0", "tasks=0 must be at least 1"),
        ("max_running=0", "max_running=0 must be at least 1"),
        ("stage=parts", "gives each job its own"),
        ("processes=0", "processes=0 must be at least 1"),
        ("tracking.api_key=abcdefgh", "looks like a secret"),
    ],
)
def test_a_bad_word_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split([word])


def test_the_array_waits_for_the_plan_and_the_merge_for_the_array(tmp_path: Path) -> None:
    cluster = ClusterConfig(partition="cpu", cpus_per_task=4)
    found = commands(cluster, SubmitPreparationConfig(tasks=8, max_running=2), ["task=x"], tmp_path)
    assert list(found) == ["plan", "parts", "merge"]
    assert found["plan"][-2:] == ["task=x", "stage=plan"]
    assert {"--array=0-7%2", "--dependency=afterany:$plan", "stage=parts", "share=slurm"} < set(
        found["parts"]
    )
    assert "--dependency=afterany:$parts" in found["merge"]
    assert found["merge"][-1] == "task=x"
    assert all({"--partition=cpu", "--cpus-per-task=4"} < set(command) for command in found.values())


def test_a_dry_run_submits_nothing(tmp_path: Path) -> None:
    printed = jobs.module(
        "archbench.slurm.prepare", "task=fineweb_edu", "tasks=2", "cluster=slurm/cluster.env.example"
    )
    *shown, said, command = printed.splitlines()
    assert [line.partition(": sbatch ")[0].strip() for line in shown] == ["plan", "parts", "merge"]
    assert "Nothing was submitted" in said
    words = ["task=fineweb_edu", "tasks=2", "cluster=slurm/cluster.env.example", "submit=true"]
    assert shlex.split(command) == ["archbench", "slurm", "prepare", *words]


SLOW = """
import time
from archbench.experiments.data.preparation import part

honest = part.Worker.write
def slow(worker, wanted):
    if wanted.index >= 3:
        time.sleep(6)
    return honest(worker, wanted)
part.Worker.write = slow
"""
"""A sitecustomize: all but the first part of each of three tasks take some seconds."""


@pytest.mark.slurm
def test_tasks_of_an_array_write_what_one_process_does(
    low: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    made = tmp_path / "made"
    subprocess.run(
        [
            sys.executable,
            "benchmarks/made_corpus.py",
            str(made),
            "--megabytes",
            "6",
            "--shards",
            "3",
            "--row-group",
            "200",
        ],
        cwd=ROOT,
        check=True,
    )
    words = ("task=fineweb_edu", f"task.dataset={made}", f"runs={tmp_path / 'runs'}")
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'slow'}:{SOURCE}")
    cache, alone = tmp_path / "array", tmp_path / "alone"
    printed = jobs.module(
        "archbench.slurm.prepare",
        *words,
        f"task.cache_dir={cache}",
        f"cluster={low}",
        "tasks=3",
        "submit=true",
    )
    ids = {
        line.split(":")[0]: line.split()[2].rstrip(":") for line in printed.splitlines() if ": job" in line
    }
    logs = Path(printed.splitlines()[-1].removeprefix("Logs in ").rstrip("."))

    def parts(task: int) -> int:
        """Return the number of parts that the task has made."""
        names = [path.name for path in cache.glob(".*.parts/train-*.json")]
        return sum(int(name.split("-")[1]) % 3 == task for name in names)

    jobs.wait_for("the first parts", lambda: parts(0) > 0 and parts(1) > 0)
    before = {path: path.stat().st_mtime_ns for path in cache.glob(".*.parts/train-*.json")}
    jobs.run("scancel", "--signal=KILL", "--full", f"{ids['parts']}_0")
    jobs.run("scontrol", "requeue", f"{ids['parts']}_1")
    jobs.wait_for("the array", lambda: not jobs.queue(f"--job={ids['parts']}").strip(), 600)
    assert not jobs.sacct(f"{ids['parts']}_0").startswith("COMPLETED")
    kept = {path: path.stat().st_mtime_ns for path in before if path.exists()}
    assert kept.items() <= before.items(), "what was done is not done again"
    jobs.wait_for("the end", lambda: not jobs.queue(f"--job={ids['merge']}").strip(), 600)
    assert jobs.sacct(ids["merge"]) == "COMPLETED|0:0", (logs / "merge.out").read_text()
    said = (logs / "merge.out").read_text()
    assert " 0 of them now" not in said, "the killed task left nothing to be made"
    assert "ready; examples" in said

    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    jobs.module("archbench.experiments.prepare", *words, f"task.cache_dir={alone}", "processes=1")
    files = [{path.name: path.read_bytes() for path in folder.glob("*/*")} for folder in (cache, alone)]
    assert set(files[0]) == {"train.bin", "validation.bin", "test.bin", "meta.json"}
    assert files[0] == files[1]
