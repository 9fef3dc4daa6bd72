"""slurm/train.sbatch on a real SLURM: time limits, cancellation, two nodes, a cluster without scontrol."""

from __future__ import annotations

import signal
import socket
import sys
import textwrap
from pathlib import Path

import pytest

from tests.slurm import jobs

pytestmark = pytest.mark.slurm

TRAIN = "slurm/train.sbatch"


def test_a_run_out_of_time_saves_itself_and_goes_on_after_a_requeue(low: Path, tmp_path: Path) -> None:
    log, runs = tmp_path / "job.out", tmp_path / "runs"
    limits = ("--time=1", "--signal=B:USR1@20", "--partition=low", f"--output={log}")
    job = jobs.sbatch(*limits, TRAIN, *jobs.LONG, f"runs={runs}")
    folder = jobs.only_run(runs)
    jobs.wait_for("the second sitting", lambda: "resumed at step" in log.read_text())
    text = log.read_text()
    assert text.index("preempted: stopped") < text.index("requeued") < text.index("restart 1")
    assert len(list(runs.glob("*/*/s*"))) == 1, "the second sitting has a folder of its own"
    resumed = int(text.split("resumed at step ")[1].split()[0])
    jobs.wait_for("a checkpoint of the second sitting", lambda: jobs.step(folder) > resumed)

    jobs.run("scancel", job)  # and a cancelled job stays cancelled
    jobs.wait_until_gone(f"--job={job}")
    assert jobs.sacct(job).startswith("CANCELLED")
    assert jobs.step(folder) > resumed
    assert "restart 2" not in log.read_text()


