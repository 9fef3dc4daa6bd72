"""Commands in outputs: each parses, composes in its first cell, and names only what is there."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.declared.records import read_records
from archbench.analysis.declared.scored_runs import scored_runs
from archbench.analysis.declared.tracks import read_track
from archbench.analysis.findings.claims import Claim
from archbench.analysis.findings.published import Record
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.needs import needs, speed_commands, training_commands
from archbench.experiments.cli import MODULES, find_command
from archbench.experiments.config.study import study_words
from archbench.experiments.run.summary import summary
from archbench.experiments.run.tuned_rates import read_rates
from archbench.experiments.runtime.errors import ConfigError
from archbench.slurm import submit
from archbench.slurm.prepare import submit as submit_preparation
from tests import ROOT
from tests.analysis.conftest import write_run_folder
from tests.analysis.pages import page_of
from tests.printed_commands import COMMAND, check

CLAIMS = read_records(ROOT / "docs" / "findings", Claim)
RECORDS = read_records(ROOT / "docs" / "results" / "published", Record)
REGISTERED = {command for claim in CLAIMS.values() for command in claim.training_commands}
REGISTERED |= {f"archbench findings claim={name} --own-runs" for name in CLAIMS}
REGISTERED |= {record.command for record in RECORDS.values()}
FRAMES = ("canon", "compare", "eigenvalues", "experts", "variants")
FIGURES = (
    "training_loss", "learning_curves", "compute_to_target", "learning_rates", "scaling_laws",
    "pareto_fronts", "further_tests", "recall_maps", "positions", "slices", "gains",
    "performance_profiles", "gradient_norms",
)  # fmt: skip
NO_POINTS = pd.DataFrame(columns=["path", "kind", "step", "tokens", "flops", "seconds"])


INTRODUCED = (
    "experiments/cli.py", "experiments/config/study.py", "conf/config.yaml", "docs/reference/commands.md",
)  # fmt: skip
"""Where the form with Python's module is introduced, or read in old records."""


def test_no_text_tells_to_type_a_module_that_has_a_command() -> None:
    """In a folder with an analysis.py, or where there is no ``python``, it would fail."""
    paths = [ROOT / "README.md"]
    for folder in ("analysis", "experiments", "slurm", "conf", "docs"):
        paths += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".md", ".py", ".yaml", ".sbatch")]
    typed = {path: re.findall(r"python -m ([\w.]+)", path.read_text()) for path in paths}
    names = {path.relative_to(ROOT).as_posix() for path in paths if {*MODULES.values()} & {*typed[path]}}
    assert names == set(INTRODUCED)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def in_text(text: str) -> list[str]:
    return [found.strip().rstrip(".") for found in COMMAND.findall(text)]


def of_report(frame: pd.DataFrame, history: pd.DataFrame = NO_POINTS) -> set[str]:
    found = {
        command for need in needs(Comparison(frame, history), FIGURES).values() for command in need.commands
    }
    return found | set(training_commands(frame)) | set(speed_commands(frame))


def check_all(commands: set[str]) -> None:
    assert commands
    for command in sorted(commands):
        for each in command.split(" && "):
            check(each)


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_commands_of_registered_claims_and_published_numbers(part: int) -> None:
    """The claims of one study differ in their variants, of which the first of each is composed."""
    check_all(set(sorted(REGISTERED)[part::4]))


@pytest.mark.full
def test_a_study_is_trained_by_the_word_of_its_name() -> None:
    for name, word in study_words().items():
        if name != "search":  # an optimiser of its own chooses its runs
            check(f"archbench train study={word}")


@pytest.mark.full
def test_commands_of_the_reports_of_stored_frames() -> None:
    commands = set()
    for name in FRAMES:
        commands |= of_report(pd.read_parquet(ROOT / "docs" / "results" / f"{name}.parquet"))
    track = read_track("cpu")
    assert track.stored is not None
    runs = scored_runs(track, pd.read_parquet(ROOT / track.stored))
    of_track = training_commands(runs.assign(path="runs/" + runs["path"]))
    assert of_track == ("archbench track cpu",)
    check_all({*commands, *of_track})


