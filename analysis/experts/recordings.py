"""Inputs of ``analysis.experts``: the routing recordings of a run, and the routing of its last checkpoint.

Shapes: N tokens without padding, K choices of a token.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor

from archbench.analysis.experts.measures import Choices, saturation
from archbench.analysis.experts.token_kinds import SPECIAL, token_kinds
from archbench.architectures.layers.moe.routing_record import expert_layers
from archbench.experiments.evaluation.measure import EVALUATION_SEED
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.load_model import LoadedModel, StoredRun, load_model, read_run
from archbench.experiments.run.model_files import is_run_folder, model_folder
from archbench.experiments.run.plan import build_task
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.tasks.task import Batch, Task
from archbench.experiments.tasks.text.text import Text, TextConfig
from archbench.experiments.tracking.run_files import MetricRow
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.training.routing_probe import STATISTICS, choices, probe_view, read_tokens, routed

DOMAINS = {"language reference": "embedded_reference", "library docstrings": "embedded_library"}
"""Text sources on which a run on text is evaluated, by their name in tables."""

BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class LayerTokens:
    """The tokens routed by one layer of experts, without padding."""

    layer: str
    num_experts: int
    expert_NK: Choices
    token_N: NDArray[np.integer]
    """Input token at each position."""
    predicted_N: NDArray[np.integer] | None
    """Most likely token at each position, -1 without prediction; None if the layer's stack predicts none."""
    kind_N: NDArray[np.uint8] | None
    """Word class, an index into ``token_kinds.KINDS``; None if the task has no text."""
    code_N: NDArray[np.bool_] | None
    """True if the token's line looks like code; None if the task has no text."""


def open_run(path: Path, device: torch.device) -> LoadedModel:
    """Load the last checkpoint of a run with experts, with its task.

    Raises:
        ConfigError: the folder is not a run, or its model has no experts.
    """
    if not str(path) or not is_run_folder(path):
        raise ConfigError(f"run={path}: a Hugging Face folder was not trained here: name the folder of a run")
    run = read_run(path)
    saved = load_model(path, device, task=_own_task(run, model_folder(path)))
    if not expert_layers(saved.model):
        raise ConfigError(
            f"run={path}: its model has no experts (backbone={run.names.backbone}): name a run whose "
            "backbone.feedforwards has experts, such as one of backbone=moe"
        )
    return saved


def _own_task(run: StoredRun, path: Path, source: str | None = None) -> Task:
    """Return the run's task with the run's tokenizer, on the text of ``source`` if it is given."""
    config = run.task
    if isinstance(config, TextConfig) and source is not None:
        tokenizer = config.tokenizer
        if tokenizer.kind != "bytes":  # use the tokenizer that the run was trained with
            tokenizer = dataclasses.replace(tokenizer, kind="folder", path=str(path), normalization=[])
        config = TextConfig(
            source=source,
            tokenizer=tokenizer,
            sequence_length=config.sequence_length,
            num_sentinels=config.num_sentinels,
            cache_dir=config.cache_dir,
        )
    return build_task(run.task_class, config, run.names.task)


def domain_tasks(saved: LoadedModel) -> dict[str, Task]:
    """Return the task of each domain; empty if the run was not trained on text."""
    run = saved.run
    assert run is not None
    if not issubclass(run.task_class, Text):
        return {}
    return {name: _own_task(run, saved.folder, source) for name, source in DOMAINS.items()}