def test_without_scontrol_the_run_is_kept_and_the_person_told(
    low: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = tmp_path / "bin" / "scontrol"
    denied.parent.mkdir()
    denied.write_text("#!/bin/sh\necho 'Access/permission denied' >&2\nexit 1\n")
    denied.chmod(0o755)
    log, runs = tmp_path / "job.out", tmp_path / "runs"
    submit = ("--partition=low", f"--output={log}", TRAIN, *jobs.LONG, f"runs={runs}")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{denied.parent}:/usr/bin:/bin")
        job = jobs.sbatch(*submit)
    folder = jobs.only_run(runs)
    jobs.wait_for("a checkpoint", lambda: jobs.step(folder) > 0)
    jobs.run("scancel", "--batch", "--signal=USR1", job)
    jobs.wait_until_gone(f"--job={job}")
    assert jobs.sacct(job) == "FAILED|75:0"
    saved = jobs.step(folder)
    assert jobs.result(folder)["status"] == "preempted"
    assert jobs.result(folder)["training"]["steps"] == saved
    text = log.read_text()
    assert "Access/permission denied" in text
    assert "To resume: sbatch slurm/train.sbatch" in text

    again = jobs.sbatch(*submit)
    jobs.wait_for("the run to go on", lambda: f"resumed at step {saved}" in log.read_text())
    jobs.run("scancel", again)


def test_a_job_that_gets_nowhere_is_given_up(low: Path, tmp_path: Path) -> None:
    log, runs = tmp_path / "job.out", tmp_path / "runs"
    where = ("--partition=low", "--nodelist=n1", f"--output={log}")
    words = [*jobs.LONG, "trainer.checkpoint_every=1000000", f"runs={runs}"]
    job = jobs.sbatch(*where, TRAIN, *words)

    def begun(restart: int) -> bool:
        _, found, after = (log.read_text() if log.exists() else "").rpartition(f"restart {restart}")
        return bool(found) and "kernels:" in after

    for restart in range(3):
        jobs.wait_for(f"sitting {restart}", lambda at=restart: begun(at))
        jobs.kill(words, signal.SIGSTOP)
        jobs.run("scancel", "--batch", "--signal=USR1", job)  # told to stop, and killed before it can save
        jobs.kill(words, signal.SIGKILL)
    jobs.wait_until_gone(f"--job={job}")
    assert jobs.sacct(job) == "FAILED|1:0", log.read_text()
    assert "restarted 3 times without a new checkpoint" in log.read_text()


def test_processes_on_two_nodes_find_each_other(low: Path, tmp_path: Path) -> None:
    """The command of a step, with a program that adds up ranks in place of the training."""
    program = tmp_path / "ranks.py"
    program.write_text(
        textwrap.dedent("""
        import socket, torch, torch.distributed as dist
        dist.init_process_group("gloo")  # from the variables alone
        total = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(total)
        print(f"host {socket.gethostname()}: {total.item()} of {dist.get_world_size()}", flush=True)
        dist.destroy_process_group()  # threads of the group that live on abort an exit now and then
        """)
    )
    worker = tmp_path / "worker.py"
    worker.write_text(
        textwrap.dedent(f"""
        import sys
        from archbench.slurm import work
        whole = work.step
        def step(words, environment, packed):
            command = whole(words, environment, packed)
            return command[: command.index("-m")] + [{str(program)!r}]
        work.step = step
        sys.exit(work.main(["unused"]))
        """)
    )
    log = tmp_path / "job.out"
    job = jobs.sbatch(
        "--partition=low", "--nodes=2", "--ntasks-per-node=2", "--mem=1000M", f"--output={log}",
        f"--wrap=exec {sys.executable} {worker}",
    )  # fmt: skip
    jobs.wait_until_gone(f"--job={job}")
    assert jobs.sacct(job) == "COMPLETED|0:0", log.read_text()
    said = sorted(line for line in log.read_text().splitlines() if line.startswith("host"))
    assert said == ["host n1: 10.0 of 4"] * 2 + ["host n2: 10.0 of 4"] * 2
    assert socket.gethostname() not in ("n1", "n2")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_on_two_nodes_is_preempted_and_goes_on(low: Path, tmp_path: Path, parallel: str) -> None:
    log, runs = tmp_path / "job.out", tmp_path / "runs"
    words = (*jobs.CELL, f"parallel={parallel}", f"runs={runs}")
    job = jobs.sbatch(
        "--partition=low", "--nodes=2", "--ntasks-per-node=1", "--mem=1000M", f"--output={log}",
        TRAIN, *words,
    )  # fmt: skip
    folder = jobs.only_run(runs)
    jobs.hold((words, folder))
    jobs.run("scancel", "--batch", "--signal=USR1", job)
    jobs.kill(words, signal.SIGCONT)
    jobs.wait_until_gone(f"--job={job}")
    assert jobs.sacct(job) == "COMPLETED|0:0", log.read_text()
    assert "resumed at step" in log.read_text()
    assert jobs.result(folder)["status"] == "complete"
    jobs.module("archbench.experiments.train", *jobs.CELL, f"runs={tmp_path / 'alone'}")
    alone = jobs.result(jobs.only_run(tmp_path / "alone"))
    assert jobs.result(folder)["metrics"][0]["value"] == pytest.approx(alone["metrics"][0]["value"], abs=0.01)


def test_torchrun_in_a_step_trains_the_same_run(low: Path, tmp_path: Path) -> None:
    """For those who prefer it; train.sbatch does without (see slurm/work.py)."""
    log, runs = tmp_path / "job.out", tmp_path / "runs"
    rendezvous = "--rdzv-backend=c10d --rdzv-endpoint=$(hostname):29511 --rdzv-id=$SLURM_JOB_ID"
    words = " ".join((*jobs.CELL, "budget.tokens=4000", "parallel=ddp", f"runs={runs}"))
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 {rendezvous}"
    job = jobs.sbatch(
        "--partition=low", "--nodes=2", "--ntasks-per-node=1", "--mem=1000M", f"--output={log}",
        f"--wrap=srun {torchrun} -m archbench.experiments.train {words}",
    )  # fmt: skip
    jobs.wait_until_gone(f"--job={job}")
    assert jobs.sacct(job) == "COMPLETED|0:0", log.read_text()
    assert jobs.result(jobs.only_run(runs))["status"] == "complete"