def test_commands_about_a_sweep_of_ones_own(tmp_path: Path) -> None:
    """It is no study of ``conf/study/``; its runs say how they were trained."""
    words = "-m backbone=decoder,mamba 'seed=0,1' study.name=mine"
    typed, older = f"archbench train {words}", f"python -m archbench.experiments.train {words}"
    for name in ("decoder", "mamba"):
        folder = write_run_folder(tmp_path / "my runs", name, 0, study="mine")
        record = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps(record | {"command": older}))
    frame = load_study(tmp_path / "my runs", "mine")
    [command] = training_commands(frame, "trainer.evaluate_every=50")
    assert shlex.split(command) == [*shlex.split(typed), "trainer.evaluate_every=50"]
    assert training_commands(frame.assign(command=None)) == ()
    commands = of_report(frame, load_history(tmp_path / "my runs", "mine"))
    assert not [each for each in commands if "study=mine" in each and "archbench train" in each]
    check_all(commands)


def test_commands_about_several_studies_in_a_folder_of_ones_own(tmp_path: Path) -> None:
    for study in ("compare", "digits"):
        write_run_folder(tmp_path / "runs", study, 0, study=study)
    frame = load_study(tmp_path / "runs", "compare,digits")
    where = f"runs={tmp_path / 'runs'}"
    assert training_commands(frame) == (
        f"archbench train study=compare {where}",
        f"archbench train study=reproduce/digits {where}",
    )
    assert f"study=compare,digits {where} speed=speed.parquet" in speed_commands(frame)[1]
    check_all(of_report(frame, load_history(tmp_path / "runs", "compare,digits")))


def test_commands_on_the_page(tmp_path: Path) -> None:
    write_run_folder(tmp_path / "runs", "decoder", 0)
    frame, history = load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare")
    page = page_of(Comparison(frame, history))
    found = {html.unescape(text) for text in re.findall("<code>(.*?)</code>", page)}
    assert "probes" not in " ".join(found)
    check_all(found)
    text = html.unescape(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    for words in re.findall(r"archbench ([a-z]+ ?[a-z]*)", text):  # also those outside of <code>
        assert find_command(words.split())[0] in MODULES


@pytest.mark.full
def test_commands_of_a_dry_run_on_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.submit(["-m", "backbone=decoder,mamba", "task=recall", "seed=0,1", "study.name=mine"]) == 0
    submit_preparation(["task=fineweb_edu", "tasks=2"])
    text = capsys.readouterr().out
    commands = in_text(text)
    assert commands == [
        "archbench slurm submit -m backbone=decoder,mamba task=recall seed=0,1 study.name=mine submit=true",
        "archbench slurm prepare task=fineweb_edu tasks=2 submit=true",
    ]
    check_all(set(commands))
    for line in text.splitlines():  # every other line that names a folder to come says so
        assert "=$(" not in line
        if "sbatch" in line:
            scripts = [word for word in shlex.split(line) if word.endswith(".sbatch")]
            assert all((ROOT / script).is_file() for script in scripts)
    assert text.count("makes the folder that is named ID above") == 2


def refused(ask: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, ConfigError)) as caught:
        ask()
    return str(caught.value)


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        ("compare", "archbench train study=compare runs=nowhere"),
        ("digits", "archbench train study=reproduce/digits runs=nowhere"),
        ("track_cpu", "archbench track cpu runs=nowhere"),
    ],
)
def test_commands_in_messages_about_a_study_without_runs(study: str, expected: str) -> None:
    [command] = in_text(refused(lambda: load_study(Path("nowhere"), study)))
    assert command == expected
    check(command)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nowhere.yaml", ["study=tune", "study=tune"]),
        ("other/variants_rates/analysis/rates.yaml", ["study=variants_rates runs=other"] * 2),
        ("runs/track_gpu_rates/analysis/rates.yaml", ["gpu"]),
    ],
)
def test_commands_in_messages_about_missing_learning_rates(path: str, expected: list[str]) -> None:
    text = refused(lambda: read_rates(Path(path)))
    commands = [found.strip(" ,") for found in re.findall(r"archbench \w+ [^,]*?(?=, | writes)", text)]
    assert [command.split(" ", 2)[2] for command in commands] == expected
    check_all(set(commands))


def test_commands_of_a_track_and_at_the_end_of_a_sweep(tmp_path: Path) -> None:
    track = read_track("cpu")
    words = track.words(track.rates_study, "parity", ["decoder", "mamba"], f"runs={tmp_path}")
    check(f"archbench train {shlex.join(words)}")
    write_run_folder(tmp_path / "my runs", "decoder", 0, study="mine")
    [command] = in_text(summary(tmp_path / "my runs" / "mine")[-1])
    assert shlex.split(command)[2:] == ["study=mine", f"runs={tmp_path / 'my runs'}"]
    check(command)
