"""Building, keeping and finding the C++ kernels."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from archbench.architectures import shared_library as shared
from archbench.architectures.kernels.cpu import build
from archbench.architectures.layers.ssm.selective_scan import selective_scan

SOURCE = 'extern "C" long answer() { return 42; }'
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, shared.COMPILERS)), reason="no C++ compiler")


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """As in a new process, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for function in (build.library, build.problem):
        function.cache_clear()
    yield tmp_path
    for function in (build.library, build.problem):
        function.cache_clear()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """One source that compiles at once; it has the names that are looked up."""
    folder = tmp_path / "sources"
    folder.mkdir()
    text = "long scan_starts() { return 1; } long ssd_starts() { return 2; } void instruction_set() {}"
    text = f'extern "C" {{ {text} void compiler() {{}} }}'
    (folder / "one.cpp").write_text(text)
    monkeypatch.setattr(build, "__file__", str(folder / "build.py"))


@needs_compiler
@pytest.mark.usefixtures("small")
def test_it_is_built_once_and_anew_when_something_changed(forgotten, monkeypatch):
    def built() -> set[str]:
        build.library.cache_clear()
        assert build.library().ssd_starts() == 2
        return {path.name for path in (forgotten / "archbench").iterdir()}

    first = built()
    assert len(first) == 1
    before = next((forgotten / "archbench").iterdir()).stat().st_mtime_ns
    assert built() == first
    assert next((forgotten / "archbench").iterdir()).stat().st_mtime_ns == before
    monkeypatch.setattr(shared, "processor", lambda: "another")
    assert len(built()) == 2
    source = forgotten / "sources" / "one.cpp"
    source.write_text(source.read_text() + "\n")
    assert len(built()) == 3
    (forgotten / "sources" / "common.h").write_text("")
    assert len(built()) == 4


@needs_compiler
def test_several_may_build_at_once(forgotten):
    source, folder = forgotten / "answer.cpp", forgotten / "archbench"
    source.write_text(SOURCE)
    failures = []

    def compile_once() -> None:
        try:
            assert ctypes.CDLL(str(shared.shared_library("answer", [source], [], build.FLAGS))).answer() == 42
        except Exception as error:
            failures.append(error)

    builders = [threading.Thread(target=compile_once) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert not failures
    assert [path.suffix for path in folder.iterdir()] == [".so"]


def rewrite(library: Path, content: bytes) -> None:
    """Write another file of this name: this process has loaded the library, and still runs its old one."""
    library.unlink()
    library.write_bytes(content)


def truncated(library: Path) -> None:
    content = library.read_bytes()
    rewrite(library, content[: len(content) // 2])


def emptied(library: Path) -> None:
    rewrite(library, b"")


def one_bit_changed(library: Path) -> None:
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    rewrite(library, bytes(content))


def replaced_by_a_pipe(library: Path) -> None:
    library.unlink()
    os.mkfifo(library)


def linked_to_nothing(library: Path) -> None:
    library.unlink()
    library.symlink_to("nothing")


def of_another_version(library: Path) -> None:
    """A library that loads: only its content shows that it is another one."""
    source = library.with_name("other.cpp")
    source.write_text(SOURCE.replace("42", "41"))
    other = shared.shared_library("other", [source], [], build.FLAGS)
    source.unlink()
    other.replace(library)


DAMAGE = [truncated, emptied, one_bit_changed, replaced_by_a_pipe, linked_to_nothing, of_another_version]


def answer(library: Path) -> int:
    """Load a library in a process of its own, which a damaged one may end."""
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}).answer())"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_library_is_built_again(forgotten, damage: Callable[[Path], None]):
    source = forgotten / "answer.cpp"
    source.write_text(SOURCE)
    library = shared.shared_library("answer", [source], [], build.FLAGS)
    damage(library)
    assert answer(shared.shared_library("answer", [source], [], build.FLAGS)) == 42
    assert [path.name for path in library.parent.iterdir()] == [library.name]


