"""The task check: its command, and that an oracle which fails is not passed over."""

import re

from archbench.experiments.tasks.__main__ import check_task
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments import commands


def test_the_command_prints_a_row_for_each_generated_task() -> None:
    done = commands.run("tasks", "-m", "task=recall,text,even_pairs")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    found = {row[0]: row for row in rows}
    assert found["recall"][1:5] == ["16", "4.0", "1.000", "0.250"]
    assert found["even_pairs"][3] == "1.000"
    assert re.search(r"first and last tokens\s+1\.000 \(!\)", done.stdout), done.stdout
    assert "text" not in found
    assert "Task check: oracle and shallow baselines" in done.stdout


def test_a_choice_of_none_is_one_message() -> None:
    done = commands.run("tasks", "task=text")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no generated task was chosen: take one such as task=recall\n"


def test_the_lines_of_a_language_are_printed_without_a_probe() -> None:
    done = commands.run("tasks", "task=lano")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("lano")]
    assert [row[1] for row in rows] == ["uniform", "unigram", "shallow:", "grammar"]
    assert rows[-1][2] == "0.000"
    assert "Task check" not in done.stdout


class Blind(Recall):
    """An oracle that always says the first value."""

    def solve(self, shown, asked):
        return [shown[1]] * len(asked)


def test_an_oracle_that_does_not_know_is_measured() -> None:
    check = check_task("blind", Blind(RecallConfig()))
    assert check.oracle == 0.25  # each of four keys is asked for once, and has its own value
    assert check.guess == 0.25
