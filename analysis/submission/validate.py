"""Check a submission: answer yes, or list every reason to reject it.

    archbench validate FOLDER [run=CELL-DIGEST/sSEED] [retrain=false] [tolerance=0.02]

The runs must be those that the rules ask for, no more and no fewer: each tuning trial and each test seed,
with the budget, data, tokenizer, size and scored split of the study, and the learning rate that its tuning
runs choose. Size, FLOPs, data and scored bytes are computed again from the submitted code. Its logits must
not depend on later tokens. If nothing is wrong, a tuning run and a test run are trained again, and must have
the same scores.

The exit code is 0 if the submission is accepted, 3 if it is rejected, and 2 for a mistake in the arguments.
The submitted code is executed: validate where it can do no harm, and read it. No check detects code that
is written to deceive the checks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from archbench.analysis.declared.study_frames import study_frame
from archbench.analysis.load.study import load_study
from archbench.analysis.submission.folder import (
    CONFIGS,
    RESULTS,
    RUNS,
    Submission,
    config_problems,
    copy_modules,
    file_problems,
    load_runs,
    read_submission,
)
from archbench.analysis.submission.model import expected_scores, model_problems, pretrained_problems
from archbench.analysis.submission.records import (
    code_problems,
    curve_problems,
    frame_problems,
    import_problems,
    list_problems,
    names_of,
    plan_problems,
    repeated_problems,
    run_file_problems,
    score_problems,
    stored_result,
    stored_settings,
)
from archbench.analysis.submission.study import (
    StudyRules,
    composed_model,
    expected_runs,
    read_study,
    sections_set,
    submitted_trials,
    trial_problems,
)
from archbench.analysis.submission.untrusted import (
    check_files,
    override_problems,
    study_problems,
    yaml_problems,
)
from archbench.experiments.config.old_names import current_name, user_code
from archbench.experiments.config.options import run_command
from archbench.experiments.config.structured import PACKAGE, is_own
from archbench.experiments.config.study import RULES
from archbench.experiments.run.load_model import load_model
from archbench.experiments.run.plan import plan
from archbench.experiments.runtime.child_processes import run_python
from archbench.experiments.runtime.errors import (
    ConfigError,
    DataError,
    RunError,
    as_run_errors,
    nearest_folder,
)
from archbench.experiments.runtime.run_status import FINAL, RunStatus
from archbench.experiments.tracking.provenance import code_hashes
from archbench.experiments.tracking.results_frame import NEEDED, read_results

AT_START = ("sitecustomize", "usercustomize")
"""Modules that Python imports when it starts."""


@dataclass(frozen=True, kw_only=True)
class ValidateConfig:
    """Which submission, and which of its runs is trained again."""

    folder: str = ""
    """The submission."""
    run: str = ""
    """The run that is trained again, or a part of its path; empty for a random tuning run and a random test
    run."""
    retrain: bool = True
    """Train runs again."""
    tolerance: float = 0.02
    """Largest relative difference of their scores."""
    config_dir: str = ""
    """A folder of further YAML files, as Hydra's --config-dir."""

    def __post_init__(self) -> None:
        if not self.folder:
            raise ValueError("name the folder of a submission, as in: archbench validate submission")
        if Path(self.folder).is_file():
            raise ValueError(f"folder={self.folder} is a file: unpack the submission, and name its folder")
        if not Path(self.folder).is_dir():
            raise ValueError(
                f"folder={self.folder}: there is no such folder{nearest_folder(Path(self.folder))}"
            )


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A submission whose record was read."""

    config: ValidateConfig
    folder: Path
    submission: Submission
    rules: StudyRules
    submitted: Path
    """A copy of its runs."""
    retrained: Path
    """The folder of all studies in which runs are trained again."""
    frame: pd.DataFrame
    """Its runs."""
    expected: pd.DataFrame
    """The runs that the study asks for."""


def reasons(config: ValidateConfig) -> list[str]:
    """Return all reasons to reject a submission; runs are trained again if there are no others."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with as_run_errors():
                if found := [*early_problems(config)]:
                    return found
                opened = open_submission(config, Path(scratch))
        except RunError as error:
            return [first_line(error)]
        checks = (rule_problems, record_problems, results_problems)
        found = [problem for check in checks for problem in with_errors(check(opened))]
        if config.retrain and not found:
            found = [*with_errors(retrain_problems(opened))]
    return found


