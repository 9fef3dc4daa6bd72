"""Jobs that ``archbench slurm submit`` prints, and the file of cluster settings; no cluster is asked."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from archbench.experiments.config.schema import DeviceConfig, ParallelConfig
from archbench.experiments.config.study import study_command
from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.slurm import submit
from archbench.slurm.allocation import Allocation, TimeLimits, allocation, minutes
from archbench.slurm.cluster import ClusterConfig, read_cluster
from archbench.slurm.jobs import commands, submit_jobs
from archbench.slurm.queue import Task
from archbench.slurm.submission import (
    StudyRun,
    Submission,
    new_folder,
    read_submission,
    submissions,
    write_submission,
)
from archbench.slurm.submit import SubmitConfig, assign, missing, split
from tests import SOURCE
from tests.results import write_result
from tests.slurm import jobs


def run(folder: Path, seed: int = 0, task: int | None = None) -> StudyRun:
    return StudyRun(
        key=f"a-b-c-0-s{seed}", name="a-b-c", seed=seed, folder=str(folder), words=["x"], task=task
    )


def test_its_own_words_are_told_from_those_of_the_run() -> None:
    words = ["-m", "study=compare", "submit=true", "seed=0,1", "runs_per_task=4", "budget.tokens=10"]
    config, others = split(words)
    assert config == SubmitConfig(submit=True, runs_per_task=4)
    assert others == ["-m", "study=compare", "seed=0,1", "budget.tokens=10"]


@pytest.mark.parametrize("word", ["runs_per_task=0", "max_running=0", "submit=maybe"])
def test_a_bad_word_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=word.partition("=")[0]):
        split([word])


def test_a_dry_run_composes_the_runs_as_training_does(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = ("-m", *jobs.CELL, "backbone=decoder,encoder", "objective=causal_lm", "seed=0,1", "study.name=x")
    (tmp_path / "c.env").write_text("CLUSTER_PARTITION=gpu\nCLUSTER_TIME=01:00:00\n")
    asked = (*words, f"runs={runs}", f"cluster={tmp_path / 'c.env'}", "runs_per_task=2", "max_running=3")
    printed = jobs.module(
        "archbench.slurm.submit", *asked, expected=2
    )  # the pair that cannot be, as in a sweep
    assert printed.count("objective=causal_lm needs a causal backbone") == 2
    assert "2 runs, 0 ended, 0 in the queue, 2 to submit" in printed
    lines = [line for line in printed.splitlines() if "sbatch" in line]
    assert len(lines) == 3
    assert all("--partition=gpu --time=01:00:00" in line for line in lines)
    assert "--array=0-0%3" in lines[1]
    assert not list(runs.rglob("runs.json"))


def test_words_of_a_run_compose_to_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "argv", ["submit"])
    words = ["-m", *jobs.CELL, "seed=0,1", "optimizer.learning_rate=0.001,0.01", f"runs={tmp_path}"]
    runs = submit.plan_runs(words).runs
    assert len({each.folder for each in runs}) == 4
    for each in runs[::3]:
        (again,) = submit.plan_runs(each.words).runs
        assert (again.key, again.folder) == (each.key, each.folder)


def test_runs_that_are_done_or_queued_are_left_out(tmp_path: Path) -> None:
    states = {
        0: "complete",
        1: "diverged",
        2: "oom",
        3: "failed",
        4: "preempted",
        5: None,
        6: None,
        7: "refused",
    }
    runs = []
    for seed, status in states.items():
        folder = tmp_path / "a-b-c-0" / f"s{seed}"
        folder.mkdir(parents=True)
        if status:
            write_result(folder, {"status": status})
        runs.append(run(folder, seed))
    chosen = missing(runs, {runs[6].key: Task(job="1_0", state="PENDING")})
    assert [each.seed for each in chosen] == [3, 4, 5, 7]
    assert [each.task for each in assign(runs, chosen, 2)] == [None, None, None, 0, 0, 1, None, 1]


def test_resubmitting_a_refused_run_says_why_it_will_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine" / "cell" / "s0"
    folder.mkdir(parents=True)
    write_result(folder, {"status": "refused", "message": "10 is too small\nmore"})
    planned = submit.Plan(runs=[run(folder)], refused=[], study=tmp_path / "mine")
    monkeypatch.setattr(submit, "plan_runs", lambda words, cluster, packed: planned)
    assert submit.submit(["study=mine"]) == 0
    printed = capsys.readouterr().out
    assert (
        f"{run(folder).key} was rejected, and will be again unless this was fixed: 10 is too small" in printed
    )
    assert "1 to submit" in printed


def test_the_jobs_wait_for_each_other_and_take_what_the_cluster_file_says(tmp_path: Path) -> None:
    cluster = ClusterConfig(partition="gpu", options="--constraint='a b'")
    folder = tmp_path / "study" / "slurm" / "id"
    asked = Allocation(nodes=2, gpus_per_node=2)
    runs = [dataclasses.replace(run(tmp_path, seed, task=seed), allocation=asked) for seed in range(3)]
    jobs = commands(cluster, folder, runs, ["study=study"])
    assert list(jobs) == ["prepare", "runs", "analysis"]
    assert {"--dependency=afterany:$prepare", "--array=0-2", "--nodes=2", "--gpus-per-node=2"} < set(
        jobs["runs"]
    )
    assert "--constraint=a b" in jobs["runs"]
    assert "--dependency=afterany:$runs" in jobs["analysis"]
    assert not any("gpus" in word for name in ("prepare", "analysis") for word in jobs[name])
    assert jobs["prepare"][-2:] == ["archbench.experiments.prepare", "study=study"]


def test_runs_that_ask_for_different_resources_are_arrays_of_one_name(tmp_path: Path) -> None:
    small, large = Allocation(), Allocation(nodes=2, tasks_per_node=4, gpus_per_node=4, time="0-02:10:00")
    longer = dataclasses.replace(large, time="1-00:00:00")
    asked = [large, small, longer, small, dataclasses.replace(small, time="0-01:00:00")]
    runs = [dataclasses.replace(run(tmp_path, seed), allocation=asked[seed]) for seed in range(5)]
    assigned = assign(runs, runs, 1)
    assert [each.task for each in assigned] == [0, 2, 1, 3, 4]
    jobs = commands(ClusterConfig(time="2-0"), tmp_path / "s" / "slurm" / "id", assigned, [], 2)
    assert list(jobs) == ["prepare", "runs_2x4", "runs_1x1", "analysis"]
    wide, narrow = jobs["runs_2x4"], jobs["runs_1x1"]
    assert {"--array=0-1%2", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"} < set(wide)
    assert wide.index("--time=2-0") < wide.index("--time=1-00:00:00"), "the last one holds"
    assert {"--array=2-4%2", "--nodes=1"} < set(narrow)
    assert [word for word in narrow if word.startswith("--time")] == ["--time=2-0"]
    assert "--dependency=afterany:$runs_2x4:$runs_1x1" in jobs["analysis"]
    names = [word for command in jobs.values() for word in command if word.startswith("--job-name=")]
    assert names[1] == names[2] == "--job-name=archbench-s-id"


def test_a_later_job_waits_for_every_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = stub_slurm(tmp_path, monkeypatch, sbatch=f"expr 40 + $(grep -c sbatch {tmp_path}/called)")
    submit_jobs(
        {
            "runs": ["sbatch", "a"],
            "runs_2x4": ["sbatch", "b"],
            "analysis": ["sbatch", "--dependency=afterany:$runs:$runs_2x4"],
        }
    )
    assert notes.read_text().splitlines()[-1] == "sbatch --dependency=afterany:41:42"


@pytest.mark.parametrize(
    ("parallel", "device", "expected"),
    [
        ({}, "auto", Allocation(nodes=1, tasks_per_node=2, gpus_per_node=2)),
        ({"nodes": 4}, "auto", Allocation(nodes=4, tasks_per_node=2, gpus_per_node=2)),
        (
            {"nodes": 4, "gpus_per_node": 8},
            "auto",
            Allocation(nodes=4, tasks_per_node=8, gpus_per_node=8),
        ),
        ({"gpus_per_node": 8}, "cpu", Allocation(nodes=1, tasks_per_node=8, gpus_per_node=0)),
    ],
)
def test_the_settings_of_a_run_win_over_the_cluster_file(
    parallel: dict[str, int], device: str, expected: Allocation
) -> None:
    cluster = ClusterConfig(tasks_per_node=2, gpus_per_node=2)
    settings = SimpleNamespace(parallel=ParallelConfig(**parallel), device=DeviceConfig(name=device))
    assert allocation(settings, cluster) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("time", "expected"),
    [("30", 30), ("1:30", 1.5), ("04:00:00", 240), ("1-02", 1560), ("1-02:30", 1590), ("1-02:30:30", 1590.5)],
)
def test_time_limits_are_read_as_sbatch_reads_them(time: str, expected: float) -> None:
    assert minutes(time) == expected


def test_a_time_limit_that_is_none_is_refused() -> None:
    assert minutes("UNLIMITED") == float("inf")
    with pytest.raises(ConfigError, match="CLUSTER_TIME=4h is no time limit"):
        TimeLimits("4h")


@pytest.mark.full
def test_a_recipe_asks_for_its_nodes_and_for_the_time_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["submit"])
    words = ["study=recipe/350m", "backbone=decoder", "device=h100", f"runs={tmp_path}"]
    (planned,) = submit.plan_runs(words, ClusterConfig(time="2-00:00:00", gpus_per_node=1)).runs
    asked = planned.allocation
    assert (asked.nodes, asked.tasks_per_node, asked.gpus_per_node) == (1, 8, 8)
    # 6 x 350M x 7B FLOPs at 8 x 0.4 x 989e12 a second are 4,650 s; a quarter more, and 15 minutes to start.
    assert 90 <= minutes(asked.time) <= 130
    (shorter,) = submit.plan_runs(words, ClusterConfig(time="60")).runs
    assert shorter.allocation.time == "", "the limit of the cluster's file, which is shorter, holds"


JOBS = {
    "prepare": ["sbatch", "prepare"],
    "runs": ["sbatch", "--dependency=afterany:$prepare"],
    "analysis": ["sbatch", "--dependency=afterany:$runs"],
}


def stub_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, *, sbatch: str, scancel: str = "true") -> Path:
    """Put programs before SLURM's that note how they are called; return the notes."""
    notes = folder / "called"
    for name, body in (("sbatch", sbatch), ("scancel", scancel)):
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {notes}\n{body}\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return notes