def load_recordings(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the statistics of each recording and layer, and the load of each expert.

    Returns:
        Columns ``step tokens layer``, ``experiments.training.routing_probe.STATISTICS``, ``saturation``
        (against the last recording; NaN if its file is missing) and ``chance``; and
        ``step tokens layer expert load``. Both are empty without recordings.
    """
    rows, loads = [], []
    final: dict[str, Choices] = {}
    recorded: list[MetricRow] = [row for row in RunFolder(path).rows() if row.kind == "routing"]
    for row in sorted(recorded, key=lambda row: row.step, reverse=True):
        file = path / "routing" / f"step-{row.step:08d}.safetensors"
        stored = load_file(file) if file.is_file() else {}
        final = final or stored
        measured = row.measured
        for key in measured:
            layer, _, name = key.rpartition("/")
            if name != "load":
                continue
            common = {"step": row.step, "tokens": row.tokens, "layer": layer}
            X = len(measured[key])
            loads += [{**common, "expert": i, "load": float(load)} for i, load in enumerate(measured[key])]
            values = {statistic: float(measured[f"{layer}/{statistic}"]) for statistic in STATISTICS}
            is_stored = layer in stored
            values["saturation"] = saturation(stored[layer], final[layer], X) if is_stored else float("nan")
            values["chance"] = float((final[layer] >= 0).sum(1).mean() / X) if is_stored else float("nan")
            rows.append(common | values)
    order = ["layer", "step"]
    if not rows:
        return pd.DataFrame(), pd.DataFrame()
    return (
        pd.DataFrame(rows).sort_values(order, ignore_index=True),
        pd.DataFrame(loads).sort_values([*order, "expert"], ignore_index=True),
    )


def follow(saved: LoadedModel, task: Task, split: str, examples: int) -> list[LayerTokens]:
    """Return the routing of the first examples of a split by every layer of experts, with training inputs."""
    objective = type(saved.objective)(saved.objective.config, task)
    available = task.num_examples(split)
    total = examples if available is None else min(examples, available)
    parts: dict[str, list[LayerTokens]] = {}
    for start in range(0, total, BATCH_SIZE):
        count = min(BATCH_SIZE, total - start)
        view = probe_view(objective, split, start, count)
        records, outputs = routed(saved.model, view, batch_size=count, precision="fp32")
        batch = task.batch(split, EVALUATION_SEED, start, count)
        predicted_BT = None
        if objective.targets in ("tokens", "texts"):
            logits_BTV = objective.logits(outputs[0], view.to(outputs[0].logits_BTV.device))
            predicted_BT = logits_BTV.argmax(-1).cpu().masked_fill(view.weight_BT == 0, -1)
        for layer, record in records.items():
            tokens_BT, valid_BT = read_tokens(view, layer), record.valid_BT.cpu()
            layer_predicted_BT = predicted_BT if tokens_BT is view.tokens_BT else None
            assert tokens_BT.shape == valid_BT.shape, (layer, tokens_BT.shape, valid_BT.shape)
            kinds = _kinds(saved, task, view, batch, tokens_BT)
            parts.setdefault(layer, []).append(
                LayerTokens(
                    layer=layer,
                    num_experts=record.num_experts,
                    expert_NK=choices(record).numpy(),
                    token_N=tokens_BT[valid_BT].numpy(),
                    predicted_N=None if layer_predicted_BT is None else layer_predicted_BT[valid_BT].numpy(),
                    kind_N=None if kinds is None else kinds[0][valid_BT.numpy()],
                    code_N=None if kinds is None else kinds[1][valid_BT.numpy()],
                )
            )
    layers = []
    for template, *rest in parts.values():
        arrays: dict[str, Any] = {
            name: np.concatenate([value, *(getattr(part, name) for part in rest)])
            for name, value in vars(template).items()
            if name.endswith(("_N", "_NK")) and value is not None
        }
        layers.append(dataclasses.replace(template, **arrays))
    return layers


def _kinds(
    saved: LoadedModel, task: Task, view: View, batch: Batch, tokens_BT: Tensor
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]] | None:
    """Return word class, and whether the line is code, of each token (B, T) of a layer; None without text.

    If the model reads the example itself, or the example shifted by one position, classes are those of the
    example's words, including masked ones; examples of a text are contiguous. Otherwise (a source with
    sentinels, padding) a token has the class of its word in the model's input.
    """
    if task.tokenizer is None:
        return None
    pieces = task.tokenizer.token_bytes
    same_shape = tokens_BT.shape == batch.tokens_BT.shape
    shifted = same_shape and bool((tokens_BT[:, 1:] == batch.context_BT[:, :-1]).all())
    capabilities = saved.model.capabilities
    reads_example = same_shape and not capabilities.causal and not capabilities.encoder_decoder
    if not batch.whole or not (shifted or reads_example):
        row_kinds = [token_kinds([pieces[token] for token in row]) for row in tokens_BT.tolist()]
        return np.stack([kinds for kinds, _ in row_kinds]), np.stack([code for _, code in row_kinds])
    flat = token_kinds([pieces[token] for token in batch.tokens_BT.flatten().tolist()])
    shape = batch.tokens_BT.shape
    kinds_BT, code_BT = flat[0].reshape(shape), flat[1].reshape(shape)
    if shifted:
        kinds_BT, code_BT = np.roll(kinds_BT, 1, axis=1), np.roll(code_BT, 1, axis=1)
        kinds_BT[:, 0], code_BT[:, 0] = SPECIAL, False
    return kinds_BT, code_BT
