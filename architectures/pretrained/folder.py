"""Reads Hugging Face folders: config.json and safetensors, in one file or in shards.

Pickles are never opened: checkpoints in other formats raise ValueError.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone
from archbench.architectures.pretrained.checkpoint import Blueprint, Checkpoint, families
from archbench.architectures.pretrained.fields import supported_value
from archbench.architectures.pretrained.hf_config import HFConfig, check_config, with_file_keys
from archbench.architectures.pretrained.tensor_rules import Entry, FixedRow, Repeated, Rule, Unused

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Precisions by their names in safetensors."""
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "decoder_layers", "num_blocks")
SHARED = ("tie_word_embeddings", "dtype", "torch_dtype")
"""Keys of a model that reads images which hold for its language model."""
LARGEST_RATIO = 1000
"""Parameters per byte of tensors, above which tensors are not compared one by one."""
MOST_NAMES = 100
"""Tensors that one message names."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def read_folder_config(path: Path) -> Blueprint:
    """Return the model of a folder, from its config.json and the names of its tensors, if it has any.

    Raises:
        ValueError: the folder is missing, of an unknown type, or has a setting without counterpart here.
    """
    family, hf = _family(path)
    return _blueprint(family, hf)


def load_folder(path: Path, *, dtype: torch.dtype = torch.float32) -> Backbone:
    """Return the model of a folder with its weights, in precision ``dtype``, on the CPU.

    Tensors are read one at a time, so that it needs little more memory than the model.

    Raises:
        ValueError: see ``read_folder_config``; or tensors are missing, left over or of another
            shape (all of them are named), or the weights are not safetensors.
    """
    family, hf = _family(path)
    with torch.device("meta"), _errors_by_file_keys(hf):
        model = _blueprint(family, hf).build()
    files = _weight_files(path)
    parameters, stored = sum(p.numel() for p in model.parameters()), sum(f.stat().st_size for f in files)
    if parameters > LARGEST_RATIO * stored:  # the names of tensors would be too many to list
        raise ValueError(
            f"{CONFIG}: its sizes make {parameters} parameters, the folder has {stored} bytes of tensors"
        )
    with ExitStack() as stack:
        locations: dict[str, tuple[Any, str]] = {}
        for file in files:
            opened = stack.enter_context(_open(file))
            for name in opened.keys():  # noqa: SIM118
                hf_name = family.current_name(name)
                if hf_name in locations and not _equal(*locations[hf_name], opened, name):
                    raise ValueError(f"tensor {name} is there twice, with different values: leave one out")
                locations[hf_name] = (opened, name)
        rules = family.applicable_rules(model)
        _check(family, model, rules, locations)
        slots = _slots(model)
        for rule in sorted(rules, key=lambda rule: isinstance(rule, Repeated)):  # what they repeat first
            if rule.theirs in locations:
                opened, name = locations[rule.theirs]
                _read(rule, opened.get_tensor(name), slots, dtype, family.tie_key)
    assert not any(p.is_meta for p in (*model.parameters(), *model.buffers()))
    return model


def stored_dtypes(path: Path) -> dict[str, torch.dtype]:
    """Return the precision of each tensor of a folder, by its name there. Raises ValueError."""
    family, _ = _family(path)
    dtypes = {}
    for file in _weight_files(path):
        with _open(file) as opened:
            for name in opened.keys():  # noqa: SIM118
                dtypes[family.current_name(name)] = DTYPES.get(opened.get_slice(name).get_dtype())
    return {name: dtype for name, dtype in dtypes.items() if dtype is not None}


def _blueprint(family: type[Checkpoint], hf: HFConfig) -> Blueprint:
    """Return the model of config.json. Raises ValueError with the keys of the file."""
    capabilities = family.backbone_class.capabilities
    check_config(hf, causal=capabilities.causal or capabilities.encoder_decoder)
    with _errors_by_file_keys(hf):
        return family.read_config(hf)


@contextmanager
def _errors_by_file_keys(hf: HFConfig) -> Iterator[None]:
    """Convert exceptions caused by values of config.json to ValueError with its keys."""
    try:
        yield
    except ValueError as error:
        raise with_file_keys(error, hf) from None
    except (TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
        message = str(error).partition("\n")[0]
        raise ValueError(f"config.json: a value is not of the type it must have: {message}") from None


def _equal(file: Any, name: str, other_file: Any, other_name: str) -> bool:
    """Return True if two tensors of files have the same shape and values."""
    tensor, other_tensor = file.get_tensor(name), other_file.get_tensor(other_name)
    return tensor.shape == other_tensor.shape and torch.equal(tensor, other_tensor)


def _family(path: Path) -> tuple[type[Checkpoint], HFConfig]:
    """Return the family of a folder, and the content of its config.json."""
    hf = read_config_json(path)
    model_type = hf.get("model_type")
    family_of = {name: family for family in families() for name in family.model_types}
    if not isinstance(model_type, str) or model_type not in family_of:
        raise ValueError(f"{CONFIG}: model_type={model_type!r} is not supported. {_supported()}")
    family, names = family_of[model_type], set()
    for file in path.glob("*.safetensors"):
        with _open(file) as opened:
            names |= {family.current_name(name) for name in opened.keys()}  # noqa: SIM118
    layers = next((hf[key] for key in LAYERS if isinstance(hf.get(key), int)), 0)
    if names and layers > len(names):
        raise ValueError(
            f"{CONFIG}: it has {layers} layers, the folder {len(names)} tensors: tensors are missing"
        )
    return family, family.complete_config(family.without_aliases(hf), names)


def read_config_json(path: Path) -> HFConfig:
    """Return the content of config.json; of a model that also reads images, that of its language model.

    Raises:
        ValueError: the file cannot be read, or has no settings of a language model.
    """
    try:
        hf = json.loads(_text(path / CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{CONFIG} cannot be read: {error}") from None
    if not isinstance(hf, dict):
        raise ValueError(f"{CONFIG} cannot be read: it holds no object")
    family_of = {name: family for family in families() for name in family.wrappers}
    model_type = hf.get("model_type")
    if not isinstance(model_type, str) or model_type not in family_of:
        return hf
    family = family_of[model_type]
    if not isinstance(hf.get("text_config"), dict):
        raise ValueError(f"{CONFIG}: text_config={hf.get('text_config')!r} must be an object")
    text = {"model_type": family.model_types[0]} | hf["text_config"]
    supported_value(text, "model_type", *family.model_types)
    text = {key: value for key, value in text.items() if key not in family.ignored_in_wrappers}
    shared = {key: value for key, value in hf.items() if key in SHARED or key.endswith("_token_id")}
    # The full model decides whether the head is the token table, regardless of text_config.
    return text | {"tie_word_embeddings": True, "architectures": [family.wrappers[model_type]]} | shared


def _supported() -> str:
    """Return a list of the supported types of models, by the folder of this package that reads them."""
    groups: dict[str, list[str]] = {}
    for family in families():
        folder_name = family.__module__.removeprefix(f"{__package__}.").partition(".")[0].replace("_", " ")
        groups.setdefault(folder_name, []).extend((*family.model_types, *family.wrappers))
    return "Supported are " + "; ".join(
        f"{folder_name}: {', '.join(sorted(t))}" for folder_name, t in sorted(groups.items())
    )


def _weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of a folder: one, or those that its index names."""
    if (path / WEIGHTS).exists():
        return [path / WEIGHTS]
    if (path / INDEX).exists():
        try:
            names = set(json.loads(_text(path / INDEX))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"{INDEX} cannot be read: {error!r}") from None
        if other := [name for name in names if not isinstance(name, str)]:
            raise ValueError(f"{INDEX} cannot be read: weight_map names {other[0]!r}, which is no file")
        # A name with a folder in it would reach outside this one.
        missing = sorted(name for name in names if Path(name).name != name or not (path / name).is_file())
        if missing:
            raise ValueError(f"shards are missing: {', '.join(missing)}")
        return [path / name for name in sorted(names)]
    pickles = [file.name for pattern in PICKLES for file in path.glob(pattern)]
    if pickles:
        raise ValueError(
            f"{pickles[0]} is a pickle, which can run any code and is never opened: convert it to "
            "safetensors, with save_pretrained of the Hugging Face library"
        )
    raise ValueError(f"there is no {WEIGHTS} and no {INDEX}")