def test_a_study_is_submitted_wholly_or_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = f"[ $(grep -c sbatch {tmp_path}/called) = 3 ] && echo 'no quota' >&2 && exit 1; echo 41"
    notes = stub_slurm(tmp_path, monkeypatch, sbatch=fails)
    with pytest.raises(RunError, match=r"no quota; withdrawn again: prepare \(41\), runs \(41\)"):
        submit_jobs(JOBS)
    assert notes.read_text().splitlines()[-1] == "scancel 41 41"
    stub_slurm(tmp_path, monkeypatch, sbatch=fails, scancel="exit 1")
    notes.unlink()
    with pytest.raises(RunError, match="could not be withdrawn"):
        submit_jobs(JOBS)


@pytest.mark.parametrize(("at", "left"), [(1, 1), (2, 2), (3, 3)])
def test_a_signal_while_jobs_are_submitted_leaves_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, left: int
) -> None:
    """Such as SIGHUP, when the terminal is closed."""
    stops = f"[ $(grep -c sbatch {tmp_path}/called) = {at} ] && kill -HUP {os.getpid()}; echo 41"
    notes = stub_slurm(tmp_path, monkeypatch, sbatch=stops)
    before = signal.getsignal(signal.SIGHUP)
    if at == 3:
        assert len(submit_jobs(JOBS)) == 3
        assert "scancel" not in notes.read_text()
    else:
        with pytest.raises(RunError, match="stopped by SIGHUP; withdrawn again: prepare"):
            submit_jobs(JOBS)
        assert notes.read_text().splitlines()[-1] == "scancel" + " 41" * left
    assert signal.getsignal(signal.SIGHUP) == before


