"""Contradictions of a run's result with itself and with the other files of its folder.

The checksum of result.json shows an edit by hand, but not one that a program made with a new checksum.
Each fact has a value in the result and a value that follows from another record.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from archbench.architectures.backbone import Backbone
from archbench.experiments.config.digest import result_settings, settings_digest
from archbench.experiments.config.structured import component
from archbench.experiments.evaluation.measure import divergence
from archbench.experiments.run.model_files import read_model_spec
from archbench.experiments.run.plan import STATE_LENGTH
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.secret_patterns import REDACTED
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tasks.metrics import DOCUMENTS, JACKKNIFE_GROUPS, Metric, ratio_standard_error
from archbench.experiments.tracking.run_files import CHECKPOINT, HASHED, RunResult
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.training.checkpoints.checkpoint import stored_state

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
        *(() if "metrics.jsonl" in damaged else _rows(run, result)),
        *_model(run, result),
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


def _rows(run: RunFolder, result: RunResult) -> Iterator[Fact]:
    """Yield the rows of metrics.jsonl, which the last checkpoint has the number and the hash of."""
    if result.saved_step is None or (result.resume is not None and "metrics.jsonl" in result.resume.changed):
        return
    state = stored_state((run.root / CHECKPOINT.format(step=result.saved_step)).parent)
    if state is None or not (record := state.get("metrics")):
        return
    content = run.metrics.read_bytes() if run.metrics.is_file() else b""
    saved, where = content[: record["bytes"]], "the last checkpoint"
    yield Fact("the number of rows in metrics.jsonl", saved.count(b"\n"), record["rows"], where)
    yield Fact("the hash of metrics.jsonl", hashlib.sha256(saved).hexdigest(), record["sha256"], where)
    # The last validation may have been repeated, and its row written after the checkpoint.
    counts = Counter(f"{row.kind} rows of step {row.step}" for row in run.rows())
    for name, count in counts.items():
        yield Fact(f"the number of {name}", count, 1, "a run")


def _model(run: RunFolder, result: RunResult) -> Iterator[Fact]:
    """Yield sizes of the model, which follow from model.json, those of a readout left out."""
    found = result.parameters
    if found is None:
        return
    parts = found.embedding + found.body + found.head
    yield Fact("parameters.total", found.total, parts, "the sum of its parts")
    try:
        spec = read_model_spec(run.root)
        with torch.device("meta"):
            model = spec.backbone_class(spec.config, vocab_size=spec.vocab_size, max_length=spec.max_length)
        true = model.parameters_by_part()
        source = STATE_LENGTH if model.capabilities.encoder_decoder else 0
        state_bytes = model.state_bytes(STATE_LENGTH, source)
    except Exception:  # of the user's code, or of a file that is reported as damaged
        return
    where = "the model of model.json"
    yield Fact("parameters.embedding", found.embedding, true.embedding, where)
    yield Fact("parameters.body", found.body, true.body, where)
    yield Fact("parameters.active", found.active, found.total - true.inactive, where)
    yield Fact("state_bytes_2k", result.state_bytes_2k, state_bytes, where)


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
    elif training is not None:
        yield Fact("a message", "missing" if result.message is None else "there", "there", where)
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
            yield from _sampling(metric, f"{section}.{metric.name} on {metric.split}: ")
    tests = result.test_metrics
    if tests and result.validation:
        names = [metric.name for metric in result.validation]
        yield Fact("metrics on the test split", [m.name for m in tests][: len(names)], names, "validation")
        of_validation = {metric.name: metric for metric in result.validation}
        for metric in tests:
            if (other := of_validation.get(metric.name)) is not None:
                for name in ("direction", "unit", "averaging", "likelihood", "samples"):
                    pair = getattr(metric, name), getattr(other, name)
                    yield Fact(f"metrics.{metric.name} on test: {name}", *pair, "validation")


def _sampling(metric: Metric, prefix: str) -> Iterator[Fact]:
    """Yield what the sums of clusters say of the number of items and the standard error."""
    totals = np.array(metric.cluster_totals or [], dtype=np.float64)
    if metric.likelihood is not None or "accuracy" in metric.name:
        better = "higher" if metric.likelihood is None else "lower"
        yield Fact(f"{prefix}direction", metric.direction, better, "such a metric")
    if metric.clusters is None or not len(totals):
        return
    if metric.clustered_by == "example":
        yield Fact(f"{prefix}items", metric.items, metric.clusters, "clusters of one example")
    if len(totals) not in (JACKKNIFE_GROUPS, DOCUMENTS):  # groups of clusters else
        yield Fact(f"{prefix}clusters", metric.clusters, len(totals), "cluster_totals")
    if len(totals) == metric.clusters:
        error, _ = ratio_standard_error(totals[:, 0], totals[:, 1], np.arange(len(totals)))
        yield Fact(f"{prefix}standard_error", metric.standard_error, error, "cluster_totals")


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
