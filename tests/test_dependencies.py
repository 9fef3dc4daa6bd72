"""The bounds of the dependencies are tested by ``python -m tests.dependencies``."""

import re
import tomllib

from tests import ROOT
from tests.dependencies import FILES, outermost_paths

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_has_a_lower_bound_and_tests() -> None:
    bounds = [re.fullmatch(r"([\w.-]+)>=[\d.]+", text) for text in PROJECT["dependencies"]]
    assert all(bounds), PROJECT["dependencies"]
    assert {bound[1] for bound in bounds if bound} == set(FILES)
    for files in FILES.values():
        for file in files:
            assert (ROOT / file).exists(), file


def test_no_path_is_named_twice() -> None:
    paths = outermost_paths()
    assert len(paths) == len(set(paths))
    assert {"tests/analysis/figures", "tests/architectures/pretrained/test_folder.py"} <= set(paths)
    assert not [path for path in paths if path.startswith("tests/analysis/figures/")]


def test_every_classified_python_is_tested() -> None:
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    for workflow in ("release", "dependencies"):
        text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text()
        assert set(re.findall(r'"(3\.\d+)"', text)) == named