def test_values_of_variables_are_read_by_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KEY", "canary7A")
    word = "+study.values.note=${oc.env:OPENAI_KEY}"
    (run,) = submit.plan_runs([*jobs.CELL, "study.name=mine", word]).runs
    assert word in run.words
    assert "canary7A" not in " ".join(run.words)


@pytest.mark.full
def test_a_closed_pipe_does_not_leave_half_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = stub_slurm(tmp_path, monkeypatch, sbatch="echo 41")
    program = tmp_path / "program.py"
    program.write_text(
        "from archbench.experiments.runtime.streams import guard_streams\n"
        "from archbench.slurm.jobs import submit_jobs\n"
        "guard_streams()  # as every command does\n"
        "for _ in range(20_000):\n    print('a line that nobody reads')\n"
        f"print(*submit_jobs({JOBS}))\nprint('end')\n"
    )
    command = f"PYTHONPATH={SOURCE} {sys.executable} {program} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert notes.read_text().splitlines() == [
        "sbatch prepare",
        "sbatch --dependency=afterany:41",
        "sbatch --dependency=afterany:41",
    ]


def test_a_submission_is_read_as_it_was_written(tmp_path: Path) -> None:
    study = tmp_path / "mine"
    folders = [new_folder(study) for _ in range(2)]
    assert folders[0] != folders[1]
    asked = Allocation(nodes=2, tasks_per_node=4, time="0-01:00:00")
    runs = [dataclasses.replace(run(tmp_path / "s0", 0, 0), allocation=asked), run(tmp_path / "s1", 1)]
    write_submission(folders[0], runs)
    assert read_submission(folders[0]) == Submission(folder=folders[0], runs=runs)
    assert [each.name for each in submissions(study)] == [f"archbench-mine-{folders[0].name}"]


