"""Contradictions of a run's result with itself and with the other files of its folder.

The checksum of result.json shows an edit by hand, but not one that a program made with a new checksum.
Each fact has a value in the result and a value that follows from another record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archbench.experiments.config.digest import result_settings, settings_digest
from archbench.experiments.config.structured import component
from archbench.experiments.evaluation.measure import divergence
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.secret_patterns import REDACTED
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tasks.metrics import Metric
from archbench.experiments.tracking.run_files import HASHED, RunResult
from archbench.experiments.tracking.run_folder import RunFolder

COUNTERS = {"steps": "step"} | {name: name for name in ("tokens", "flops", "seconds", "device_seconds")}
"""Fields of ``TrainingSummary`` that a row of metrics.jsonl has too, with their names there."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Fact:
    """A value of a result, and the value that another record gives it."""

    name: str
    found: Any
    expected: Any
    where: str
    """The record with the expected value."""

    @property
    def holds(self) -> bool:
        """Return True for equal values; numbers are equal up to the rounding of a GPU."""
        pair = (self.found, self.expected)
        numbers = [x for x in pair if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
            return str(self.found) == str(self.expected)
        return math.isclose(*numbers, rel_tol=TOLERANCE, abs_tol=1e-9)


def contradictions(run: RunFolder, result: RunResult, damaged: Collection[str] = ()) -> Iterator[str]:
    """Yield the values of a result that another record contradicts, each with both values.

    Args:
        run: folder of the run.
        result: of the run.
        damaged: names of the files that have changed since, which are not compared.
    """
    config = {} if "config.yaml" in damaged else _config(run)
    facts = [
        *(() if "metrics.jsonl" in damaged else _curve(run, result, config)),
        *_training(result),
        *_status(result),
        *_metrics(result),
        *_settings(run, result, config),
        *_files(run, result),
    ]
    for fact in facts:
        if not fact.holds:
            yield f"{fact.name} is {fact.found}, but {fact.expected} in {fact.where}"


def _config(run: RunFolder) -> dict[str, Any]:
    """Return config.yaml; empty where it cannot be read, which is another damage."""
    try:
        return dict(read_yaml(run.root / "config.yaml", "restore it"))
    except (RunError, OSError):
        return {}


def _curve(run: RunFolder, result: RunResult, config: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield counters and validation of the last row of a complete training in metrics.jsonl."""
    training, where = result.training, "metrics.jsonl"
    if training is None:
        return
    last = [row for row in run.rows() if row.kind == "validation" and row.step == training.steps]
    if not last:
        return
    for name, column in COUNTERS.items():
        yield Fact(f"training.{name}", getattr(training, name), getattr(last[-1], column), where)
    # Without validation_examples the curve has the score of the first examples only.
    if not result.validation or _get(config, "trainer", "validation_examples") is None:
        return
    values = {metric.name: metric.value for metric in result.validation}
    values["standard_error"] = result.validation[0].standard_error
    for name in values.keys() & last[-1].measured.keys():
        yield Fact(f"validation.{name}", values[name], last[-1].measured[name], where)


def _training(result: RunResult) -> Iterator[Fact]:
    """Yield the rates of a training, and its counters as far as they follow from the plan."""
    training, planned = result.training, result.planned
    if training is None:
        return
    if training.seconds > 0 and training.tokens_per_second is not None:
        rate = training.tokens / training.seconds
        yield Fact("training.tokens_per_second", training.tokens_per_second, rate, "tokens / seconds")
    if planned is None or result.parent is not None:  # a parent may have had other batches
        return
    if planned.steps:
        tokens = planned.tokens * training.steps / planned.steps
        yield Fact("training.tokens", training.tokens, tokens, "the plan of so many steps")
    if result.flops_per_token is not None:
        for name, part in (("training", training), ("planned", planned)):
            flops = part.tokens * result.flops_per_token
            yield Fact(f"{name}.flops", part.flops, flops, "tokens * flops_per_token")


def _status(result: RunResult) -> Iterator[Fact]:
    """Yield what the status of a result says of its training and its metrics."""
    training, planned, where = result.training, result.planned, f"a run with status {result.status}"
    if result.status == RunStatus.COMPLETE:
        steps = None if training is None else training.steps
        if planned is not None:
            yield Fact("training.steps", steps, planned.steps, "planned.steps")
        if training is not None:
            yield Fact(
                "metrics on the test split", "none" if not result.test_metrics else "some", "some", where
            )
    ended = training is not None and planned is not None and training.steps == planned.steps
    metrics = [*result.metrics, *result.validation]
    if result.status == RunStatus.DIVERGED and ended and result.validation and result.test_metrics:
        assert training is not None
        finite = all(math.isfinite(metric.value) for metric in metrics)
        reason = divergence(result.test_metrics[0], result.references, training.steps)
        if finite and reason is None:
            yield Fact("status", result.status, RunStatus.COMPLETE, "steps and metrics, which are all there")


def _metrics(result: RunResult) -> Iterator[Fact]:
    """Yield the values of metrics whose sums are stored, and how often each metric is there."""
    for section in ("metrics", "validation"):
        metrics: list[Metric] = getattr(result, section)
        counts = Counter(f"{section}.{metric.name} on {metric.split}" for metric in metrics)
        for name, count in counts.items():
            yield Fact(f"number of {name}", count, 1, "a result")
        for metric in metrics:
            sums = [sum(column) for column in zip(*(metric.cluster_totals or []), strict=True)]
            if len(sums) == 2 and sums[1]:
                name = f"{section}.{metric.name} on {metric.split}"
                yield Fact(name, metric.value, sums[0] / sums[1], "cluster_totals")


def _settings(run: RunFolder, result: RunResult, config: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield what config.yaml, provenance.json and the path of the folder say of a run that was planned."""
    if result.setup is None:
        return
    pairs = {
        "learning_rate": ("optimizer", "learning_rate"),
        "batch_size": ("budget", "batch_size"),
        "sequence_length": ("task", "sequence_length"),
    }
    for name, (section, key) in pairs.items():
        if (value := _get(config, section, key)) is not None:
            yield Fact(f"setup.{name}", getattr(result.setup, name), value, "config.yaml")
    for name in ("backbone", "objective", "task", "scale"):
        if (value := _get(config, "names", name)) is not None:
            yield Fact(name, getattr(result, name), value, "config.yaml")
    if config.get("seed") is not None:
        yield Fact("seed", result.seed, config["seed"], "config.yaml")
    if (digest := config_digest(config, result)) is not None:
        yield Fact("the digest in the folder's name", result.digest, digest, "config.yaml")
    if (provenance := run.provenance()) is not None and provenance.data.fingerprint is not None:
        yield Fact("fingerprint", result.fingerprint, provenance.data.fingerprint, "provenance.json")


def config_digest(config: Mapping[str, Any], result: RunResult) -> str | None:
    """Return the digest of a stored configuration; None where a secret or foreign code is missing."""
    from archbench.architectures.backbone import Backbone

    if REDACTED in str(config):
        return None
    try:
        _, backbone = component({"backbone": config["backbone"]}, "backbone", Backbone)  # type: ignore[type-abstract]
        kept = result_settings(dict(config), backbone.unused_sections)
    except Exception:  # of the user's code, or of sections that are none
        return None
    for key, source in (("init_from", result.initial), ("continue_from", result.parent)):
        if source is not None:
            kept[key] = source.fingerprint
    return settings_digest(kept)


def _files(run: RunFolder, result: RunResult) -> Iterator[Fact]:
    """Yield which files of the folder a result has hashes of."""
    for name in HASHED:
        if (run.root / name).is_file():
            yield Fact(
                f"the hash of {name}", "there" if name in result.files else "missing", "there", "a result"
            )


def _get(config: Mapping[str, Any], section: str, key: str) -> Any:
    """Return a setting; None where it, or its section, is missing."""
    tree = config.get(section)
    return tree.get(key) if isinstance(tree, dict) else None
