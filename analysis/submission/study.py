"""The runs that a study asks of a model: tuning runs, and test runs with the learning rates chosen from them.

A study ``NAME`` takes submissions if ``conf/study/NAME_rates.yaml`` sweeps the learning rate. A track is the
study ``track/NAME``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
import pandas as pd
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

import archbench.experiments.config.schema  # noqa: F401  # registers what the YAML files extend
from archbench.analysis.declared.chosen_rates import write_chosen
from archbench.analysis.declared.runs import listed
from archbench.analysis.declared.tuned_study import TunedStudy
from archbench.analysis.stats.learning_rates.choice import ARM, best_rates, rate_table
from archbench.experiments.config import CONF
from archbench.experiments.config.hydra_overrides import explain
from archbench.experiments.runtime.errors import ConfigError, nearest

RATE = "optimizer.learning_rate"
MODEL = ("backbone", "names.backbone")
"""Keys that choose a model, in addition to ``backbone.*``."""


@dataclass(frozen=True, kw_only=True)
class StudyRules(TunedStudy):
    """A study that takes submissions, and its tuning study."""

    swept: dict[str, list[str]]
    """Values of each key that the study sweeps."""
    search_path: list[str]
    """Override that adds folders of YAML files, if there are any."""

    def check(self, overrides: Sequence[str]) -> Iterator[str]:
        """Yield the overrides that change more than the model, or than the choice of workloads."""
        for override in overrides:
            key, _, values = override.partition("=")
            if key in MODEL or _is_backbone_key(override):
                continue
            if key not in self.swept or key == "seed":
                options = [*MODEL, "backbone.KEY", *(set(self.swept) - {*MODEL, "seed"})]
                yield f"{override}: a submission sets {', '.join(options)} only{nearest(key, options)}"
            elif unlisted := set(values.split(",")) - set(self.swept[key]):
                yield f"{key}={', '.join(sorted(unlisted))} is not swept by study={self.study}"
        if "variant" in self.swept and not any(text.startswith("variant=") for text in overrides):
            yield f"study={self.study} sweeps variant: add variant=decoder, or the variant of the model"


def read_study(study: str, *config_dirs: str | Path) -> StudyRules:
    """Return a study that takes submissions. Raises ConfigError.

    Args:
        study: value of ``study=``.
        config_dirs: folders of further YAML files, as Hydra's --config-dir; empty ones are ignored.
    """
    folders = ",".join(f"file://{Path(folder).resolve()}" for folder in config_dirs if folder)
    search_path = [f"hydra.searchpath=[{folders}]"] if folders else []
    test = _compose(study, search_path)
    roots = [*(Path(folder) for folder in config_dirs if folder), CONF]
    if not any((root / "study" / f"{study}_rates.yaml").is_file() for root in roots):
        raise ConfigError(
            f"study={study} takes no submissions: there is no conf/study/{study}_rates.yaml, its tuning runs"
        )
    tuning = _compose(f"{study}_rates", search_path)
    swept, rates = (_swept(cfg) for cfg in (test, tuning))
    if not rates.get(RATE):
        raise ConfigError(f"study={study} takes no submissions: study={study}_rates sweeps no {RATE}")
    return StudyRules(
        study=study,
        folder=test.study.name,
        rates_folder=tuning.study.name,
        swept=swept,
        learning_rates=[float(rate) for rate in rates[RATE]],
        fixed_grid=bool(test.study.get("fixed_grid")),
        search_path=search_path,
    )


def composed_model(rules: StudyRules, overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of the study with the overrides that choose a model. Raises ConfigError."""
    model = [
        text for text in overrides if text.partition("=")[0] in (*MODEL, "variant") or _is_backbone_key(text)
    ]
    return _compose(rules.study, [*rules.search_path, *model])


