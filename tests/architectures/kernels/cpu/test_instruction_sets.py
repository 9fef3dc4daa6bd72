"""Every kernel for every instruction set: the tests of the kernels in processes of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archbench.architectures import shared_library
from archbench.architectures.kernels.cpu import build, instruction_sets

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
TESTS = (HERE, HERE.parent / "test_attention.py", HERE.parent / "test_pointwise.py")
NAMES = tuple(instruction_sets.INSTRUCTION_SETS)
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
AARCH64 = Path("/usr/aarch64-linux-gnu")
needs_kernels = pytest.mark.skipif(bool(build.problem()), reason=build.problem())


def run_tests(name: str, *words: str, **variables: str) -> None:
    """Run the tests of the kernels in a process with the kernels of an instruction set."""
    own = f"--deselect={Path(__file__).relative_to(ROOT)}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", own, *words, *map(str, TESTS)]
    environment = os.environ | {instruction_sets.VARIABLE: name, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr


def skip_unless_it_runs(name: str) -> None:
    if not instruction_sets.runs_here(name):
        pytest.skip(f"this processor lacks {name}")
    if name == build.instruction_set():
        pytest.skip(f"{name} is what the other tests run with")


@needs_kernels
@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_for_another_instruction_set(name):
    skip_unless_it_runs(name)
    run_tests(name, "--tier=all")


@needs_kernels
@pytest.mark.fast
def test_kernels_for_one_other_instruction_set():
    name = "sse2" if build.instruction_set() == "avx2" else "avx2"
    skip_unless_it_runs(name)
    run_tests(name, "--tier=fast")


@pytest.mark.full
def test_every_kernel_in_an_emulated_arm_processor(tmp_path):
    """The kernels compute the same with NEON as with SSE2, whose vectors have as many lanes."""
    if not (shutil.which(CROSS_COMPILER) and shutil.which(EMULATOR)):
        pytest.skip("no cross compiler or emulator: apt-get install g++-aarch64-linux-gnu qemu-user")
    skip_unless_it_runs("sse2")
    calls, library, replay = (tmp_path / name for name in ("calls", "kernels.so", "replay"))
    run_tests("sse2", "--tier=all", "-p", f"{__package__}.record_calls", RECORDED_CALLS=str(calls))
    folder = Path(build.__file__).parent
    sources = sorted(folder.rglob("*.cpp"))
    shared_library._build(CROSS_COMPILER, sources, library, build.FLAGS, ())
    compile_replay = [CROSS_COMPILER, "-std=c++17", str(HERE / "replay.cpp"), "-ldl", "-o", str(replay)]
    shared_library._run(compile_replay, tmp_path)
    command = [EMULATOR, "-L", str(AARCH64), str(replay), str(library), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True)
    calls.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True
    ).stdout
    kernels = set(re.findall(r" T ([a-z]\w*)", symbols)) - {"instruction_set", "compiler"}
    repeated = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert len(kernels) > 20
    assert kernels <= repeated, kernels - repeated


def test_an_instruction_set_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx3")
    with pytest.raises(ValueError, match="'avx3' must be one of native, avx512, avx2, sse2"):
        instruction_sets.compiler_flag()


def test_one_that_the_processor_lacks_is_a_problem(monkeypatch):
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx512")
    monkeypatch.setattr(instruction_sets, "runs_here", lambda name: name == "avx2")
    with pytest.raises(OSError, match="this processor lacks"):
        instruction_sets.compiler_flag()


def test_a_command_with_an_instruction_set_limits_pytorch_too():
    skip_unless_it_runs("avx2")
    code = (
        "from archbench.architectures.kernels.cpu import build, instruction_sets; "
        "instruction_sets.check_libraries(); print(build.instruction_set())"
    )
    command = [sys.executable, "-m", instruction_sets.__name__, "avx2", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "avx2", done.stderr
    half = {**os.environ, instruction_sets.VARIABLE: "sse2", "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=half, capture_output=True, text=True)
    assert "ARCHBENCH_ISA=sse2, but PyTorch uses AVX2" in done.stderr
