"""What ``analysis.experts`` reads: the recordings of a run, and what its last checkpoint does on text.

Shapes: N tokens that are no padding, K choices of a token.
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

from analysis.experts.measures import Choices, saturation
from analysis.experts.token_kinds import SPECIAL, token_kinds
from architectures.layers.moe.routing_record import expert_layers
from experiments.evaluation.measure import EVALUATION_SEED
from experiments.objectives.objective import View
from experiments.run.load_model import LoadedModel, StoredRun, load_model, read_run
from experiments.run.model_files import is_run_folder, model_folder
from experiments.run.plan import build_task
from experiments.runtime.errors import ConfigError
from experiments.tasks.task import Batch, Task
from experiments.tasks.text.text import Text, TextConfig
from experiments.tracking.run_files import MetricRow
from experiments.tracking.run_folder import RunFolder
from experiments.training.router_probe import STATISTICS, choices, probe_view, read_tokens, routed

DOMAINS = {"language reference": "embedded_reference", "library docstrings": "embedded_library"}
"""Sources of text that a run on text is asked about, by the names they have in tables."""

BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class LayerTokens:
    """One layer of experts and the tokens that came through it, padding left out."""

    layer: str
    num_experts: int
    expert_NK: Choices
    token_N: NDArray[np.integer]
    """The token that stands there as the model reads it."""
    predicted_N: NDArray[np.integer] | None
    """The most likely token at each place, -1 where none is predicted; None where the layer predicts none."""
    kind_N: NDArray[np.uint8] | None
    """Kind of word, a number in ``token_kinds.KINDS``; None where there is no text."""
    code_N: NDArray[np.bool_] | None
    """Whether its line looks like code; None where there is no text."""


def open_run(path: Path, device: torch.device) -> LoadedModel:
    """The last checkpoint of a run with experts, ready to be used on its own task.

    Raises:
        ConfigError: the folder is no run, or its model has no experts.
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
    """The run's task with the run's tokenizer; on another source of text, where one is named."""
    config = run.task
    if isinstance(config, TextConfig) and source is not None:
        tokenizer = config.tokenizer
        if tokenizer.kind != "bytes":  # the run keeps what it was trained with
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
    """The task of each domain; empty where the run was not trained on text."""
    run = saved.run
    assert run is not None
    if not issubclass(run.task_class, Text):
        return {}
    return {name: _own_task(run, saved.folder, source) for name, source in DOMAINS.items()}


def load_recordings(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The numbers of each recording and layer, and the load of each expert; both empty where there are none.

    Returns:
        Columns ``step tokens layer``, ``experiments.training.router_probe.STATISTICS``, ``saturation``
        (against the last recording; NaN where its file is missing) and ``chance``; and
        ``step tokens layer expert load``.
    """
    rows, loads = [], []
    final: dict[str, Choices] = {}
    recorded = _recorded(path)
    for row in reversed(recorded):
        file = path / "routing" / f"step-{row.step:08d}.safetensors"
        found = load_file(file) if file.is_file() else {}
        final = final or found
        measured = row.measured
        for key in measured:
            layer, _, name = key.rpartition("/")
            if name != "load":
                continue
            place = {"step": row.step, "tokens": row.tokens, "layer": layer}
            X = len(measured[key])
            loads += [{**place, "expert": i, "load": float(share)} for i, share in enumerate(measured[key])]
            values = {each: float(measured[f"{layer}/{each}"]) for each in STATISTICS}
            known = layer in found
            values["saturation"] = saturation(found[layer], final[layer], X) if known else float("nan")
            values["chance"] = float((final[layer] >= 0).sum(1).mean() / X) if known else float("nan")
            rows.append(place | values)
    order = ["layer", "step"]
    if not rows:
        return pd.DataFrame(), pd.DataFrame()
    return (
        pd.DataFrame(rows).sort_values(order, ignore_index=True),
        pd.DataFrame(loads).sort_values([*order, "expert"], ignore_index=True),
    )


def _recorded(path: Path) -> list[MetricRow]:
    """Return the rows of kind ``routing`` of metrics.jsonl, the earliest first."""
    rows: list[MetricRow] = [row for row in RunFolder(path).rows() if row.kind == "routing"]
    return sorted(rows, key=lambda row: row.step)


def follow(saved: LoadedModel, task: Task, split: str, examples: int) -> list[LayerTokens]:
    """What every layer of experts does with the first examples of a split, as shown in training."""
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
            said_BT = predicted_BT if tokens_BT is view.tokens_BT else None
            assert tokens_BT.shape == valid_BT.shape, (layer, tokens_BT.shape, valid_BT.shape)
            kinds = _kinds(saved, task, view, batch, tokens_BT)
            parts.setdefault(layer, []).append(
                LayerTokens(
                    layer=layer,
                    num_experts=record.num_experts,
                    expert_NK=choices(record).numpy(),
                    token_N=tokens_BT[valid_BT].numpy(),
                    predicted_N=None if said_BT is None else said_BT[valid_BT].numpy(),
                    kind_N=None if kinds is None else kinds[0][valid_BT.numpy()],
                    code_N=None if kinds is None else kinds[1][valid_BT.numpy()],
                )
            )
    return [_joined(each) for each in parts.values()]


def _joined(parts: list[LayerTokens]) -> LayerTokens:
    first = parts[0]
    arrays: dict[str, Any] = {
        name: None if value is None else np.concatenate([getattr(part, name) for part in parts])
        for name, value in vars(first).items()
        if name.endswith(("_N", "_NK"))
    }
    return dataclasses.replace(first, **arrays)


def _kinds(
    saved: LoadedModel, task: Task, view: View, batch: Batch, tokens_BT: Tensor
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]] | None:
    """Kind and line of each token (B, T) that a layer reads; None where the task has no text.

    Where the model reads the example itself, or the same one place later, kinds are those of the words of
    the example, hidden ones too; the examples of a text follow one another. Elsewhere (a source with
    sentinels, padding) a token has the kind of the word it lies in as the model reads it.
    """
    if task.tokenizer is None:
        return None
    pieces = task.tokenizer.token_bytes
    same = tokens_BT.shape == batch.tokens_BT.shape
    shifted = same and bool((tokens_BT[:, 1:] == batch.context_BT[:, :-1]).all())
    capabilities = saved.model.capabilities
    filled = same and not capabilities.causal and not capabilities.encoder_decoder
    if not batch.whole or not (shifted or filled):
        each = [token_kinds([pieces[token] for token in row]) for row in tokens_BT.tolist()]
        return np.stack([kinds for kinds, _ in each]), np.stack([code for _, code in each])
    flat = token_kinds([pieces[token] for token in batch.tokens_BT.flatten().tolist()])
    shape = batch.tokens_BT.shape
    kinds_BT, code_BT = flat[0].reshape(shape), flat[1].reshape(shape)
    if shifted:
        kinds_BT, code_BT = np.roll(kinds_BT, 1, axis=1), np.roll(code_BT, 1, axis=1)
        kinds_BT[:, 0], code_BT[:, 0] = SPECIAL, False
    return kinds_BT, code_BT