def sections_set(rules: StudyRules, overrides: Sequence[str]) -> list[str]:
    """Return the sections except ``backbone`` that the files of a model change. Raises ConfigError."""
    others = [text for text in overrides if not (text.startswith("backbone=") or _is_backbone_key(text))]
    ours, usual = (_other_sections(composed_model(rules, words)) for words in (overrides, others))
    return sorted(name for name in ours | usual if ours.get(name) != usual.get(name))


def _is_backbone_key(override: str) -> bool:
    return override.startswith("backbone.")


def _other_sections(cfg: DictConfig) -> dict[str, object]:
    tree = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(tree, dict)
    del tree["backbone"]
    for key in ("overrides", "job", "runtime"):  # what was chosen
        tree["hydra"].pop(key, None)
    return tree  # type: ignore[return-value]


def _compose(study: str, words: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            return hydra.compose("config", [f"study={study}", *words], return_hydra_config=True)
        except HydraException as error:
            raise ConfigError(explain(error)) from None


def _swept(cfg: DictConfig) -> dict[str, list[str]]:
    params = OmegaConf.to_container(cfg.hydra.sweeper).get("params") or {}  # type: ignore[union-attr, call-overload]
    return {key: [value.strip() for value in str(values).split(",")] for key, values in params.items()}


def expected_runs(rules: StudyRules, overrides: Sequence[str], submitted: Path, runs: Path) -> pd.DataFrame:
    """Return the runs that the study asks of a model: the columns of ``analysis.declared.runs.listed``, and
    ``study``, the name of the folder.

    Test runs have the learning rates that the tuning rule chooses from the submitted tuning runs. Without
    these, only tuning runs are returned. Raises ValueError if the model cannot be composed.

    Args:
        rules: the study.
        overrides: those that choose the model.
        submitted: folder of the submitted runs.
        runs: folder that the learning rates are written to, and that the listed runs would be trained in.
    """
    words = [*overrides, *rules.search_path, f"runs={runs}", "study.stored=null"]
    trials = submitted_trials(rules, submitted)
    learning_rates = sorted({*rules.learning_rates, *trials["learning_rate"]})
    sweep = f"{RATE}={','.join(f'{rate:g}' for rate in learning_rates)}"
    tuning = listed(["-m", f"study={rules.rates_study}", *words, sweep])
    parts = [tuning.assign(study=rules.rates_folder)]
    if not trials.empty:
        rates = write_chosen(runs, rules.rates_folder, best_rates(trials))
        test = listed(["-m", f"study={rules.study}", *words, f"study.tuned={rates}"])
        parts.append(test.assign(study=rules.folder))
    return pd.concat(parts, ignore_index=True)


def submitted_trials(rules: StudyRules, submitted: Path) -> pd.DataFrame:
    """Return the tuning runs that have ended, from ``rate_table``; empty without any."""
    try:
        return rate_table(submitted, rules.rates_folder)
    except ValueError:  # no such folder, or no run in it: the missing runs are listed
        return pd.DataFrame({"learning_rate": []})


def trial_problems(rules: StudyRules, trials: pd.DataFrame) -> Iterator[str]:
    """Yield the trials of a model that the tuning rule does not ask for, and those that it lacks.

    The rule begins with the learning rates of the study. If its grid is not fixed, each further rate follows
    from the results of those before it.

    Args:
        rules: the study.
        trials: from ``submitted_trials``.
    """
    for _, arm in trials.groupby(ARM, dropna=False) if len(trials) else ():
        name = f"tuning of {arm['backbone'].iloc[0]} on {arm['task'].iloc[0]}"
        tried, asked = set(arm["learning_rate"]), set(rules.learning_rates)
        while not rules.fixed_grid:
            used = arm[arm["learning_rate"].isin(asked)]
            further = set() if used.empty else {*best_rates(used)["next_rates"].iloc[0]} - asked
            if not further:
                break
            asked |= further
        for rate in sorted(tried - asked):
            yield f"{name}: learning rate {rate:g} is one trial more than the tuning rule has"
        for rate in sorted(asked - tried):
            yield f"{name}: learning rate {rate:g} was not tried"