def with_errors(problems: Iterator[str]) -> Iterator[str]:
    """Yield the reasons of a check, and as the last one the error that ends it."""
    try:
        with as_run_errors():
            yield from problems
    except RunError as error:
        yield first_line(error)


def early_problems(config: ValidateConfig) -> Iterator[str]:
    """Yield what must not be copied, or reach Hydra. Raises DataError."""
    folder = Path(config.folder).resolve()
    check_files(folder)
    if found := [*yaml_problems(folder)]:
        yield from found
        return
    submission = read_submission(folder)
    yield from study_problems(submission.study)
    yield from override_problems(submission.overrides)
    yield from config_problems(submission, folder)


def open_submission(config: ValidateConfig, scratch: Path) -> Opened:
    """Read a submission, whose modules are imported from its folder from now on. Raises DataError.

    Args:
        config: names the folder.
        scratch: an empty folder.
    """
    folder = Path(config.folder).resolve()
    submission = read_submission(folder)
    configs = folder / CONFIGS if submission.configs else ""
    rules = read_study(submission.study, config.config_dir, configs)
    if found := [*rules.check(submission.overrides)]:
        raise DataError("; ".join(found))
    for path in folder.iterdir():
        is_module = path.suffix == ".py" or (path.is_dir() and path.name not in (RUNS, CONFIGS))
        if is_module and (path.stem in (PACKAGE, *AT_START) or not is_own(path.stem)):
            raise DataError(f"{path.name} would replace an installed module: rename it, and train again")
    # The submitted modules come first in this process and in those that it starts.
    copy_modules(folder, code := scratch / "code")
    sys.path.insert(0, str(code))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")])
    # A copy, because reading caches the frame of a study next to its runs.
    submitted, retrained = scratch / "submitted", scratch / "retrained"
    if (folder / RUNS).is_dir():
        shutil.copytree(folder / RUNS, submitted, ignore=shutil.ignore_patterns(".*"))
    frame = load_runs(rules, submitted)
    if frame.empty:
        raise DataError(f"{folder / RUNS} has no runs of study={rules.study} or study={rules.study}_rates")
    expected = expected_runs(rules, submission.overrides, submitted, retrained)
    return Opened(
        config=config, folder=folder, submission=submission, rules=rules, submitted=submitted,
        retrained=retrained, frame=frame, expected=expected,
    )  # fmt: skip


def rule_problems(opened: Opened) -> Iterator[str]:
    """Yield what the rules do not allow: their version, other overrides, runs and trials."""
    submission, rules = opened.submission, opened.rules
    if submission.rules != RULES:
        yield f"rules={submission.rules}: this version of archbench checks submissions by rules {RULES}"
    if others := sorted(set(opened.frame["rules"].dropna()) - {submission.rules}):
        yield f"its runs follow rules {', '.join(others)}, and submission.yaml names rules {submission.rules}"
    yield from file_problems(opened.folder)
    if submission.configs and (sections := sections_set(rules, submission.overrides)):
        yield f"{CONFIGS}/ sets {', '.join(sections)}: a submission sets its backbone only"
    yield from list_problems(opened.frame, opened.expected)
    yield from trial_problems(rules, submitted_trials(rules, opened.submitted))


def record_problems(opened: Opened) -> Iterator[str]:
    """Yield what is wrong with the submitted files, and with the model that is built from them."""
    backbone = composed_model(opened.rules, opened.submission.overrides).backbone
    module = current_name(str(backbone.get("_target_", ""))).rpartition(".")[0]
    current = user_code(code_hashes([module]))
    yield from code_problems(opened.frame, current)
    yield from import_problems(current)
    for _, run in opened.frame.iterrows():
        yield from run_file_problems(run)
    ended = opened.frame[opened.frame["status"].isin(FINAL)]
    for _, runs in ended.groupby(["study", "cell", "digest"]):
        yield from with_errors(configuration_problems(runs))


