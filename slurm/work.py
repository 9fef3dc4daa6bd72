"""The program of a job: trains its cells, passes signals on, and puts the job back where it was interrupted.

    python -m slurm.work backbone=mamba task=recall      one cell, on all processes of the job
    python -m slurm.work cells=runs/STUDY/slurm/ID       those of this array task, side by side

Each cell is a step of its own (``srun``): one that fails or is killed leaves the others
alone. A step hears of a preemption even where the batch script does not. Ranks find each
other through the variables that ``torchrun`` sets; ``torchrun`` itself is left out, since it
kills its workers 30 seconds after a signal and hides that they were preempted.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.runtime.errors import Preempted
from slurm.cells import read_submission

STRAGGLER = 90
"""Seconds that the last processes of a cell may outlive the first one: rank 0 writes the result."""
PORTS = (15000, 10000)
"""First port of the rendezvous, and how many jobs are spread over; below those that systems hand out."""

RANKED = 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
"""What each process of a cell does first: SLURM's names for its rank become PyTorch's."""


def step(words: Sequence[str], environment: Mapping[str, str], packed: bool) -> list[str]:
    """The command of a cell's step; ``packed`` cells share what the job has."""
    processes = int(environment.get("SLURM_NTASKS") or environment.get("SLURM_JOB_NUM_NODES") or 1)
    command = ["srun", "--kill-on-bad-exit=0", f"--wait={STRAGGLER}"]
    if cpus := environment.get("SLURM_CPUS_PER_TASK"):  # srun no longer takes it from the job by itself
        command.append(f"--cpus-per-task={cpus}")
    train = [sys.executable, "-m", "experiments.train", *words]
    if packed:
        return [*command, "--nodes=1", "--ntasks=1", "--overlap", *train]
    if processes == 1:
        return [*command, "--ntasks=1", *train]
    return [*command, f"--ntasks={processes}", "bash", "-c", RANKED, "rank", *train]


class Job:
    """The cells of this job, from start to end."""

    def __init__(self, cells: Sequence[Sequence[str]]) -> None:
        self.cells = cells
        self.told: set[int] = set()
        """Signals the batch script received: USR1 ahead of a time limit or a preemption, TERM at the end."""
        self.steps: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[int]:
        """The exit codes of all cells; 128 + n for one that signal n ended."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._pass_on)
        environment = os.environ | {
            "MASTER_ADDR": socket.gethostname(),  # rank 0 runs where the batch script does
            "MASTER_PORT": str(PORTS[0] + int(os.environ["SLURM_JOB_ID"]) % PORTS[1]),
        }
        if packed := len(self.cells) > 1:
            share = max(1, int(environment.get("SLURM_CPUS_PER_TASK", 1)) // len(self.cells))
            environment.setdefault("OMP_NUM_THREADS", str(share))
        for words in self.cells:
            if not self.told:
                self.steps.append(subprocess.Popen(step(words, environment, packed), env=environment))
        if signal.SIGUSR1 in self.told:
            self._pass_on(signal.SIGUSR1, None)  # again, for a step that was just being started
        codes = [128 - code if code < 0 else code for code in (each.wait() for each in self.steps)]
        return codes + [Preempted.exit_code] * (len(self.cells) - len(codes))  # never begun

    def _pass_on(self, number: int, frame: object) -> None:
        """USR1 came to the batch script alone; TERM, SLURM sends to the steps by itself."""
        self.told.add(number)
        if number == signal.SIGUSR1:
            for each in self.steps:
                each.send_signal(number)  # srun hands it to its processes

    def interrupted(self, codes: Sequence[int]) -> bool:
        """Whether cells stopped only because the job was asked to, so that it should be run again.

        Not after TERM: then it was cancelled, or its time is over, or SLURM requeues it by itself. A cell
        told to stop before it could listen was killed by the signal.
        """
        if signal.SIGTERM in self.told:
            return False
        killed = signal.SIGUSR1 in self.told and any(code > 128 for code in codes)
        return Preempted.exit_code in codes or killed


def job_id() -> str:
    """This job as SLURM's commands take it: of an array, this task alone.

    SLURM_JOB_ID is no name for a task: that of the last one is the number of the whole array.
    """
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def requeue(again: str) -> None:
    """Puts this job back into the queue, or says how a person can."""
    job = job_id()
    try:
        state = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        if state not in ("", "RUNNING"):  # a cancelled job would come back to life
            say(f"not requeued: the job is {state}")
            return
        _ask("scontrol", "requeue", job)
    except OSError as error:
        sys.stderr.write(
            f"error: the job cannot be put back into the queue ({error}). Nothing is lost: the runs are "
            f"saved and go on from there. To go on: {again}\n"
        )
        return
    say("requeued")


def _ask(*command: str) -> str:
    """What the command prints. Raises OSError where it is missing or refuses."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def say(text: str) -> None:
    print(f"[job {job_id()}] {text}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Return 0, ``Preempted.exit_code`` if the job was interrupted, or the code of the first failed cell."""
    if "SLURM_JOB_ID" not in os.environ:
        sys.stderr.write("error: this runs inside a job: sbatch slurm/train.sbatch, or slurm.submit\n")
        return 2
    cells = [list(arguments)]
    again = f"sbatch slurm/train.sbatch {shlex.join(arguments)}"
    if len(arguments) == 1 and arguments[0].startswith("cells="):
        task = int(os.environ["SLURM_ARRAY_TASK_ID"])
        submission = read_submission(Path(arguments[0].removeprefix("cells=")))
        cells = [cell.words for cell in submission.cells if cell.task == task]
        again = "python -m slurm.submit with the words it was given"
    say(
        f"{len(cells)} cell(s) on {os.environ.get('SLURM_JOB_NODELIST', '?')}, "
        f"restart {os.environ.get('SLURM_RESTART_COUNT', 0)}"
    )
    job = Job(cells)
    codes = job.run()
    for words, code in zip(cells, codes, strict=True):
        say(f"exit code {code}: {shlex.join(words)}")
    if job.interrupted(codes):
        requeue(again)
        return Preempted.exit_code
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
