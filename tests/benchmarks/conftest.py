"""The scripts of benchmarks/ can be imported, as when Python runs a script of that folder."""

import pytest

from tests import ROOT


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