def test_the_example_of_a_cluster_file_is_read_and_sourced() -> None:
    path = jobs.ROOT / "slurm" / "cluster.env.example"
    cluster = read_cluster(path)
    assert (cluster.partition, cluster.gpus_per_node, cluster.mem) == ("gpu", 1, "32G")
    printed = jobs.run("env", "-i", "bash", "-euc", f"set -a; source {path}; env")
    variables = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["CLUSTER_TIME"] == cluster.time
    assert variables["TRITON_CACHE_DIR"].startswith("/tmp/archbench-")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("CLUSTER_PARTITON=gpu", "did you mean 'partition'"),
        ("CLUSTER_NODES=0", "at least 1"),
        ("CLUSTER_NODES=two", "nodes"),
        ("CLUSTER_OPTIONS=--a --b", "needs quotes"),
        ("CLUSTER_ACCOUNT=$USER", "write it out"),
        ('CLUSTER_OPTIONS="--a', "No closing quotation"),
    ],
)
def test_a_mistake_in_the_cluster_file_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "cluster.env"
    path.write_text(f"# mine\nHF_HOME=$HOME/hf\n{line}\n")
    with pytest.raises(ConfigError, match=message) as refused:
        read_cluster(path)
    assert str(path) in str(refused.value)


def test_no_cluster_file_and_a_wrong_folder_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"copy slurm/cluster\.env\.example"):
        read_cluster(tmp_path / "absent.env")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="root of the checkout"):
        submit.submit(["study=compare"])


