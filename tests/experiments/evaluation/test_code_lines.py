import pytest

from archbench.experiments.evaluation.text_kinds import is_code


@pytest.mark.parametrize(
    "line", [">>> f(1)", "x = 3", "    return x(y)", "def f(a):", "stmt ::= target", "   f(3)", "@property"]
)
def test_lines_of_code(line: str) -> None:
    assert is_code(line)


@pytest.mark.parametrize(
    "line",
    ["Return the value (if any) for a key.", "This is one of: red, blue.", "", "If True, nothing happens"],
)
def test_lines_of_prose(line: str) -> None:
    assert not is_code(line)