def results_problems(opened: Opened) -> Iterator[str]:
    """Yield how results.parquet differs from the submitted runs."""
    stored = read_results(opened.folder / RESULTS, {*NEEDED, "study"}).to_pandas()
    yield from frame_problems(stored, study_frame(opened.submitted, opened.rules.folder))


def configuration_problems(runs: pd.DataFrame) -> Iterator[str]:
    """Yield what the runs of one configuration state that their settings, code and data do not lead to."""
    settings = stored_settings(runs.iloc[0])
    run_plan = plan(settings)
    for _, run in runs.iterrows():
        yield from plan_problems(run, stored_settings(run), run_plan)
    for problem in (*model_problems(settings, run_plan), *pretrained_problems(settings, run_plan)):
        yield f"{runs['cell'].iloc[0]}: {problem}"
    complete = runs[runs["status"] == RunStatus.COMPLETE]
    scores = expected_scores(settings, run_plan) if len(complete) else []
    for _, run in complete.iterrows():
        yield from score_problems(run, scores)


def retrain_problems(opened: Opened) -> Iterator[str]:
    """Yield what differs if runs are trained again, and what is wrong with their models then."""
    frame = opened.frame.assign(name=names_of(opened.frame))
    chosen = frame[frame["name"].str.contains(opened.config.run, regex=False)]
    if chosen.empty:
        raise ConfigError(f"run={opened.config.run}: no run has this name")
    groups = [chosen]
    if not opened.config.run:  # the learning rate follows from the scores of tuning runs
        groups = [
            chosen[chosen["study"] == study] for study in (opened.rules.rates_folder, opened.rules.folder)
        ]
    for runs in groups:
        yield from with_errors(repeat(opened, runs.iloc[random.randrange(len(runs))]))


def repeat(opened: Opened, run: pd.Series) -> Iterator[str]:
    """Train a submitted run again, and yield what differs."""
    words = dict(zip(names_of(opened.expected), opened.expected["words"], strict=True))[run["name"]]
    print(f"training {run['name']} again", flush=True)
    run_python(["-m", "archbench.experiments.train", *words, *opened.rules.search_path])
    repeated = load_study(opened.retrained, run["study"]).iloc[0]
    tolerance = opened.config.tolerance
    yield from repeated_problems(run["name"], stored_result(run), stored_result(repeated), tolerance)
    curve, repeated_curve = (curve_of(run, runs) for runs in (opened.submitted, opened.retrained))
    yield from curve_problems(run["name"], curve, repeated_curve, tolerance)
    if repeated["status"] == RunStatus.COMPLETE:
        model = load_model(Path(repeated["path"]), torch.device("cpu")).model
        settings = stored_settings(run)
        yield from model_problems(settings, plan(settings), model)


def curve_of(run: pd.Series, runs: Path) -> list[list[float]]:
    """Return the validations of a run in a folder of all studies, as ``curve_problems`` takes them."""
    frame = study_frame(runs, run["study"])
    (curve,) = frame.loc[[name == run["name"] for name in names_of(frame)], "curve"]
    return list(json.loads(curve))


def first_line(error: RunError) -> str:
    """Return the message of an error, without the traceback of an unexpected one."""
    return str(error).splitlines()[0]


def report(config: ValidateConfig) -> int:
    """Print the verdict, and return the exit code."""
    found = reasons(config)
    for reason in found:
        print(f"- {reason}")
    print("rejected" if found else "accepted" if config.retrain else "accepted, without training a run again")
    return DataError.exit_code if found else 0


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 if accepted, 3 if rejected, 2 for a mistake in the arguments."""
    options = list(arguments)
    if options and "=" not in options[0] and not options[0].startswith("-"):
        options[0] = f"folder={options[0]}"
    return run_command(__doc__, ValidateConfig, options, lambda config: config, report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