def test_runs_of_several_processes_do_not_share_a_task(tmp_path: Path) -> None:
    path = tmp_path / "c.env"
    path.write_text("CLUSTER_NODES=2\n")
    with pytest.raises(ConfigError, match="runs_per_task=2"):
        submit.submit(["study=compare", f"cluster={path}", "runs_per_task=2"])


def test_the_printed_watch_command_is_one() -> None:
    words = shlex.split(study_command("slurm status", Path.cwd() / "runs" / "my own"))
    assert words == ["archbench", "slurm", "status", "study=my own"]
    elsewhere = shlex.split(study_command("slurm status", Path("/big/runs/mine")))
    assert elsewhere[3:] == ["study=mine", "runs=/big/runs"]


HOSTILE = (
    "$(touch pwned)", "`touch pwned`", "a; touch pwned", "a && touch pwned", "$prepare", "$runs",
    "x=afterany:$(touch pwned)",
    "it's", 'a "b"', "a\nb", "*", "~", "-x", "%j", "\\", "${HOME}", "!x", "a\tb", "",
)  # fmt: skip
"""Values that a shell, sbatch, or the references between jobs could take for more than text."""
PROGRAM = '#!/bin/sh\nprintf \'%s\\0\' "$@" > "$CALLS/$(ls "$CALLS" | wc -l)"\necho 41\n'
"""Records its arguments, as they are."""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """sbatch and python that record their arguments; returns what these were, call by call."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "calls").mkdir()
    for name in ("sbatch", "recorder"):
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))

    def made() -> list[list[str]]:
        paths = sorted((tmp_path / "calls").iterdir(), key=lambda path: int(path.name))
        return [path.read_bytes().decode().split("\0")[:-1] for path in paths]

    return made


def test_hostile_words_reach_sbatch_as_they_are(tmp_path: Path, calls: Callable[[], list[list[str]]]) -> None:
    folder = new_folder(tmp_path / "a 'b' $(touch pwned) %j" / "study")
    words = [f"+study.values.note={value}" for value in HOSTILE]
    submitted = commands(ClusterConfig(), folder, [run(tmp_path, task=0)], words)
    submit_jobs(submitted)
    prepare, runs, analysis = calls()
    assert prepare[-len(words) :] == words
    assert runs[-1] == str(folder)
    assert [word for word in runs if word.startswith("--dependency")] == ["--dependency=afterany:41"]
    assert f"--output={str(folder).replace('%', '%%')}/%a.out" in runs
    assert analysis[-1] == f"runs={folder.parents[2]}"
    assert not list(Path.cwd().glob("pwned"))


@pytest.mark.parametrize("script", ["module.sbatch", "train.sbatch"])
def test_job_scripts_hand_hostile_words_on_as_they_are(
    tmp_path: Path, calls: Callable[[], list[list[str]]], script: str
) -> None:
    words = ["archbench.experiments.prepare", *(f"+study.values.note={value}" for value in HOSTILE)]
    environment = os.environ | {"ARCHBENCH_CLUSTER": str(jobs.cluster_file(tmp_path, "cpu"))}
    (tmp_path / "cpu.env").write_text("CLUSTER_PYTHON=recorder\n")
    subprocess.run(["bash", f"slurm/{script}", *words], check=True, env=environment, cwd=jobs.ROOT)
    [[*given]] = calls()
    assert given[-len(words) :] == words


def test_a_cluster_file_runs_nothing_when_it_is_read(tmp_path: Path) -> None:
    for value in ("$(touch pwned)", "`touch pwned`", "'$HOME'"):
        (tmp_path / "c.env").write_text(f"CLUSTER_PARTITION={value}\n")
        with pytest.raises(ConfigError, match=r"taken as they are|needs quotes"):
            read_cluster(tmp_path / "c.env")
    assert not list(Path.cwd().glob("pwned"))
