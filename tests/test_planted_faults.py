"""Each planted fault still finds the line that it replaces; which tier notices is told by the command."""

import ast

import pytest

from tests import ROOT
from tests.planted_faults import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    ast.parse(fault.applied_to((ROOT / fault.file).read_text()))
    assert all((ROOT / tests).exists() for tests in fault.tests.split())
    assert fault.tier in ("fast", "all")


def test_a_line_that_is_gone_is_said() -> None:
    with pytest.raises(ValueError, match="has 0 times"):
        next(fault for fault in FAULTS if fault.name == "rope-sign").applied_to("")
