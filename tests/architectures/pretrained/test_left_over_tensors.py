"""Tensors of a folder that the model lacks: skipped where their library skips them, else refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archbench.architectures.pretrained import load_folder
from tests.architectures.pretrained.fields import CLASSES, ours
from tests.architectures.pretrained.folders import EAGER, make_folder, make_model
from tests.tiers import fast_only

BUFFERS = ("layers.0.self_attn.rotary_emb.inv_freq", "embeddings.position_ids")
"""What older files hold, and their library skips for every class that still has such a buffer."""
UNKNOWN = ("extra.weight", "predictor.0.weight")
EVERYWHERE = ("mtp.0.weight", "model.layers.61.mlp.up_proj.weight")
"""Layers that predict further tokens, which some classes skip; to the others they are unknown."""
HARMLESS = (*BUFFERS, "decoder.version", "encoder.version", "attention.masked_bias")
"""What no model ever reads: skipped here for whole families, where their library may complain."""


def patterns(name: str) -> set[str]:
    """What the class of a folder skips in their library, in its words, what its parts skip included."""
    return set(make_model(name)._keys_to_ignore_on_load_unexpected or ())


def example(pattern: str) -> str:
    """A name that a regular expression of theirs is meant for."""
    name = pattern.removeprefix("^").replace(r"\.", ".").replace(".*", ".0.weight")
    assert re.search(pattern, name), (pattern, name)
    return name


def add_tensors(folder: Path, names: set[str]) -> None:
    """Add tensors to a folder."""
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(3) for name in names}, file, metadata={"format": "pt"})


def save_without(folder: Path, names: set[str]) -> None:
    """Take tensors out of a folder."""
    file = folder / "model.safetensors"
    kept = {key: tensor for key, tensor in load_file(file).items() if key not in names}
    save_file(kept, file, metadata={"format": "pt"})


def left_there(folder: Path, kind: Any, names: set[str]) -> set[str]:
    """Those of the names that their library complains of."""
    _, info = kind.from_pretrained(folder, output_loading_info=True, **EAGER)
    assert not info["missing_keys"]
    said = info["unexpected_keys"]
    return {name for name in names if any(key.endswith(name) for key in said)}


def left_here(folder: Path, names: set[str]) -> set[str]:
    """Those of the names that are refused here."""
    with pytest.raises(ValueError, match="tensors left over: ") as error:
        load_folder(folder)
    said = str(error.value).partition("left over: ")[2].split(", ")
    return {name for name in names if any(key.endswith(name) for key in said)}


@pytest.mark.parametrize("name", fast_only([*CLASSES], ["gpt2", "deepseek_v3"]))
def test_left_over_tensors_are_skipped_where_theirs_skips_them(name: str, tmp_path: Path) -> None:
    listed = {example(pattern) for pattern in patterns(name)}
    names = {*listed, *BUFFERS, *UNKNOWN, *EVERYWHERE}
    folder = make_folder(name, tmp_path / "folder")
    before = ours(folder, CLASSES[name])
    add_tensors(folder, names)
    there, here = left_there(folder, CLASSES[name], names), left_here(folder, names)
    assert not listed & here
    assert {*UNKNOWN} <= here <= there
    assert there - here <= {*HARMLESS}
    save_without(folder, here)
    assert torch.equal(ours(folder, CLASSES[name]), before)


def test_the_layer_that_predicts_one_more_token_is_skipped(tmp_path: Path) -> None:
    """Layer 61 of a published DeepSeek-V3: a whole layer, and what comes before and behind it."""
    folder = make_folder("deepseek_v3", tmp_path / "folder")
    before = ours(folder, CLASSES["deepseek_v3"])
    file = folder / "model.safetensors"
    tensors = load_file(file)
    prefix, last = "model.layers.1.", "model.layers.61."
    layer = {last + key.removeprefix(prefix): t + 1 for key, t in tensors.items() if key.startswith(prefix)}
    for key in ("enorm", "hnorm", "shared_head.norm"):
        layer[f"{last}{key}.weight"] = torch.ones(32)
    layer[f"{last}eh_proj.weight"] = torch.ones(32, 64)
    for key in ("embed_tokens", "shared_head.head"):
        layer[f"{last}{key}.weight"] = torch.ones(300, 32)
    save_file(tensors | layer, file, metadata={"format": "pt"})
    _, info = CLASSES["deepseek_v3"].from_pretrained(folder, output_loading_info=True, **EAGER)
    assert len(layer) > 30
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(ours(folder, CLASSES["deepseek_v3"]), before)
