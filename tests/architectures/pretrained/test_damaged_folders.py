"""Damaged folders: each is refused at once, with what is wrong in it."""

import json
import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.pretrained import load_folder, save_folder

WEIGHTS = "model.safetensors"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whole(tmp_path_factory.mktemp("whole") / "model")


def make_whole(folder: Path) -> Path:
    """A folder with nothing wrong."""
    config = DecoderConfig(d_model=16, num_layers=2, attention=AttentionConfig(num_heads=2))
    save_folder(Decoder(config, vocab_size=11, max_length=8), folder)
    return folder


def config(**values: Any) -> Change:
    def change(folder: Path) -> None:
        tree = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(tree | values))

    return change


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Change:
    def edit(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, metadata={"format": "pt"})

    return edit


def poison(value: float) -> Change:
    return tensors(lambda t: t["model.norm.weight"].__setitem__(0, value))


def split(value: float) -> Change:
    """Two shards that both have a tensor, with this difference."""

    def edit(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        save_file(found, folder / names[0], metadata={"format": "pt"})
        again = {"model.norm.weight": found["model.norm.weight"] + value}
        save_file(again, folder / names[1], metadata={"format": "pt"})
        weights = dict.fromkeys(found, names[0]) | {"other": names[1]}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
        (folder / WEIGHTS).unlink()

    return edit


def cut(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-50])


def header(change: Callable[[dict[str, Any], list[str]], object], length: int | None = None) -> Change:
    """Another header before the same bytes; ``length`` is what the file says of its length."""

    def edit(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        tree = json.loads(data[8:end])
        change(tree, sorted(tree.keys() - {"__metadata__"}))
        text = json.dumps(tree).encode()
        size = struct.pack("<Q", len(text) if length is None else length)
        (folder / WEIGHTS).write_bytes(size + text + data[end:])

    return edit


def first(**values: Any) -> Change:
    """Another entry of the first tensor."""
    return header(lambda tree, names: tree[names[0]].update(values))


def many(folder: Path) -> None:
    tensors(lambda t: t.update({f"empty.{i}": torch.empty(0) for i in range(20_000)}))(folder)


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
DAMAGE: dict[str, tuple[Change, str]] = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "config.json cannot be read"),
    "empty configuration": (text("config.json", ""), "config.json cannot be read"),
    "a list": (text("config.json", "[1]"), "it holds no object"),
    "half an object": (text("config.json", '{"model_type": "lla'), "config.json cannot be read"),
    "nested": (text("config.json", "[" * 100_000), "config.json cannot be read"),
    "no kind": (config(model_type=None), "model_type=None is not supported"),
    "kind of a number": (config(model_type=7), "model_type=7 is not supported"),
    "kind of a list": (config(model_type=["llama"]), r"model_type=\['llama'\] is not supported"),
    "unknown kind": (config(model_type="rwkv9"), "'rwkv9' is not supported. Supported are decoders: "),
    "width of text": (config(hidden_size="16"), "hidden_size='16' must be a whole number"),
    "width of a fraction": (config(hidden_size=16.5), "hidden_size=16.5 must be a whole number"),
    "negative width": (config(hidden_size=-16), "hidden_size=-16 must be a whole number, not negative"),
    "true layers": (config(num_hidden_layers=True), "num_hidden_layers=True must be a whole number"),
    "many layers": (
        config(num_hidden_layers=100_000),
        "it has 100000 layers, the folder 21 tensors",
    ),
    "no heads": (config(num_attention_heads=0), "num_attention_heads"),
    "heads that do not divide": (config(num_key_value_heads=3), "num_key_value_heads=3"),
    "zero eps": (config(rms_norm_eps=0), "rms_norm_eps=0 must be a positive number"),
    "eps that is no number": (config(rms_norm_eps=math.nan), "rms_norm_eps=nan must be a positive number"),
    "eps of text": (config(rms_norm_eps="1e-6"), "rms_norm_eps='1e-6' must be a positive number"),
    "zero theta": (config(rope_parameters=ROPE | {"rope_theta": 0}), "rope_theta=0 must be a positive"),
    "theta that is no number": (config(rope_parameters=ROPE | {"rope_theta": math.nan}), "rope_theta=nan"),
    "rope of text": (config(rope_parameters="yes"), "rope_parameters='yes' must be an object"),
    "unknown activation": (config(hidden_act="selu"), "hidden_act='selu' is not supported"),
    "activation of a number": (config(hidden_act=3), "hidden_act=3 is not supported"),
    "quantized": (config(quantization_config={"bits": 4}), "quantization_config is not supported: write"),
    "not causal": (config(is_causal=False), "is_causal=False is not supported"),
    "larger vocabulary": (config(vocab_size=12), r"of another shape than in config.json: .*\(11, 16\)"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "there is no model.safetensors"),
    "empty weights": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "not a safetensors file"),
    "weights cut off": (cut, "is not a safetensors file"),
    "a header of exabytes": (header(lambda tree, names: None, 2**62), "is not a safetensors file"),
    "a header beyond the file": (header(lambda tree, names: None, 2**20), "is not a safetensors file"),
    "two tensors in one place": (
        header(lambda tree, names: tree[names[0]].update(data_offsets=tree[names[1]]["data_offsets"])),
        "is not a safetensors file",
    ),
    "a tensor beyond the file": (first(data_offsets=[0, 10**15]), "is not a safetensors file"),
    "a tensor of exabytes": (first(shape=[2**40, 2**40]), "is not a safetensors file"),
    "a type of another size": (first(dtype="F64"), "is not a safetensors file"),
    "a type that is none": (first(dtype="X9"), "is not a safetensors file"),
    "integers": (first(dtype="I32"), r"of a type other than F64, F32, F16, BF16: .* I32"),
    "tensor missing": (tensors(lambda t: t.__delitem__("model.norm.weight")), "missing: model.norm.weight"),
    "tensors left over": (many, "left over: empty.0, .* and 19900 more"),
    "NaN weights": (poison(math.nan), "tensor model.norm.weight has values that are not finite"),
    "infinite weights": (poison(math.inf), "tensor model.norm.weight has values that are not finite"),
    "a tensor twice": (split(1.0), "model.norm.weight is there twice, with different values"),
    "shard missing": (
        lambda folder: (
            (folder / WEIGHTS).unlink(),
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
        )[0],
        "shards are missing: b.safetensors",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    change, message = DAMAGE[name]
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    change(folder)
    with pytest.raises(ValueError, match=message):
        load_folder(folder)


def test_equal_copies_and_code_of_a_folder_are_left_alone(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    split(0.0)(folder)
    config(auto_map={"AutoModel": "modeling.Other"})(folder)
    with pytest.warns(UserWarning, match="auto_map names code of the folder, which is not run"):
        loaded = load_folder(folder)
    expected = load_folder(whole).state_dict()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in expected.items())
