"""Writes folders that the Hugging Face library loads: config.json and safetensors, in one or more files."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.pretrained.checkpoint import Blueprint, Checkpoint, OtherLayersError, families
from archbench.architectures.pretrained.folder import CONFIG, INDEX, WEIGHTS
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Copied, Repeated, Rule

FAR = 1000
"""Distance of a family with other types of layers: more than the number of lost settings of any other."""


def save_folder(
    model: Backbone,
    path: Path,
    *,
    shard_bytes: int | None = None,
    model_type: str | None = None,
    token_ids: Mapping[str, int | list[int]] | None = None,
    original: HFConfig | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
) -> None:
    """Write a folder that the Hugging Face library loads as the same model, atomically.

    Args:
        path: a folder that does not exist yet.
        shard_bytes: splits the weights into files of at most this size; a larger tensor is in a separate
            file. None for one file.
        model_type: the type of model to write, where more than one can express it (an encoder as ``roberta``
            instead of ``bert``); null for the first.
        token_ids: special tokens for config.json by their names there, such as ``eos_token_id``.
        original: config.json of the folder that the model is from; it is written unchanged, if the
            model still matches it.
        dtypes: precision of tensors by their names there; the remaining ones have that of the model.

    Raises:
        ValueError: no Hugging Face family can express the model; names the settings it lacks.
    """
    if path.exists():
        raise ValueError(f"{path} exists: name a folder that does not exist yet")
    if model_type is None and original is not None:
        model_type = original.get("model_type")
    family, hf = export_config(model, model_type=model_type, token_ids=token_ids)
    hf |= {"dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    if original is not None and _still_describes(family, original, model):
        hf = original
    elif dtypes:
        hf["dtype"] = str(Counter(dtypes.values()).most_common(1)[0][0]).removeprefix("torch.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        _write_json(temporary / CONFIG, hf)
        _write_weights(model, family.applicable_rules(model), temporary, shard_bytes, dtypes or {})
        temporary.chmod(0o777 & ~umask())
        temporary.rename(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, SafetensorError):  # of the disk: it wraps the error of the system
            raise OSError(str(error)) from None
        raise


def umask() -> int:
    """Return the permissions that new files and folders do not get."""
    os.umask(mask := os.umask(0o077))
    return mask


def export_config(
    model: Backbone, *, model_type: str | None = None, token_ids: Mapping[str, int | list[int]] | None = None
) -> tuple[type[Checkpoint], HFConfig]:
    """Return the first family that expresses the model exactly, and its config.json; see ``save_folder``.

    Each family writes a config.json and reads it back: settings that differ then have no counterpart.

    Raises:
        ValueError: no family does; names the missing settings of the three nearest families.
    """
    lost_settings: list[tuple[int, str]] = []
    for family in families():
        if not family.can_express(model) or model_type not in (None, *family.model_types):
            continue
        distance = 2  # of what cannot be written at all; a family that lacks one setting is nearer
        try:
            hf = family.write_config(model) | dict(token_ids or {})
            lost = _lost(model, family.read_config(hf))
            distance = len(lost)
            if not lost:
                family.applicable_rules(model)
                return family, hf
        except ValueError as error:
            lost = [str(error)]
            distance = FAR if isinstance(error, OtherLayersError) else distance
        lost_settings.append((distance, f"{family.__name__}: {', '.join(lost)}"))
    nearest = "; ".join(reason for _, reason in sorted(lost_settings)[:3]) or "No family has this class"
    raise ValueError(f"no Hugging Face model is the same as this {type(model).__name__}. {nearest}")


def _lost(model: Backbone, blueprint: Blueprint) -> list[str]:
    """Return the settings of the model that a family loses."""
    from archbench.architectures.pretrained.config_diff import (
        differences,  # imports most layers; reading needs few
    )

    lost = differences(model.config, blueprint.config)
    if any(getattr(part, "convolution", part) is None for part in model.modules()):
        lost.append("conv_width=0")  # that a family would write it is no reason: none has such layers
    for name in ("vocab_size", "max_length"):
        value, hf_value = getattr(model, name), getattr(blueprint, name)
        if value != hf_value:
            lost.append(f"{name}={value} (not {hf_value})")
    return lost


def _still_describes(family: type[Checkpoint], original: HFConfig, model: Backbone) -> bool:
    """Return True if a config.json describes the model."""
    if original.get("model_type") not in family.model_types:
        return False
    names = {rule.theirs for rule in family.applicable_rules(model) if type(rule) is not Repeated}
    config = family.complete_config(family.without_aliases(original), names)
    return not _lost(model, family.read_config(config))


def _write_weights(
    model: Backbone,
    rules: list[Rule],
    folder: Path,
    shard_bytes: int | None,
    dtypes: dict[str, torch.dtype],
) -> None:
    parameters = model.state_dict()
    rules = [rule for rule in rules if not isinstance(rule, Repeated) or isinstance(rule, Copied)]
    shards = list(_shards(rules, parameters, shard_bytes))
    index: dict[str, str] = {}
    total = 0
    for file_index, shard in enumerate(shards, start=1):
        file = WEIGHTS if len(shards) == 1 else f"model-{file_index:05}-of-{len(shards):05}.safetensors"
        tensors: dict[str, Tensor] = {}
        for rule in shard:
            tensor = rule.write([parameters[name].cpu() for name in rule.ours])
            tensors[rule.theirs] = tensor.to(dtypes.get(rule.theirs, tensor.dtype)).contiguous()
        save_file(tensors, folder / file, metadata={"format": "pt"})
        os.umask(mask := os.umask(0o077))
        (folder / file).chmod(0o666 & ~mask)  # safetensors makes files that only their owner can read
        index |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": index})


def _shards(
    rules: list[Rule], parameters: dict[str, Tensor], shard_bytes: int | None
) -> Iterator[list[Rule]]:
    """Yield the rules of each file in order, so that no file exceeds the limit."""
    shard: list[Rule] = []
    size = 0
    for rule in rules:
        nbytes = rule.write([parameters[name].to("meta") for name in rule.ours]).nbytes
        if shard and shard_bytes is not None and size + nbytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(rule)
        size += nbytes
    yield shard


def _write_json(file: Path, tree: Mapping[str, object]) -> None:
    file.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n")
