"""Write the submission of a model to a study: its code, and the records of its runs.

    archbench submit study=track/cpu backbone=./my_mixer.py:MyMixer authors='A. Author' [about=...]
    archbench submit study=laptop variant=decoder backbone=kda names.backbone=kda authors='A. Author'
    archbench submit study=compare backbone=mine config_dir=mine authors='A. Author'

Further overrides are those that the runs were trained with: of the model, and of the workloads if not all of
the study were run (track/cpu=parity). Every run of the model in the tuning study (study=track/cpu_rates) and
in the study is submitted, failures included. Then the folder is checked as archbench validate does, without
training.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archbench.analysis.submission.folder import Submission, model_configs, write_submission
from archbench.analysis.submission.study import expected_runs, read_study
from archbench.analysis.submission.validate import ValidateConfig, report
from archbench.experiments.config.backbone_file import class_paths
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SubmitConfig:
    """The study and the model to submit."""

    study: str = ""
    """The study: track/cpu, compare, laptop."""
    authors: str = ""
    """Authors of the model."""
    about: str = ""
    """A sentence or a link about the model."""
    runs: str = "runs"
    """The folder of all studies."""
    out: str = "submission"
    """The folder to write."""
    config_dir: str = ""
    """A folder of further YAML files, as Hydra's --config-dir; those of the model are submitted."""

    def __post_init__(self) -> None:
        for name in ("study", "authors"):
            if not getattr(self, name):
                raise ValueError(f"{name} has no value: set {name}=...")


def submit(config: SubmitConfig, overrides: Sequence[str]) -> int:
    """Write the folder, print what is wrong with it, and return the exit code. Raises ValueError."""
    rules, runs, folder = read_study(config.study, config.config_dir), Path(config.runs), Path(config.out)
    overrides = [
        f"backbone={class_paths(text.removeprefix('backbone='))}" if text.startswith("backbone=") else text
        for text in overrides
    ]
    if problems := list(rules.check(overrides)):
        raise ConfigError("; ".join(problems))
    configs = model_configs(overrides, Path(config.config_dir)) if config.config_dir else {}
    submission = Submission(
        study=config.study, overrides=overrides, authors=config.authors, about=config.about, configs=configs
    )
    with tempfile.TemporaryDirectory() as empty:
        expected = expected_runs(rules, overrides, runs, Path(empty))
    write_submission(submission, rules, expected, runs, folder, Path(config.config_dir))
    print(f"wrote {folder}; check it with training a run again: archbench validate {folder}")
    return report(ValidateConfig(folder=str(folder), retrain=False, config_dir=config.config_dir))


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 if the submission would be rejected."""
    keys = {field.name for field in dataclasses.fields(SubmitConfig)}
    overrides = [text for text in arguments if "=" in text and text.partition("=")[0] not in keys]
    options = [text for text in arguments if text not in overrides]
    return run_command(
        __doc__, SubmitConfig, options, lambda config: submit(config, overrides), lambda code: code
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
