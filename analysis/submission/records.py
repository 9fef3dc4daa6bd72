"""Checks of the records of a submission, which train nothing. Each yields its reasons to reject."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from archbench.experiments.config.old_names import user_code
from archbench.experiments.config.sections import parse_sections
from archbench.experiments.run.plan import Plan
from archbench.experiments.run.result_parts import planned_result
from archbench.experiments.run.settings import Settings, read_settings
from archbench.experiments.runtime.atomic_io import plain
from archbench.experiments.runtime.imported_sources import PACKAGE
from archbench.experiments.runtime.run_status import FINAL, RunStatus
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tasks.metrics import GENERATED, Metric
from archbench.experiments.tracking.provenance import used_modules
from archbench.experiments.tracking.run_files import RunResult, read_result


def name_of(run: pd.Series) -> str:
    """Return a run as STUDY/CELL-DIGEST/sSEED."""
    return f"{run['study']}/{run['cell']}-{run['digest']}/s{run['seed']}"


def names_of(frame: pd.DataFrame) -> list[str]:
    """Return the names of all runs of a frame."""
    return [name_of(run) for _, run in frame.iterrows()]


def list_problems(frame: pd.DataFrame, expected: pd.DataFrame) -> Iterator[str]:
    """Yield the runs that are missing, and those that the study does not have.

    Args:
        frame: the submitted runs, from ``analysis.submission.folder.load_runs``.
        expected: from ``analysis.submission.study.expected_runs``.
    """
    refused = expected[expected["status"] == RunStatus.REFUSED]
    unsupported = set(refused.loc[refused["study"].str.endswith("_rates"), "task"])
    yield from refused.loc[~refused["task"].isin(unsupported), "refused"].unique()
    expected = expected[expected["status"] != RunStatus.REFUSED]
    names, submitted = set(names_of(expected)), set(names_of(frame))
    for name in sorted(names - submitted):
        yield f"{name} is missing: failed runs are submitted, too"
    for name in sorted(submitted - names):
        configuration = name.rpartition("/")[0]
        if seeds := [
            other.rpartition("/s")[2] for other in sorted(names) if other.startswith(f"{configuration}/")
        ]:
            yield f"{name}: its seed is not one of {', '.join(seeds)}"
        else:
            yield (
                f"{name} is no run of the study: another budget, data, tokenizer, size, scored split or "
                "trial, or not the learning rate that the tuning runs choose on validation"
            )


def run_file_problems(run: pd.Series) -> Iterator[str]:
    """Yield what is wrong with the files of a run, among themselves: hashes, status, training and scores."""
    name = name_of(run)
    if run["status"] not in FINAL:
        yield f"{name}: {run['message'] or run['status']}"
        return
    for file in json.loads(run["damaged"]):
        yield f"{name}: {file} has changed since the run ended"
    result = stored_result(run)
    if run["status"] != RunStatus.COMPLETE:
        return
    trained = None if result.training is None else (result.training.steps, result.training.tokens)
    if result.planned is None or trained != (result.planned.steps, result.planned.tokens):
        yield f"{name}: it was trained for (steps, tokens) {trained}, not those of its budget"
    for metric in [*result.metrics, *result.validation]:
        if (totals := metric.cluster_totals) is not None:
            value = sum(numerator for numerator, _ in totals) / sum(denominator for _, denominator in totals)
            if not math.isclose(value, metric.value, rel_tol=1e-6, abs_tol=1e-9):
                yield f"{name}: {metric.name} is {metric.value:.6g}, and {value:.6g} by its parts"


def stored_result(run: pd.Series) -> RunResult:
    """Return the result of a run that can be read."""
    result = read_result(Path(run["path"]) / "result.json")
    assert result is not None
    return result


def stored_settings(run: pd.Series) -> Settings:
    """Return the settings in a run's config.yaml. Raises RunError if they are not valid."""
    return read_settings(parse_sections(read_yaml(Path(run["path"]) / "config.yaml")))


def plan_problems(run: pd.Series, settings: Settings, run_plan: Plan) -> Iterator[str]:
    """Yield what a result says of settings, data, size and cost that its settings do not lead to.

    Args:
        run: a submitted run.
        settings: those in its config.yaml.
        run_plan: their plan; the seed does not affect it.
    """
    # Through JSON, so that both have the same types.
    planned = RunResult.model_validate_json(json.dumps(plain(planned_result(settings, run_plan).tree())))
    result = stored_result(run)
    for field in sorted(planned.model_fields_set - {"metrics", "message", "rules"}):
        recorded, computed = (getattr(record, field) for record in (result, planned))
        if recorded != computed:
            yield f"{name_of(run)}: {field} is {_differing(recorded, computed)}"


def _differing(recorded: object, computed: object) -> str:
    """Return two values, or of two records the fields that differ."""
    if hasattr(recorded, "tree") and hasattr(computed, "tree"):
        recorded, computed = recorded.tree(), computed.tree()
    if isinstance(recorded, dict) and isinstance(computed, dict):
        keys = [key for key in recorded | computed if recorded.get(key) != computed.get(key)]
        recorded, computed = ({key: record.get(key) for key in keys} for record in (recorded, computed))
    return f"{recorded}; its settings lead to {computed}"