def _text(file: Path) -> str:
    """Return the text of a file. Raises ValueError for a pipe or a device, whose reading may not end."""
    _refuse_special(file)
    return file.read_text()


def _refuse_special(file: Path) -> None:
    if file.exists() and not file.is_file():
        raise ValueError(f"{file.name} is neither a file nor a link to one")


def _open(file: Path) -> Any:
    _refuse_special(file)
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file.name} is not a safetensors file: {error}") from None


def _check(
    family: type[Checkpoint],
    model: Backbone,
    rules: list[Rule],
    locations: dict[str, tuple[Any, str]],
) -> None:
    """Raise ValueError that names every tensor that is missing, left over or of another shape."""
    parameters = model.state_dict()
    expected = {rule.theirs: rule.write([parameters[name] for name in rule.ours]).shape for rule in rules}
    optional = {rule.theirs for rule in rules if isinstance(rule, Repeated)}
    ignored = [re.compile(pattern) for pattern in family.ignored]
    shapes, types = [], []
    for hf_name in sorted(expected.keys() & locations.keys()):
        opened, name = locations[hf_name]
        shape = tuple(opened.get_slice(name).get_shape())
        if (dtype := opened.get_slice(name).get_dtype()) not in DTYPES:
            types.append(f"{name} {dtype}")
        if shape != tuple(expected[hf_name]):
            shapes.append(f"{name} {shape}, not {tuple(expected[hf_name])}")
    extra = [
        name
        for hf_name, (_, name) in sorted(locations.items())
        if hf_name not in expected and not any(pattern.search(hf_name) for pattern in ignored)
    ]
    wrong: dict[str, list[str]] = {
        "missing": sorted(expected.keys() - locations.keys() - optional),
        "left over": extra,
        "of another shape than in config.json": shapes,
        f"of a type other than {', '.join(DTYPES)}": types,
    }
    if any(wrong.values()):
        problems = []
        for problem, names in wrong.items():
            rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            if names:
                problems.append(f"{problem}: {', '.join(names[:MOST_NAMES])}{rest}")
        raise ValueError(f"tensors {'; '.join(problems)}")


