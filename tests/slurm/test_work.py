"""The program of a job: the command of a step, when to requeue, and what to say where that is impossible."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from archbench.slurm import work
from archbench.slurm.work import Job, requeue, step

TRAIN = [sys.executable, "-m", "archbench.experiments.train", "seed=1"]
USR1, TERM = signal.SIGUSR1, signal.SIGTERM


def test_one_process_is_plain_and_several_get_their_ranks() -> None:
    alone = step(["seed=1"], {"SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "8"}, packed=False)
    assert alone[-5:] == ["--ntasks=1", *TRAIN]
    assert "--cpus-per-task=8" in alone
    many = step(["seed=1"], {"SLURM_NTASKS": "4"}, packed=False)
    assert "--ntasks=4" in many
    assert many[-7:-4] == ["-c", work.EXPORT_RANK, "rank"]
    assert many[-4:] == TRAIN
    assert "--ntasks=2" in step([], {"SLURM_JOB_NUM_NODES": "2"}, packed=False)
    assert "--overlap" in step([], {"SLURM_NTASKS": "1"}, packed=True)


@pytest.mark.parametrize(
    ("signals", "codes", "again"),
    [
        ((), [0, 0], False),
        ((), [0, 75], True),  # the step alone was told, or the run saw its time run out
        ((), [1, 137], False),  # failed, killed
        ((USR1,), [0, 75], True),
        ((USR1,), [138], True),  # told before it could listen
        ((USR1,), [0, 4], False),
        ((TERM,), [75], False),  # cancelled, or at its end: SLURM decides
        ((USR1, TERM), [75], False),
    ],
)
def test_when_a_job_goes_back_into_the_queue(signals: tuple[int, ...], codes: list[int], again: bool) -> None:
    job = Job([[] for _ in codes])
    job.received_signals.update(signals)
    assert job.interrupted(codes) is again


def commands(folder: Path, **scripts: str) -> str:
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


MPS = 'echo "$@ $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> CALLS'
"""A stand-in for NVIDIA's control command, which notes its words, its input, and the folder of its pipes."""


def test_packed_runs_share_a_gpu_by_mps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = tmp_path / "calls"
    path = commands(tmp_path, **{work.MPS: MPS.replace("CALLS", str(calls))}) + ":/usr/bin:/bin"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", path)
    given = {"PATH": path, "CUDA_VISIBLE_DEVICES": "0"}
    with work.shared_gpu(given) as environment:
        folder = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(folder).is_dir()
        assert environment == given | {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        assert calls.read_text().split() == ["-d", folder]
    assert calls.read_text().split() == ["-d", folder, "quit", folder]
    assert not Path(folder).exists()
    assert capsys.readouterr().out == "[job 7] runs share the GPU by MPS\n"


@pytest.mark.parametrize("case", ["no gpu", "no mps", "it fails"])
def test_without_mps_runs_take_turns(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    if case != "no mps":
        commands(tmp_path, **{work.MPS: "echo no permission >&2; exit 1"})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    given = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "" if case == "no gpu" else "0"}
    with work.shared_gpu(given) as environment:
        assert environment == given
    said = capsys.readouterr().out
    if case == "it fails":
        assert said == f"[job 7] runs take turns on the GPU: {work.MPS} failed (no permission)\n"
    else:
        assert said == ""


def test_without_slurms_commands_the_person_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    requeue("sbatch again")
    error = capsys.readouterr().err
    assert "Nothing is lost" in error
    assert error.endswith("To resume: sbatch again\n")
    monkeypatch.setenv("PATH", commands(tmp_path, squeue="echo RUNNING", scontrol="echo denied >&2; exit 1"))
    requeue("sbatch again")
    assert "(scontrol: denied)" in capsys.readouterr().err


def test_a_job_that_is_being_cancelled_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", commands(tmp_path, squeue="echo COMPLETING", scontrol="echo called >&2"))
    requeue("")
    captured = capsys.readouterr()
    assert captured.out == "[job 7] not requeued: the job is COMPLETING\n"
    assert not captured.err


def test_a_task_of_an_array_is_named_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # also the number of the array, for its last task
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    assert work.job_id() == "7"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
    assert work.job_id() == "7_5"


def test_outside_of_a_job_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert work.main(["seed=0"]) == 2
    assert "sbatch slurm/train.sbatch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("record", "task", "code", "message"),
    [
        (None, "0", 6, r"runs\.json: is missing: .*submit again"),
        ("[" * 4000, "0", 6, r"runs\.json: is damaged \(nested too deeply\)"),
        ('{"format": 1, "runs": [{}]}', "0", 6, r"runs\.json: is damaged \(runs\.0\.key: Field required\)"),
        (
            '{"format": 1, "runs": []}',
            "3",
            6,
            r"runs\.json: it has no run for task 3: submit the study",
        ),
        (
            '{"format": 1, "runs": []}',
            None,
            2,
            "no task of an array runs it: submit it with archbench slurm submit",
        ),
    ],
)
def test_a_job_that_cannot_tell_its_runs_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: str | None,
    task: str | None,
    code: int,
    message: str,
) -> None:
    """With exit code 0 it would look like a job whose runs have ended."""
    folder = tmp_path / "study" / "slurm" / "id"
    folder.mkdir(parents=True)
    if record is not None:
        (folder / "runs.json").write_text(record)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    if task is not None:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
    assert work.main([f"submission={folder}"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{message}", line)
