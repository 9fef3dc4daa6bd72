"""Tests against the Triton kernels of other packages, marked ``kernels``: ``make test-kernels``.

They run in a process of their own, because Triton decides at its import that it interprets kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from archbench.architectures.kernels import mamba_ssm as backend
from tests.kernels import differences, interpreter


def pytest_configure(config: pytest.Config) -> None:
    if "kernels" in str(config.option.markexpr).replace("not kernels", ""):
        interpreter.prepare()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    if lines := differences.table(report for report in reports if report.when == "call"):
        terminalreporter.section("kernels: largest differences, relative to the largest element")
        terminalreporter.write("".join(f"{line}\n" for line in lines))


@pytest.fixture(autouse=True)
def _notes(request: pytest.FixtureRequest) -> None:
    differences.NOTES = request.node.user_properties


@pytest.fixture(params=interpreter.MAMBA_SSM)
def mamba_ssm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A version of mamba-ssm, importable, with its kernels allowed on a CPU."""
    interpreter.use_mamba_ssm(request.param)
    monkeypatch.setattr(backend, "DEVICES", ("cpu",))
    backend.import_problem.cache_clear()
    yield request.param
    backend.import_problem.cache_clear()
