"""Program of a SLURM job: trains its runs, forwards signals, and requeues the job after a preemption.

    python -m archbench.slurm.work backbone=mamba task=recall          one run, on all processes of the job
    python -m archbench.slurm.work submission=runs/STUDY/slurm/ID   the runs of this array task, concurrently

Each run is a separate job step (``srun``), so a run that fails or is killed does not affect the
remaining runs. SLURM may signal a preemption only to steps, not to the batch script. The module
sets the variables of the rank that ``torchrun`` would set; ``torchrun`` itself is not used, because
it kills its workers 30 seconds after a signal and hides their exit code.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from archbench.experiments.runtime.errors import CheckpointError, ConfigError, Preempted, RunError
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.streams import guard_streams
from archbench.slurm.submission import read_submission

EXIT_TIMEOUT = 90
"""Seconds within which the processes of a run must exit after the first one: rank 0 writes the result."""
MPS = "nvidia-cuda-mps-control"
PORTS = (15000, 10000)
"""First rendezvous port and number of ports, below the range of ephemeral ports."""

EXPORT_RANK = 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
"""Shell prefix of each process of a run: sets PyTorch's variables of the rank from SLURM's."""


def step(arguments: Sequence[str], environment: Mapping[str, str], packed: bool) -> list[str]:
    """Return the srun command of a run; ``packed`` runs share the resources of the job."""
    processes = int(environment.get("SLURM_NTASKS") or environment.get("SLURM_JOB_NUM_NODES") or 1)
    command = ["srun", "--kill-on-bad-exit=0", f"--wait={EXIT_TIMEOUT}"]
    if cpus := environment.get("SLURM_CPUS_PER_TASK"):  # srun does not inherit it from the job
        command.append(f"--cpus-per-task={cpus}")
    train = [sys.executable, "-m", "archbench.experiments.train", *arguments]
    if packed:
        return [*command, "--nodes=1", "--ntasks=1", "--overlap", *train]
    if processes == 1:
        return [*command, "--ntasks=1", *train]
    return [*command, f"--ntasks={processes}", "bash", "-c", EXPORT_RANK, "rank", *train]


@contextlib.contextmanager
def shared_gpu(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield an environment in which the kernels of runs share this job's GPUs concurrently, by NVIDIA's MPS.

    If MPS is missing or its server does not start, the processes are time-sliced on a GPU.
    """
    if not environment.get("CUDA_VISIBLE_DEVICES") or shutil.which(MPS, path=environment.get("PATH")) is None:
        yield environment
        return
    with tempfile.TemporaryDirectory(prefix="archbench-mps-") as folder:
        shared = environment | {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        mps = subprocess.run([MPS, "-d"], env=shared, input="", capture_output=True, text=True)
        if mps.returncode != 0:
            log(f"runs take turns on the GPU: {MPS} failed ({mps.stderr.strip() or mps.returncode})")
            yield environment
            return
        log("runs share the GPU by MPS")
        try:
            yield shared
        finally:
            subprocess.run([MPS], env=shared, input="quit\n", capture_output=True, text=True)


class Job:
    """Runs of this job, from start to end."""

    def __init__(self, runs: Sequence[Sequence[str]]) -> None:
        self.runs = runs
        self.received_signals: set[int] = set()
        """Signals of the batch script: USR1 before a time limit or a preemption, TERM at the end."""
        self.steps: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[int]:
        """Start all runs and wait; return their exit codes, 128 + n after signal n."""
        for signum in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(signum, self._forward)
        environment = os.environ | {
            "MASTER_ADDR": socket.gethostname(),  # rank 0 runs where the batch script does
            "MASTER_PORT": str(PORTS[0] + int(os.environ["SLURM_JOB_ID"]) % PORTS[1]),
        }
        if packed := len(self.runs) > 1:
            threads = max(1, int(environment.get("SLURM_CPUS_PER_TASK", 1)) // len(self.runs))
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        with shared_gpu(environment) if packed else contextlib.nullcontext(environment) as environment:
            for arguments in self.runs:
                if not self.received_signals:
                    self.steps.append(subprocess.Popen(step(arguments, environment, packed), env=environment))
            if signal.SIGUSR1 in self.received_signals:
                self._forward(signal.SIGUSR1, None)  # again, for a step that was just being started
            codes = [128 - code if code < 0 else code for code in (process.wait() for process in self.steps)]
        return codes + [Preempted.exit_code] * (len(self.runs) - len(codes))  # never begun

    def _forward(self, signum: int, frame: object) -> None:
        """Forward USR1, which only the batch script receives; SLURM sends TERM to the steps itself."""
        self.received_signals.add(signum)
        if signum == signal.SIGUSR1:
            for process in self.steps:
                process.send_signal(signum)  # srun hands it to its processes

    def interrupted(self, codes: Sequence[int]) -> bool:
        """Return True if runs stopped only because of a preemption, so that the job should be requeued.

        False after TERM: the job was cancelled, its time is over, or SLURM requeues it. A run that
        receives USR1 before it has installed a handler is killed by the signal.
        """
        if signal.SIGTERM in self.received_signals:
            return False
        killed = signal.SIGUSR1 in self.received_signals and any(code > 128 for code in codes)
        return Preempted.exit_code in codes or killed


def job_id() -> str:
    """Return the id of this job, or of this task of an array, for SLURM's commands.

    SLURM_JOB_ID does not identify a task: for the last task it equals the id of the full array.
    """
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def requeue(again: str) -> None:
    """Requeue this job, or print the command that resumes it."""
    job = job_id()
    try:
        state = _call("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        if state not in ("", "RUNNING"):  # a cancelled job would come back to life
            log(f"not requeued: the job is {state}")
            return
        _call("scontrol", "requeue", job)
    except OSError as error:
        sys.stderr.write(
            f"error: the job cannot be put back into the queue ({error}). Nothing is lost: the runs are "
            f"saved and resume from there. To resume: {again}\n"
        )
        return
    log("requeued")


def _call(*command: str) -> str:
    """Return the output of a command. Raises OSError if it is missing or fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def log(text: str) -> None:
    """Print a line that begins with the id of this job."""
    print(redact(f"[job {job_id()}] {text}"), flush=True)


def _assigned(arguments: Sequence[str]) -> tuple[list[list[str]], str]:
    """Return the arguments of each run of this job, and the command that resumes them. Raises RunError."""
    if len(arguments) != 1 or not arguments[0].startswith("submission="):
        return [list(arguments)], f"sbatch slurm/train.sbatch {shlex.join(arguments)}"
    path = Path(arguments[0].removeprefix("submission=")).absolute()
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    if task is None:
        raise ConfigError(
            f"{arguments[0]}: no task of an array runs it: submit it with archbench slurm submit"
        )
    runs = [run.words for run in read_submission(path).runs if str(run.task) == task]
    if not runs:
        raise CheckpointError(f"{path / 'runs.json'}: it has no run for task {task}: submit the study again")
    return runs, "archbench slurm submit with the same arguments"


def main(arguments: Sequence[str]) -> int:
    """Train the runs; return 0, 75 after a preemption, or the first exit code that is not 0."""
    guard_streams()
    if "SLURM_JOB_ID" not in os.environ:
        sys.stderr.write("error: this runs in a job: sbatch slurm/train.sbatch, or archbench slurm submit\n")
        return 2
    try:
        runs, again = _assigned(arguments)
    except RunError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    log(
        f"{len(runs)} run(s) on {os.environ.get('SLURM_JOB_NODELIST', '?')}, "
        f"restart {os.environ.get('SLURM_RESTART_COUNT', 0)}"
    )
    job = Job(runs)
    codes = job.run()
    for run_arguments, code in zip(runs, codes, strict=True):
        log(f"exit code {code}: {shlex.join(run_arguments)}")
    if job.interrupted(codes):
        requeue(again)
        return Preempted.exit_code
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
