"""The run configurations of a command line are those that Hydra itself would run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.cells import cells
from archbench.experiments.config.hydra_internals import run
from archbench.experiments.config.hydra_overrides import checked_words
from archbench.experiments.config.sections import read_sections
from archbench.experiments.runtime.errors import ConfigError
from tests import ROOT

COMMAND_LINES = [
    "task=recall",
    "backbone=mamba task=text seed=3 scale=nano",
    "-m backbone=decoder,mamba task=recall",
    "backbone=mamba -m seed=0,1 optimizer.learning_rate=0.001,0.01 task=recall",
    "-m backbone=glob(deltanet*) task=recall",
    "-m task=recall seed=range(2,5)",
    "--multirun task=recall budget.tokens=choice(1000,2000)",
    "study=demo",
    "study=demo seed=5",
    "study=compare hydra/launcher=parallel",
    "study=main seed=0 study.name=mine",
    "hydra.mode=MULTIRUN task=recall seed=1,2",
    "study=laptop hydra.mode=RUN backbone=decoder",
    "-m task=recall 'tracking.tags=[a,b],[c]'",
    "task=recall +schedule=cosine",
]


def by_hydra(words: list[str], folder: Path) -> list[tuple[list[str], DictConfig]]:
    found: list[tuple[list[str], DictConfig]] = []

    def collect(cfg: DictConfig) -> None:
        found.append((list(HydraConfig.get().overrides.task), cfg))

    added = ["hydra/launcher=basic", f"hydra.sweep.dir={folder}", f"hydra.run.dir={folder}"]
    launched = [word for word in words if not word.startswith("hydra/launcher")]
    run(checked_words([*launched, *added], "config"), collect, CONF, "config")
    return found


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_cells_are_what_hydra_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # exceptions instead of Hydra's printer
    words = [word.strip("'") for word in line.split()]
    try:
        expected = by_hydra(words, tmp_path)
    except HydraException:
        with pytest.raises(HydraException):
            cells(words)
        return
    found = cells(words)
    assert [sorted(cell.words) for cell in found] == [sorted(overrides) for overrides, _ in expected]
    for cell, (_, cfg) in zip(found, expected, strict=True):
        selected = cell.select()
        assert OmegaConf.to_container(selected) == OmegaConf.to_container(cfg)
        assert read_sections(selected) is not None


def test_a_wrong_run_of_a_sweep_leaves_the_others(tmp_path: Path) -> None:
    right, wrong = cells(["-m", "task=recall", "backbone=decoder,mambo"])
    assert right.select().names.backbone == "decoder"
    assert "did you mean 'mamba'?" in wrong.mistake
    assert wrong.words == ("task=recall", "backbone=mambo")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-m task=recall backbone=mambo,mumbo", "backbone/mambo"),
        ("-m task=recall backbone=glob(x*)", "matches no YAML file"),
        ("-m task=recall budget=smok", "budget/smok"),
        ("study=demo --config-dir nowhere", "nowhere' not found"),
        ("-m task=recall hydra/sweeper=optuna", "hydra/sweeper/optuna|cannot be listed"),
        ("task=recall ~optimizer", "cannot be deleted"),
        ("-m task=recall +hydra.sweeper.params.seed=1", "belongs into the YAML of a study"),
        ("", "no run is chosen"),
    ],
)
def test_a_wrong_command_line_is_rejected(line: str, message: str) -> None:
    with pytest.raises((ConfigError, HydraException), match=message):
        cells(line.split())


def test_a_key_that_only_some_choices_have_is_explained() -> None:
    right, wrong = cells(["-m", "task=recall", "backbone=decoder,mamba", "backbone.attention.num_heads=4"])
    assert (right.mistake, right.select().backbone.attention.num_heads) == ("", 4)
    assert wrong.mistake.startswith("backbone.attention.num_heads: this run has no such key")


def test_yaml_files_of_the_user_are_found(tmp_path: Path) -> None:
    (tmp_path / "budget").mkdir()
    (tmp_path / "budget" / "mine.yaml").write_text("tokens: 123\nbatch_size: 1\n")
    [cell] = cells(["--config-dir", str(tmp_path), "task=recall", "budget=mine"])
    assert cell.select().budget.tokens == 123


def test_a_variable_of_the_environment_is_not_in_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "sk-123456789012345678901234")
    [cell] = cells(["task=recall", "study.name=${oc.env:MY_TOKEN}"])
    assert cell.words[-1] == "study.name=${oc.env:MY_TOKEN}"


def test_one_module_imports_what_hydra_does_not_publish() -> None:
    sources = [
        path for folder in ("experiments", "analysis", "slurm") for path in (ROOT / folder).rglob("*.py")
    ]
    found = [
        path.name
        for path in sources
        if re.search(r"import.*hydra\._internal|hydra\._internal.* import", path.read_text())
    ]
    assert found == ["hydra_internals.py"]