Slots = dict[str, list[tuple[nn.Module, str]]]
"""Modules that have a tensor, and its attribute there, by the names of the tensor: a tied one has several."""


def _slots(model: Backbone) -> Slots:
    """Return the slots of all parameters and buffers, found once: a model has thousands."""
    by_name: Slots = {}
    by_tensor: defaultdict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    for name, tensor in named:
        module, _, leaf = name.rpartition(".")
        by_tensor[id(tensor)].append((model.get_submodule(module), leaf))
        by_name[name] = by_tensor[id(tensor)]
    return by_name


def _read(rule: Rule, tensor: Tensor, slots: Slots, dtype: torch.dtype, tie_key: str) -> None:
    """Load one tensor of a checkpoint into the model."""
    tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise ValueError(f"tensor {rule.theirs} has values that are not finite: the folder is damaged")
    ours = [getattr(*slots[name][0]) for name in rule.ours]
    if isinstance(rule, Repeated):
        if not isinstance(rule, Unused) and not torch.equal(tensor, ours[0]):
            raise ValueError(
                f"tensor {rule.theirs} differs from what it repeats, which are one with "
                f"{tie_key}=true in config.json"
            )
        return
    parts = rule.read(tensor, [part.shape for part in ours])
    for name, shared, part in zip(rule.ours, ours, parts, strict=True):
        # A copy: the file may change later, and parts would keep a fused tensor allocated.
        value = part.clone(memory_format=torch.contiguous_format)
        value = rule.put(value, shared) if isinstance(rule, Entry) else value
        new = (
            nn.Parameter(value, not isinstance(rule, FixedRow)) if isinstance(shared, nn.Parameter) else value
        )
        for module, leaf in slots[name]:
            setattr(module, leaf, new)
