"""F50: run folders that were moved, copied, swapped, linked or edited count for no other run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.experiments.check import check_study
from archbench.experiments.run.model_files import model_checkpoint
from archbench.experiments.run.summary import summary
from archbench.experiments.runtime.errors import Preempted
from archbench.experiments.runtime.preemption import Interruptions
from archbench.experiments.tracking.run_files import checksum
from archbench.experiments.tracking.run_folder import RunFolder, StudyFolders
from tests.experiments import commands
from tests.faults.children import seeds
from tests.faults.fuzzing import time_limit
from tests.faults.test_fuzz_damage import CODES, refusal

WORDS = (*commands.TINY, *commands.RECALL, "trainer.log_every=5", "trainer.checkpoint_every=10")
MODELS, SEEDS, STOPPED = ("decoder", "mamba"), 3, 3
"""Each model has complete runs of ``SEEDS`` seeds, and a run that was stopped."""

Change = Callable[[Path, random.Random], bool]
"""Changes a study; returns False if a person may do so, and nothing is wrong after it."""


def words(backbone: str, seed: int, runs: Path) -> tuple[str, ...]:
    return (*WORDS, f"backbone={backbone}", f"seed={seed}", f"runs={runs}")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("template")
    for backbone in MODELS:
        for seed in range(SEEDS):
            commands.train(*words(backbone, seed, runs))
        with pytest.MonkeyPatch.context() as patch:
            steps = iter(range(14))
            stop = property(
                lambda self, steps=steps: None if next(steps, None) is not None else "stopped by SIGTERM"
            )
            patch.setattr(Interruptions, "reason", stop)
            with pytest.raises(Preempted):
                commands.train(*words(backbone, STOPPED, runs))
    return runs


def cells(study: Path) -> list[Path]:
    return sorted(study.glob("*-*"))


def two_runs(study: Path, rng: random.Random) -> tuple[Path, Path]:
    """Two runs of one model, or of two."""
    first, second = rng.sample([run for cell in cells(study) for run in sorted(cell.iterdir())], 2)
    return first, second


def free(run: Path, rng: random.Random) -> Path:
    """The folder of a seed that no run has."""
    return run.with_name(f"s{rng.randint(STOPPED + 1, 99)}")


def odd(run: Path, rng: random.Random) -> Path:
    """A folder beside a run, of a name that is none of a run."""
    name = run.name
    return run.with_name(
        rng.choice([f"s0{name[1:]}", f" {name}", f"{name} (copy)", f"{name}~", f"S{name[1:]}"])
    )


def swapped(study: Path, rng: random.Random) -> bool:
    first, second = two_runs(study, rng)
    first.rename(study / "kept")
    second.rename(first)
    (study / "kept").rename(second)
    return True


def renamed(study: Path, rng: random.Random) -> bool:
    run, _ = two_runs(study, rng)
    run.rename(rng.choice([free, odd])(run, rng))
    return True


def copied(study: Path, rng: random.Random) -> bool:
    run, other = two_runs(study, rng)
    target = rng.choice([free(run, rng), odd(run, rng), free(other, rng), other])
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run, target)
    return True


def linked(study: Path, rng: random.Random) -> bool:
    run, other = two_runs(study, rng)
    rng.choice([free(run, rng), free(other, rng)]).symlink_to(run)
    return True


def cell_renamed(study: Path, rng: random.Random) -> bool:
    first, second = cells(study)
    name = rng.choice([first.name[:-1], f"{first.name} (copy)", f"x{first.name}", "plain", "swap"])
    if name == "swap":
        first.rename(study / "kept")
        second.rename(first)
        (study / "kept").rename(second)
    else:
        first.rename(first.with_name(name))
    return True


def file_of_another(study: Path, rng: random.Random) -> bool:
    run, other = two_runs(study, rng)
    name = rng.choice(["config.yaml", "provenance.json", "metrics.jsonl", "checkpoints"])
    if name == "checkpoints":
        shutil.rmtree(run / name)
        shutil.copytree(other / name, run / name)
    else:
        shutil.copyfile(other / name, run / name)
    return True


def record_edited(study: Path, rng: random.Random) -> bool:
    run, other = two_runs(study, rng)
    own, record = (json.loads((each / "result.json").read_text()) for each in (run, other))
    keys = rng.choice([("key",), ("seed",), ("key", "seed", "cell", "digest"), ("metrics",)])
    edited = own | {key: record[key] for key in keys}
    if "key" in keys and rng.random() < 0.5:  # by somebody who knows of the checksum
        edited["checksum"] = checksum(edited)
    (run / "result.json").write_text(json.dumps(edited))
    return edited != own


def moved_as_a_person_may(study: Path, rng: random.Random) -> bool:
    """Another study, another folder of runs, a run on another disk behind a link, fewer seeds."""
    run, _ = two_runs(study, rng)
    how = rng.choice(["link", "remove", "touch", "copy study"])
    if how == "link":
        elsewhere = study.parent / "elsewhere"
        run.rename(elsewhere)
        run.symlink_to(elsewhere)
    elif how == "remove":
        shutil.rmtree(run)
    elif how == "touch":
        (run / "train.log").touch()
    else:
        shutil.copytree(study, study.with_name("kept"))
        shutil.rmtree(study)
        study.with_name("kept").rename(study)
    return False


CHANGES: tuple[Change, ...] = (
    swapped, renamed, copied, linked, cell_renamed, file_of_another, record_edited, moved_as_a_person_may,
)  # fmt: skip


def scores(study: Path) -> dict[tuple[str, int], float]:
    """Score of each run that the tables count, by run configuration and seed."""
    frame = load_study(study.parent, study.name)
    counted = frame[frame["status"] == "complete"]
    keys = zip(counted["cell"] + "-" + counted["digest"], counted["seed"], strict=True)
    return dict(zip(keys, counted["score"], strict=True))


def check_models(study: Path, about: str) -> None:
    """Every model that can be opened is the one that its path says."""
    for name in StudyFolders.of(study).runs:
        if refusal(lambda run=study / name: (model_checkpoint(run), check_run(run))) is None:
            state = json.loads((model_checkpoint(study / name) / "state.json").read_text())
            assert state["key"] == name.replace("/", "-"), f"{about}: {name}"


def check_run(run: Path) -> None:
    folder = RunFolder(run)
    folder.result()
    if (provenance := folder.provenance()) is not None:
        folder.check_key(provenance.key)


@pytest.mark.full
@seeds(3, recorded=12)
def test_f50_a_run_folder_counts_for_its_own_run_alone(
    template: Path, tmp_path: Path, seed: int, record: Any
) -> None:
    """Ten changes for each seed."""
    expected = scores(template / "single")
    ended = {backbone: commands.settings(*words(backbone, 0, template)).folder.parent for backbone in MODELS}
    for case in range(10):
        rng = random.Random(1000 * seed + case)
        study = tmp_path / str(case) / rng.choice(["single", "renamed study"])
        shutil.copytree(template / "single", study)
        change = rng.choice(CHANGES)
        wrong = change(study, rng)
        about = f"seed {seed}, case {case}: {change.__name__}"
        with time_limit():
            found, report = scores(study), check_study(study)
            assert Comparison(load_study(study.parent, study.name)).warnings is not None
            assert summary(study), about
            check_models(study, about)
        assert found.items() <= expected.items(), f"{about}: {found.items() - expected.items()}"
        assert (report.exit_code != 0) == wrong, f"{about}: {report.records}"
        if study.name != "single":
            continue
        backbone, number = rng.choice(MODELS), rng.randint(0, STOPPED + 2)
        refused = refusal(commands.train, *words(backbone, number, study.parent))
        if refused is not None:
            assert refused.exit_code in CODES, f"{about}: {refused}"
            assert "Traceback" not in str(refused), f"{about}: {refused}"
        elif (key := (ended[backbone].name, number)) in expected:
            assert scores(study)[key] == expected[key], f"{about}, then trained"
    record("F50", "run folders moved, copied, swapped, linked or edited", 10, "count for their own run alone")
