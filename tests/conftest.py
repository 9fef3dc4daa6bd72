"""Every test, and every process that a test starts, uses one thread and no network."""

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import forked, tiers

pytest_plugins = ["pytester"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each starts processes
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
# A process with a home folder of its own would compile the C++ kernels again, for 30 s.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))

forked.install()


@pytest.fixture(autouse=True)
def _same_environment() -> Generator[None]:
    """Undo what a test and its fixtures change: variables that commands are forked with, and sys.argv."""
    words = list(sys.argv)
    yield
    sys.argv = words
    forked.restore_environment()


SECONDS: Counter[str] = Counter()
"""Processor seconds of each test of this session, with those of its processes and of its fixtures."""


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "which tests to run (tests/tiers.py): fast, but all where tests are named one by one"
    parser.addoption("--tier", choices=tiers.TIERS, help=about)
    about = "begin no test after this time, and order the files anew for each commit"
    parser.addoption("--seconds", type=float, help=about)
    parser.addoption("--record-durations", action="store_true", help="update tests/durations.json")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    recorded = tiers.read_durations()
    tier = config.getoption("--tier") or ("all" if any("::" in word for word in config.args) else "fast")
    chosen = tiers.of_tier(items, recorded, tier)
    kept = {item.nodeid for item in chosen}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = chosen
    tiers.sort_files(items, recorded, None if config.getoption("--seconds") is None else tiers.turn())


def pytest_collection_finish() -> None:
    """Take what has been imported from the garbage collector: each run of a model collects, in 0.2 s else."""
    gc.collect()
    gc.freeze()


_began = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--seconds")
    if seconds is not None and time.monotonic() - _began > seconds:
        pytest.skip(f"the session has taken the {seconds:.0f} s of --seconds")


_counted = 0.0
"""Processor seconds up to the last report."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what a phase of a test took; xdist hands the number on to the process that counts."""
    global _counted
    report = yield
    before, _counted = _counted, sum(os.times()[:4])
    report.processor_seconds = _counted - before  # type: ignore[attr-defined]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid] += getattr(report, "processor_seconds", 0.0)  # a process that died sends none


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    late = tiers.slower_than_recorded(SECONDS, tiers.read_durations())
    if late and config.getoption("--tier") == "fast":
        terminalreporter.section("slower than the fast tier allows; see CONTRIBUTING.md")
        terminalreporter.write("".join(f"{seconds:.1f} s {node}\n" for node, seconds in late))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        whole = session.config.args == session.config.getini("testpaths")
        tiers.write_durations(dict(SECONDS), all_tests=whole and session.config.getoption("--tier") == "all")