def score_problems(run: pd.Series, expected: list[Metric]) -> Iterator[str]:
    """Yield what the scores of a complete run state wrongly, such as scored items, bytes or likelihood type.

    Args:
        run: a submitted run.
        expected: from ``analysis.submission.model.expected_scores``.
    """
    metrics = stored_result(run).metrics
    for score in expected:
        stored = next((metric for metric in metrics if metric.split == score.split), None)
        if stored is None:
            yield f"{name_of(run)}: has no score of {score.split}"
            continue
        stated, computed = asdict(_without_value(stored)), asdict(_without_value(score))
        if score.cluster_totals is None:
            stated["cluster_totals"] = None
        for field in computed:
            if stated[field] != computed[field]:
                yield (
                    f"{name_of(run)}: {field} of {score.split} {score.name} is {stated[field]!r}, and "
                    f"{computed[field]!r} when it is computed again"
                )


def _without_value(metric: Metric) -> Metric:
    """Return a metric without what depends on the weights of a model; its totals are one of all items."""
    totals = metric.cluster_totals and [[0.0, float(sum(total for _, total in metric.cluster_totals))]]
    metric = replace(
        metric, value=0.0, standard_error=0.0, sampling_error=None, slices=None, clusters=None,
        cluster_totals=totals,
    )  # fmt: skip
    # Of generated examples, as many are scored as the standard error takes.
    return replace(metric, items=1) if metric.scored == GENERATED else metric


def code_problems(frame: pd.DataFrame, current: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules of the user that are not those of the runs; ``current`` are the submitted hashes."""
    problems = []
    for code in frame["code"].dropna().unique():
        recorded = user_code(json.loads(code))
        for name in sorted(recorded.keys() | current.keys()):
            if recorded.get(name) != current.get(name):
                problems.append(f"{name}.py is not the module that the runs have used")
    yield from dict.fromkeys(problems)


def frame_problems(stored: pd.DataFrame, computed: pd.DataFrame) -> Iterator[str]:
    """Yield how results.parquet differs from the frame of the submitted test runs.

    Columns that one of them lacks are those of another version, and not compared.
    """
    stored, computed = (frame.set_axis(names_of(frame)) for frame in (stored, computed))
    if names := sorted(set(stored.index) ^ set(computed.index)):
        yield f"results.parquet: {', '.join(names)} is not both in it and in records/"
    common = [name for name in computed.index if name in stored.index]
    for column in [column for column in computed if column in stored]:
        for name in common:
            values = [frame.at[name, column] for frame in (stored, computed)]
            if not (values[0] == values[1] or all(map(pd.isna, values))):
                texts = f"{values[0]!s:.40}, in its record {values[1]!s:.40}"
                yield f"results.parquet: {column} of {name} is {texts}"


def repeated_problems(name: str, recorded: RunResult, repeated: RunResult, tolerance: float) -> Iterator[str]:
    """Yield how the scores of a run that was trained again differ, by more than a relative tolerance.

    A standard error is less certain than its score: it may differ by half.
    """
    if repeated.status != recorded.status:
        yield f"{name}: trained again it is {repeated.status}, not {recorded.status}"
        return
    scores, others = ([*result.metrics, *result.validation] for result in (recorded, repeated))
    for score, other in zip(scores, others, strict=True):
        values = (score.value, other.value), (score.standard_error, other.standard_error)
        tolerances = (tolerance, 1e-9), (0.5, tolerance * abs(other.value))
        for field, pair, (relative, absolute) in zip(
            ("", "standard error of "), values, tolerances, strict=True
        ):
            if not math.isclose(*pair, rel_tol=relative, abs_tol=absolute):
                texts = f"{pair[0]:.4g}, and {pair[1]:.4g} when it is trained again"
                yield f"{name}: {field}{score.split} {score.name} is {texts}"


def curve_problems(
    name: str, recorded: list[list[float]], repeated: list[list[float]], tolerance: float
) -> Iterator[str]:
    """Yield the first validation of a run that differs from those of the run trained again.

    Rounding can shift a jump of the score by one validation, so a value is compared with three of them.

    Args:
        name: of the run.
        recorded: step, tokens, FLOPs and score of each validation.
        repeated: the same of the run that was trained again.
        tolerance: relative.
    """
    if [point[:3] for point in recorded] != [point[:3] for point in repeated]:
        yield f"{name}: metrics.jsonl has other validations than when it is trained again"
        return
    values = [value for *_, value in repeated]
    for index, (step, _, _, value) in enumerate(recorded):
        near = values[max(index - 1, 0) : index + 2]
        margin = tolerance * max(map(abs, near))
        if not min(near) - margin <= value <= max(near) + margin:
            texts = f"{value:.4g}, and {values[index]:.4g} when it is trained again"
            yield f"{name}: validation at step {step:.0f} is {texts}"
            return


def import_problems(modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the imports of user modules that a model does not need: data, scores, checks; by module name."""
    for module in sorted(modules):
        for name in sorted(used_modules(module)):
            if name.partition(".")[0] == PACKAGE and not f"{name}.".startswith(f"{PACKAGE}.architectures."):
                yield f"{module}.py imports {name}: a backbone imports {PACKAGE}.architectures only"
