"""A study of six runs on a real SLURM: one killed, one cancelled, some preempted, and the same table."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis.load.study import load_study
from archbench.analysis.stats.arms import arm_table
from archbench.slurm.queue import queued_tasks
from archbench.slurm.submission import StudyRun, submissions
from tests.slurm import jobs

pytestmark = pytest.mark.slurm

STUDY = ("-m", *jobs.CELL, "budget.tokens=102400", "study.name=six", "backbone=decoder,mamba", "seed=0,1,2")


@dataclass
class Story:
    """What was seen while the study went on."""

    runs: Path
    undisturbed: Path
    printed: dict[str, str] = field(default_factory=dict)
    """What commands printed, by when."""
    submitted: dict[int, StudyRun] = field(default_factory=dict)
    """By the array task of the first submission."""
    states: dict[str, dict[int, str]] = field(default_factory=dict)
    """The state of each run in the table of archbench.slurm.status, by when."""
    hashes: dict[str, dict[Path, str]] = field(default_factory=dict)
    """Of every file of the runs that were left alone, before and after."""
    accounts: dict[int, str] = field(default_factory=dict)

    def see(self, when: str) -> None:
        printed = jobs.module("archbench.slurm.status", "study=six", f"runs={self.runs}")
        self.printed[when] = printed
        table = printed.partition("\n\n")[0]  # the next one is of jobs
        rows = [line.split() for line in table.splitlines() if "-recall-nano " in line]
        names = {(run.name, str(run.seed)): task for task, run in self.submitted.items()}
        self.states[when] = {names[row[0], row[1]]: row[2] for row in rows}

    def folder(self, task: int) -> Path:
        return Path(self.submitted[task].folder)


def files(folder: Path) -> dict[Path, str]:
    return {
        path: f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def story(local_slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Story:
    desk = tmp_path_factory.mktemp("six")
    low = jobs.cluster_file(desk, "low")
    seen = Story(runs=desk / "runs", undisturbed=desk / "undisturbed")
    submit = ("archbench.slurm.submit", *STUDY, f"runs={seen.runs}", f"cluster={low}")

    seen.printed["dry"] = jobs.module(*submit)
    assert not seen.runs.exists(), "a dry run left something"
    jobs.open_partition("low", "DOWN")  # until all has been asked of waiting jobs
    seen.printed["first"] = jobs.module(*submit, "submit=true")
    (first,) = submissions(seen.runs / "six")
    seen.submitted = {run.task: run for run in first.runs if run.task is not None}
    seen.see("submitted")
    seen.printed["again"] = jobs.module(*submit, "submit=true")

    jobs.open_partition("low", "UP")
    jobs.hold(*((seen.submitted[task].words, seen.folder(task)) for task in (0, 1, 5)))
    tasks = {index: task for (_, index), task in queued_tasks([first.name]).items()}
    jobs.kill(seen.submitted[0].words, signal.SIGKILL)  # as the kernel does when it is out of memory
    jobs.kill(seen.submitted[1].words, signal.SIGCONT)
    jobs.run("scancel", tasks[1].job)
    jobs.wait_until_gone(f"--job={tasks[0].job},{tasks[1].job}")
    node = tasks[5].nodes_or_reason
    exclusive = jobs.sbatch(
        "--partition=main", "--exclusive", f"--nodelist={node}", "--output=/dev/null", "--wrap=true"
    )
    jobs.kill(seen.submitted[5].words, signal.SIGCONT)
    jobs.wait_until_gone(f"--job={exclusive}")
    seen.see("disturbed")
    jobs.wait_until_gone(f"--name={first.name},{first.name}-analysis")
    seen.accounts = {i: jobs.sacct(tasks[i].job) for i in tasks}
    seen.see("finished_tasks")

    before = {path: h for i in range(2, 6) for path, h in files(seen.folder(i)).items()}
    seen.printed["rest"] = jobs.module(*submit, "submit=true")
    second = submissions(seen.runs / "six")[-1]
    jobs.wait_until_gone(f"--name={second.name},{second.name}-analysis")
    seen.see("complete")
    after = {path: h for i in range(2, 6) for path, h in files(seen.folder(i)).items()}
    seen.hashes = {"before": before, "after": after}
    seen.printed["done"] = jobs.module(*submit, "submit=true")

    words = (*STUDY, f"runs={seen.undisturbed}", "hydra/launcher=parallel")
    subprocess.run([sys.executable, "-m", "archbench.experiments.train", *words], cwd=jobs.ROOT, check=True)
    return seen


def test_a_dry_run_prints_the_commands_and_submits_nothing(story: Story) -> None:
    printed = story.printed["dry"]
    assert "6 to submit" in printed
    assert "Nothing was submitted" in printed
    shown = [line.partition(": sbatch ")[0].strip() for line in printed.splitlines() if ": sbatch " in line]
    assert shown == ["prepare", "runs", "analysis"]
    assert "--array=0-5" in printed


def test_the_status_goes_from_waiting_to_done(story: Story) -> None:
    assert Counter(story.states["submitted"].values()) == {"waiting": 6}
    ended = story.states["finished_tasks"]
    assert [ended[i] for i in range(6)] == ["interrupted", "interrupted", *["done"] * 4] or [
        ended[i] for i in range(6)
    ] == ["interrupted", "preempted", *["done"] * 4], story.printed["finished_tasks"]
    assert story.printed["complete"].splitlines()[-1] == "6 runs: 6 done"


def test_a_run_in_the_queue_is_not_submitted_twice(story: Story) -> None:
    assert "6 runs, 0 ended, 6 in the queue, 0 to submit" in story.printed["again"]


def test_a_preempted_run_goes_on_in_its_folder(story: Story) -> None:
    assert story.states["disturbed"][5] in ("preempted", "running"), story.printed["disturbed"]
    (log,) = (story.runs / "six" / "slurm").glob("*/5.out")
    text = log.read_text()
    assert text.count("restart 0") == text.count("restart 1") == 1
    assert "resumed at step" in text.split("restart 1")[1]
    assert story.accounts[5] == "COMPLETED|0:0"


def test_killed_and_cancelled_runs_are_not_requeued(story: Story) -> None:
    assert story.accounts[0].startswith("FAILED")
    assert story.accounts[1].startswith("CANCELLED")
    for i in (0, 1):
        first = min((story.runs / "six" / "slurm").glob(f"*/{i}.out"))
        assert "restart 1" not in first.read_text()
    assert "exit code 137: " in min((story.runs / "six" / "slurm").glob("*/0.out")).read_text()


def test_only_what_is_missing_is_run_again(story: Story) -> None:
    assert "4 ended, 0 in the queue, 2 to submit" in story.printed["rest"]
    assert story.hashes["before"] == story.hashes["after"]
    assert "6 ended, 0 in the queue, 0 to submit" in story.printed["done"]


def test_the_table_is_that_of_an_undisturbed_run(story: Story) -> None:
    here, there = load_study(story.runs, "six"), load_study(story.undisturbed, "six")
    columns = ["cell", "seed", "status", "score", "score_standard_error", "training_steps", "training_tokens"]
    pd.testing.assert_frame_equal(here[columns], there[columns], check_exact=True)
    untimed = [c for c in arm_table(here).columns if not any(w in c for w in ("second", "memory", "share"))]
    pd.testing.assert_frame_equal(arm_table(here)[untimed], arm_table(there)[untimed], check_exact=True)
    written = pd.read_csv(story.runs / "six" / "analysis" / "table.csv")  # by the last job of the study
    assert list(written["score"]) == list(arm_table(there)["score"])
    assert list(written["arm"])[:2] == list(arm_table(here)["arm"])[:2]


def test_a_study_of_runs_on_two_nodes_equals_one_process(low: Path, tmp_path: Path) -> None:
    """Two nodes with two processes each for one model, one process for the other; one run is preempted."""
    runs, alone = tmp_path / "runs", tmp_path / "alone"
    words = (*jobs.CELL, "study.name=large", "seed=0,1", "parallel=fsdp")
    wide = (*words, "backbone=decoder", "parallel.nodes=2", "parallel.gpus_per_node=2", f"runs={runs}")
    jobs.module("archbench.slurm.submit", "-m", *wide, f"cluster={low}", "submit=true")
    (sent,) = submissions(runs / "large")
    jobs.hold((sent.runs[0].words, Path(sent.runs[0].folder)))
    tasks = {index: task for (_, index), task in queued_tasks([sent.name]).items()}
    asked = jobs.run("scontrol", "show", "job", tasks[0].job)
    assert "NumNodes=2" in asked
    assert "NumTasks=4" in asked
    jobs.run("scancel", "--batch", "--signal=USR1", tasks[0].job)
    jobs.kill(sent.runs[0].words, signal.SIGCONT)
    jobs.wait_until_gone(f"--name={sent.name},{sent.name}-analysis")
    assert "resumed at step" in (sent.folder / "0.out").read_text()
    printed = jobs.module("archbench.slurm.status", "study=large", f"runs={runs}")
    assert printed.splitlines()[-1] == "2 runs: 2 done"
    assert "goodput" in printed

    single = (*words, "backbone=decoder", f"runs={alone}", "hydra/launcher=parallel")
    jobs.module("archbench.experiments.train", "-m", *single)
    here, there = load_study(runs, "large"), load_study(alone, "large")
    assert list(here["cell"]) == list(there["cell"])
    assert list(here["score"]) == pytest.approx(list(there["score"]), abs=0.01)
    assert list(here["training_tokens"]) == list(there["training_tokens"])


def test_runs_share_a_task_and_one_that_fails_leaves_the_others_alone(low: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = (*jobs.CELL, "study.name=pair", "optimizer.learning_rate=0.003,1e30", f"runs={runs}")
    jobs.module("archbench.slurm.submit", "-m", *words, f"cluster={low}", "runs_per_task=2", "submit=true")
    (sent,) = submissions(runs / "pair")
    assert [run.task for run in sent.runs] == [0, 0]
    array = next(iter(queued_tasks([sent.name]).values())).job
    jobs.wait_until_gone(f"--name={sent.name}")
    assert [run.status for run in sent.runs] == ["complete", "diverged"]
    assert jobs.sacct(array) == "FAILED|4:0"
    assert (sent.folder / "0.out").read_text().count("restart") == 1
    printed = jobs.module("archbench.slurm.status", "study=pair", f"runs={runs}")
    assert "2 runs: 1 done, 1 diverged" in printed or "2 runs: 1 diverged, 1 done" in printed
    assert "weights were not updated" in printed