def fake_compiler(folder: Path, script: str) -> str:
    """Return a PATH with a compiler that only runs ``script``."""
    (folder / "bin").mkdir()
    (folder / "bin" / "c++").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "c++").chmod(0o755)
    return f"{folder / 'bin'}:/usr/bin:/bin"


@needs_compiler
@pytest.mark.parametrize("compiler", ["none", "exit 127", 'test "$1" = --version', "true"])
def test_a_library_is_used_where_no_compiler_works(forgotten, monkeypatch, compiler: str):
    source = forgotten / "answer.cpp"
    source.write_text(SOURCE)
    library = shared.shared_library("answer", [source], [], build.FLAGS)
    monkeypatch.setenv("PATH", "" if compiler == "none" else fake_compiler(forgotten, compiler))
    assert shared.shared_library("answer", [source], [], build.FLAGS) == library
    truncated(library)
    with pytest.raises((OSError, subprocess.SubprocessError)):
        shared.shared_library("answer", [source], [], build.FLAGS)
    assert list(library.parent.iterdir()) == [library]


@needs_compiler
def test_what_cannot_be_loaded_is_not_kept(forgotten, monkeypatch):
    """A linker that fails without a word, as on some full disks."""
    source = forgotten / "answer.cpp"
    source.write_text(SOURCE)
    honest = os.environ["PATH"]
    script = 'test "$1" = --version && exit; : > answer.o; : > built'
    monkeypatch.setenv("PATH", fake_compiler(forgotten, script))
    with pytest.raises(OSError, match="built"):
        shared.shared_library("answer", [source], [], build.FLAGS)
    assert not list((forgotten / "archbench").iterdir())
    monkeypatch.setenv("PATH", honest)
    assert answer(shared.shared_library("answer", [source], [], build.FLAGS)) == 42


@pytest.mark.usefixtures("forgotten")
def test_without_a_compiler_the_problem_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert build.problem() == "no C++ compiler (c++, g++, clang++) on the path"


@needs_compiler
@pytest.mark.usefixtures("small")
def test_what_the_compiler_says_is_the_problem(forgotten):
    (forgotten / "sources" / "one.cpp").write_text("this is not C++")
    assert re.match("the C.. compiler fails: .*this", build.problem())
    assert not list((forgotten / "archbench").iterdir())


@needs_compiler
@pytest.mark.usefixtures("small")
def test_a_cache_that_cannot_be_written_is_the_problem(forgotten):
    (forgotten / "archbench").write_text("a file where the folder should be")
    assert "archbench" in build.problem()


@pytest.mark.skipif(bool(build.problem()), reason=build.problem())
def test_denormal_numbers_stay_on():
    """-ffast-math on the command that links would switch them off in the thread that loads the library."""
    build.library()
    assert torch.tensor(1e-40).mul(1.0).item() > 0


@pytest.mark.skipif(bool(build.problem()), reason=build.problem())
def test_the_exponential_over_its_whole_range():
    """One step of the scan from state 1 without input is the exponential of delta A."""
    exponents = torch.cat([torch.linspace(-90, 88, 4001), torch.tensor([-1e30, -torch.inf, 0.0, -1e-30])])
    one, zero = torch.ones(1, 1, 1), torch.zeros(1, 1, len(exponents))
    initial = torch.ones(1, len(exponents), 1)
    decayed, _ = selective_scan(
        zero, torch.ones_like(zero), exponents[:, None], one, one, initial, path="cpp"
    )
    expected = exponents.double().exp()
    expected[expected < torch.finfo(torch.float32).tiny * 1.1] = 0.0
    error = (decayed.flatten().double() - expected).abs() / expected.clamp_min(1e-30)
    assert error.max() < 2.5e-7
    for exponent, found in ((torch.nan, "nan"), (200.0, "inf"), (torch.inf, "inf")):
        A = torch.full((1, 1), exponent)
        decayed, _ = selective_scan(zero[..., :1], one, A, one, one, initial[:, :1], path="cpp")
        assert str(decayed.item()) == found
