"""F40 to F42, F56: damaged state, settings out of bounds, and names of other programs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.files import csv_text
from archbench.analysis.load.study import load_study
from archbench.analysis.scaling.__main__ import read_points
from archbench.analysis.stats.run_costs import cost_grid
from archbench.experiments import check, cli
from archbench.experiments.config.hydra_overrides import _dotted, _unknown_key, explain
from archbench.experiments.run.live_view import look
from archbench.experiments.run.model_files import read_model_spec
from archbench.experiments.run.planned import Planned
from archbench.experiments.run.skipped_cells import refusals
from archbench.experiments.run.summary import summary
from archbench.experiments.runtime import run_lock
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, DataError, Preempted
from archbench.experiments.runtime.json_state import read_mark
from archbench.experiments.runtime.preemption import stops_at_once
from archbench.experiments.runtime.run_lock import RunLock, writer
from archbench.experiments.runtime.synonyms import KEYS
from archbench.experiments.runtime.watchdog import check_progress
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.upload import MARK, upload
from archbench.slurm.submission import StudyRun, submissions
from tests.analysis.conftest import write_run_folder
from tests.experiments import commands

DAMAGED = (
    '{"status": 3}',
    "[]",
    "3",
    '"x"',
    "null",
    "[" * 100_000,
    "",
    '{"status": "complete", "metrics": 7}',
)


def test_f40_damaged_notes_beside_runs_are_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: Any
) -> None:
    bad, good = write_run_folder(tmp_path, "decoder", 0), write_run_folder(tmp_path, "mamba", 0)
    submitted = tmp_path / "compare" / "slurm" / "1"
    submitted.mkdir(parents=True)
    for text in DAMAGED:
        for name in ("result.json", MARK, "model.json"):
            (bad / name).write_text(text)
        (submitted / "runs.json").write_text(text)
        assert read_mark(bad / MARK) in (None, json.loads(text) if text.startswith('{"') else None)
        assert upload(RunFolder(bad), mode="offline") == "failed"
        with pytest.raises(CheckpointError, match=r"model\.json: is damaged"):
            read_model_spec(bad)
        with pytest.raises(CheckpointError, match=r"runs\.json: is damaged.*submit again"):
            submissions(tmp_path / "compare")
        assert look(Planned(cell="c", backbone="b", seed=0, folder=bad, tokens=9)).status == "unreadable"
        assert len(cost_grid(load_study(tmp_path, "compare")).rows) == 2
    assert "its record is damaged" in capsys.readouterr().err
    assert good.exists()
    record("F40", "marks, model.json and runs.json damaged", 3 * len(DAMAGED), "done anew, or exit 6 by name")


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_f40_one_damaged_result_does_not_stop_the_tables(tmp_path: Path, text: str, record: Any) -> None:
    bad, good = write_run_folder(tmp_path, "decoder", 0), write_run_folder(tmp_path, "mamba", 0)
    (bad / "result.json").write_text(text)
    frame = load_study(tmp_path, "compare").set_index("backbone", drop=False)
    assert sorted(frame["status"]) == ["complete", "unreadable"]
    lines = summary(tmp_path / "compare")
    assert lines[0] == "study compare: 1 complete, 1 unreadable"
    run = StudyRun(key="k", name="n", seed=0, folder=str(bad), words=[])
    assert run.status == "unreadable"
    assert "result.json" in run.message
    assert good.exists()
    record(
        "F40",
        "result.json of another type, or nested deeply",
        len(DAMAGED),
        "a row `unreadable`, others shown",
    )


def test_f40_damaged_state_beside_a_run_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (tmp_path / ".refused").mkdir()
    for text in (*DAMAGED, '{"host": 1, "pid": "x"}', '{"folder": 3}'):
        for name in ("lock.json", "restarts.json", ".refused/one.json"):
            (tmp_path / name).write_text(text)
        os.utime(tmp_path / "lock.json", (1, 1))
        assert writer(tmp_path) is None
        with RunLock(tmp_path):
            pass
        check_progress(tmp_path, 3)
        assert refusals(tmp_path) == []
    record("F40", "lock.json, restarts.json or an index of refusals damaged", 30, "taken over, counted anew")


def test_f40_a_foreign_lock_dated_in_the_future_is_taken_over_when_nobody_touches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.2)
    holder = RunLock(tmp_path).holder | {"host": "elsewhere", "boot": "other"}
    path = tmp_path / "lock.json"
    path.write_text(json.dumps(holder))
    later = time.time() + 10**6
    os.utime(path, (later, later))
    with RunLock(tmp_path):
        assert json.loads(path.read_text())["host"] != "elsewhere"
    record("F40", "lock of another machine dated in the future", 1, "taken over after 45 s untouched")


OUT_OF_BOUNDS = {
    "seed=-1": "seed=-1 must be a whole number",
    "study.name=-rf": "study.name='-rf' names a folder",
    "budget.micro_batch_size=7": "micro_batch_size=7 is more than batch_size=4",
    "device.threads=100000": "threads=100000 must be in 1 to",
    "scale.depth=100000": "depth=100000 must be in 1 to 1024",
    "budget.tokens=1e6": "write budget.tokens=1000000",
    "budget.tokens=1M": "write budget.tokens=1000000",
    "optimizer.schedule=quadratic": "; options: constant, cosine, linear, one_minus_sqrt, wsd",
}


@pytest.mark.parametrize("word", OUT_OF_BOUNDS)
def test_f41_what_is_out_of_bounds_is_refused_at_once(word: str, record: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        commands.settings("budget=smoke", *commands.RECALL, word)
    assert OUT_OF_BOUNDS[word] in str(refused.value)
    record("F41", f"`{word}`", 1, "exit 2 with the bound")


@pytest.mark.parametrize(
    "word",
    ["task.sequence_length=1000000000", "budget.batch_size=1000000000", "task.num_symbols=10000000000"],
)
def test_f41_what_no_memory_holds_is_refused_with_the_figure(word: str, record: Any) -> None:
    from archbench.experiments.run.plan import plan

    chosen = commands.settings(*commands.TINY, "task=recall", word)
    with pytest.raises(ConfigError, match=r"would take [\d,.]+ GiB, and this machine has"):
        plan(chosen)
    record("F41", f"`{word}`", 1, "exit 2 with both figures")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "budget.batch_size=10000000 budget.tokens=320000000",
            r"10000000 sequences of 32 tokens at once.* would take [\d,.]+ GiB",
        ),
        ("scale.targets.non_embedding=100000000000", r"parameters with gradients and moments would take"),
        ("budget.tokens=1000000000000000000", r"FLOPs take [\d,.]+ years on this machine"),
    ],
)
def test_f41_a_run_that_no_machine_holds_or_ends_is_refused_unless_forced(
    word: str, message: str, record: Any
) -> None:
    from archbench.experiments.run.plan import check_run, plan

    words = (*commands.TINY, *commands.RECALL, *word.split())
    for forced in (False, True):
        chosen = commands.settings(*words, f"device.force={str(forced).lower()}")
        planned = plan(chosen)
        arguments = (chosen, planned.matched.config, planned.cost, planned.sizes.vocab_size)
        if forced:
            check_run(*arguments)
        else:
            with pytest.raises(ConfigError, match=message + r".*device\.force=true"):
                check_run(*arguments)
    record("F41", f"`{word}`", 1, "exit 2 with both figures, unless device.force=true")


@pytest.mark.parametrize("key", ["lr", "model", "epochs", "trainer.max_steps", "batch_size", "task.seq_len"])
def test_f42_usual_names_of_other_programs_name_ours(key: str, record: Any) -> None:
    keys = _dotted(commands.compose())  # evaluate has other keys of the same name
    [ours] = [ours for ours, names in KEYS.items() if key.rpartition(".")[2] in names and ours in keys]
    assert f"did you mean '{ours}'?" in _unknown_key(key, "config")
    record("F42", f"`{key}=`", 1, "our key named")


def test_f42_every_synonym_names_a_key_that_there_is() -> None:
    keys = set(_dotted(commands.compose()))
    others = set().union(
        *(_dotted(commands.compose(root=root)) for root in ("evaluate", "generate", "export"))
    )
    assert set(KEYS) <= keys | others
    assert not {name for ours, names in KEYS.items() for name in names if name in keys and name != ours}


def test_no_cell_of_a_table_is_a_formula() -> None:
    import pandas as pd

    table = pd.DataFrame({"message": ["=HYPERLINK()", "@x", "+1", "-", "fine", None], "score": range(-1, 5)})
    assert csv_text(table).splitlines()[1:4] == ["'=HYPERLINK(),-1", "'@x,0", "'+1,1"]
    assert csv_text(table).splitlines()[5] == "fine,3"
    assert csv_text(pd.DataFrame({"x": ["-cmd|' /C calc'", "-1+cmd()", "-3.5", "-"]})).splitlines()[1:] == [
        "'-cmd|' /C calc'",
        "'-1+cmd()",
        "-3.5",
        "-",
    ]
    written = [path for path in (commands.ROOT / "analysis").rglob("*.py") if ".to_csv(" in path.read_text()]
    assert written == [commands.ROOT / "analysis" / "files.py"], "every table is written by csv_text"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_f41_a_signal_while_data_is_prepared_means_what_it_means_later(
    number: signal.Signals, record: Any
) -> None:
    before = signal.getsignal(number)

    def prepare() -> None:
        with stops_at_once():
            os.kill(os.getpid(), number)
            time.sleep(1)

    with pytest.raises(Preempted) as stopped:
        prepare()
    assert stopped.value.code == 75
    assert signal.getsignal(number) == before
    record("F11", f"{number.name} while data is prepared", 1, "exit 75, nothing left behind")


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ("zzz", r"nor is there a conf/study/zzz\.yaml to run; options: .*compare"),
        ("compar", r"conf/study/compar\.yaml to run; did you mean 'compare'\?"),
        ("compare", "run it first: archbench train study=compare runs="),
        ("digits", "run it first: archbench train study=reproduce/digits runs="),
    ],
)
def test_f42_a_study_that_was_not_run_names_what_can_be(tmp_path: Path, study: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_study(tmp_path, study)


def test_f42_a_list_given_as_one_value_and_a_missing_extra_say_what_to_type(record: Any) -> None:
    words = ("task=text", "task.source=files", "task.paths=/x.txt")
    with pytest.raises(ConfigError, match=r"write task\.paths=\[/x\.txt\]"):
        commands.settings(*words)
    text = "Could not find 'hydra/sweeper/optuna'\n\nAvailable options in 'hydra/sweeper':\n\tbasic"
    assert explain(ValueError(text)).endswith("pip install 'archbench[optuna]'")
    record("F42", "a list given as one value, the package of an extra missing", 2, "said what to type")


def test_f56_a_working_folder_that_was_removed_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], record: Any
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "there").rmdir()
    monkeypatch.setattr("sys.argv", ["archbench", "cost", "backbone=decoder"])
    for work in (cli.main, lambda: check.main(["study=x", f"runs={tmp_path}"])):
        with pytest.raises(SystemExit) as stopped:
            work()
        assert stopped.value.code == 2
        assert capsys.readouterr().err.startswith("error: the working folder has been removed")
    record("F56", "working folder removed", 2, "exit 2 in one line")


def test_f56_a_file_that_is_no_table_is_not_printed_as_the_name_of_its_column(
    tmp_path: Path, record: Any
) -> None:
    path = tmp_path / "points.csv"
    path.write_bytes(bytes(3000))
    with pytest.raises(DataError, match="no column 'Model Size'") as caught:
        read_points(path)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert str(caught.value).isprintable()
    record("F56", "points of a scaling law that are zeros", 1, "exit 3 in one line")
