"""Cores and memory of a process: the least of machine, affinity, control groups and SLURM."""

import os
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

from archbench.experiments.runtime import machine
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.machine import job_number, process_rank

GIB = 2**30


@pytest.fixture
def sixteen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 cores and 64 GiB without limits; the folder has its /proc and its control groups."""
    monkeypatch.setattr(joblib, "cpu_count", lambda only_physical_cores: 16)
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path / "proc" / "meminfo", f"MemTotal: {64 * 2**20} kB\nMemAvailable: {48 * 2**20} kB")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_without_limits_all_is_there(sixteen: Path) -> None:
    assert machine.usable_cores() == machine.usable_threads() == 16
    assert machine.free_memory() == 48 * GIB


@pytest.mark.parametrize("folder", ["job/step", "job", "."])
def test_every_control_group_above_the_process_limits_it(sixteen: Path, folder: str) -> None:
    write(sixteen / "proc" / "self" / "cgroup", "0::/job/step")
    group = sixteen / "cgroup" / folder
    write(group / "cpu.max", "250000 100000")
    write(group / "memory.max", str(8 * GIB))
    write(group / "memory.current", str(5 * GIB))
    write(group / "memory.stat", f"anon {3 * GIB}\ninactive_file {2 * GIB}")
    assert machine.usable_cores() == 2
    assert machine.free_memory() == 5 * GIB  # file caches can be given up
    assert machine.total_memory() <= 8 * GIB


def test_the_first_version_of_control_groups_has_a_tree_for_each_controller(sixteen: Path) -> None:
    write(sixteen / "proc" / "self" / "cgroup", "3:cpu,cpuacct:/a\n4:memory:/b\n0::/")
    write(sixteen / "cgroup" / "cpu" / "a" / "cpu.cfs_quota_us", "300000")
    write(sixteen / "cgroup" / "cpu" / "a" / "cpu.cfs_period_us", "100000")
    write(sixteen / "cgroup" / "memory" / "b" / "memory.limit_in_bytes", str(4 * GIB))
    write(sixteen / "cgroup" / "memory" / "b" / "memory.usage_in_bytes", str(GIB))
    write(sixteen / "cgroup" / "memory" / "b" / "memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}")
    assert (machine.usable_cores(), machine.free_memory()) == (3, 4 * GIB)


@pytest.mark.parametrize(("cpu", "memory"), [("max 100000", "max"), ("-1", str(2**63 - 4096))])
def test_a_group_without_a_limit_limits_nothing(sixteen: Path, cpu: str, memory: str) -> None:
    write(sixteen / "proc" / "self" / "cgroup", "0::/")
    write(sixteen / "cgroup" / "cpu.max", cpu)
    write(sixteen / "cgroup" / "memory.max", memory)
    assert (machine.usable_cores(), machine.free_memory()) == (16, 48 * GIB)


def test_slurm_and_openmp_say_what_a_process_may_have(sixteen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "12")
    assert machine.usable_cores() == 12
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert machine.usable_cores() == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (machine.usable_cores(), machine.usable_threads()) == (4, 3)


def test_affinity_is_respected() -> None:
    command = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from archbench.experiments.runtime.machine import usable_cores; print(usable_cores())"
    )
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "1\n"


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({"RANK": "", "WORLD_SIZE": " "}, 1),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, 2),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "MASTER_ADDR": "x"}, 1),  # the shell of salloc
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "MASTER_ADDR": "x"}, 4),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0", "MASTER_ADDR": "x", "SLURM_PTY_PORT": "1"}, 1),
    ],
)
def test_processes_are_those_that_a_launcher_started(
    variables: dict[str, str], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(variables, monkeypatch)
    assert process_rank().size == size


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"RANK": "x"}, "RANK=x must be a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 must be a whole number"),
        ({"RANK": "3"}, "RANK=3: ranks must be less than WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "ranks must be less than WORLD_SIZE"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4: there is no RANK"),
    ],
)
def test_variables_that_describe_no_group_are_one_error(
    variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(variables, monkeypatch)
    with pytest.raises(ConfigError, match=reason) as raised:
        process_rank()
    assert "unset" in str(raised.value)


def launched(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of a launcher, and no others of it."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_STEP_NUM_TASKS", "SLURM_PTY_PORT")
    for name in (*names, "SLURM_PROCID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_user_without_a_home_gets_a_folder_for_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("HOME", "USER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    machine.ensure_home()
    assert Path.home() == tmp_path / f"archbench-{os.getuid()}"
    assert Path.home().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("value", "number"), [("3", 3), (" 4 ", 4), ("", 1), (None, 1)])
def test_a_number_of_a_job_is_read(value: str | None, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if value is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", value)
    assert job_number("SLURM_RESTART_COUNT", 1) == number


@pytest.mark.parametrize("value", ["x", "1e3", "-1", "1.5", "\u00b2"])
def test_another_value_of_a_job_is_rejected_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", value)
    with pytest.raises(ConfigError, match=f"SLURM_RESTART_COUNT={value} must be a whole number"):
        job_number("SLURM_RESTART_COUNT")
