"""Folders: shards, what is missing or does not fit, what is refused, what older files look like."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained import folder as folder_module
from archbench.architectures.pretrained import load_folder, read_folder_config, save_folder
from archbench.architectures.pretrained.tensor_rules import (
    ByHead,
    Rule,
    Same,
    Shifted,
    Stacked,
    StackedTransposed,
    Transposed,
)
from tests.architectures.pretrained.folders import DECODERS, ENCODER_DECODERS, ENCODERS
from tests.architectures.pretrained.parity import FLOAT32, check_logits, redraw

LLAMA = DecoderConfig(d_model=20, num_layers=2, attention=AttentionConfig(num_heads=2))

QK_NORM = replace(LLAMA, attention=AttentionConfig(num_heads=2, qk_norm="head"))


def model(config: DecoderConfig = LLAMA) -> Decoder:
    decoder = Decoder(config, vocab_size=31, max_length=17)
    redraw(decoder)
    return decoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_folder(model(), tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def edit_tensors(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def same(a: nn.Module, b: nn.Module) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_bytes", [None, 1, 4000, 10**9])
def test_shards_hold_the_same_model(tied: bool, shard_bytes: int | None, tmp_path: Path) -> None:
    ours = model(replace(LLAMA, tie_embeddings=tied))
    save_folder(ours, tmp_path / "model", shard_bytes=shard_bytes)
    files = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    if shard_bytes in (None, 10**9):
        assert files == ["model.safetensors"]
    else:
        index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
        assert sorted(set(index["weight_map"].values())) == files
        assert files[-1] == f"model-{len(files):05}-of-{len(files):05}.safetensors"
        assert index["metadata"]["total_size"] == 4 * sum(p.numel() for p in ours.parameters())
        limit = max(shard_bytes or 0, max(4 * p.numel() for p in ours.parameters()))
        for file in files:
            assert sum(t.nbytes for t in load_file(tmp_path / "model" / file).values()) <= limit
    back = load_folder(tmp_path / "model")
    assert same(ours, back)
    assert (back.head.weight is back.embedding.tokens.weight) == tied
    assert same(LlamaForCausalLM.from_pretrained(tmp_path / "model").model.norm, ours.final)


def test_loading_keeps_parameters_apart_and_trainable(folder: Path) -> None:
    loaded = load_folder(folder)
    pointers = [p.untyped_storage().data_ptr() for p in loaded.parameters()]
    assert len(set(pointers)) == len(pointers)
    loaded(torch.zeros(1, 3, dtype=torch.int64)).logits_BTV.sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in loaded.parameters())
    (folder / "model.safetensors").write_bytes(b"")  # what was read does not change with the file
    assert all(p.isfinite().all() for p in loaded.parameters())


def test_the_configuration_alone_is_enough_for_sizes(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    blueprint = read_folder_config(folder)
    with torch.device("meta"):
        built = blueprint.build()
    assert {n: p.shape for n, p in built.named_parameters()} == {
        n: p.shape for n, p in model().named_parameters()
    }


def test_every_tensor_that_does_not_fit_is_named(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.extra"] = torch.zeros(2)
        tensors["lm_head.weight"] = torch.zeros(30, 20)

    edit_tensors(folder, change)
    with pytest.raises(ValueError, match="missing") as error:
        load_folder(folder)
    assert "missing: model.layers.1.mlp.up_proj.weight, model.norm.weight;" in str(error.value)
    assert "left over: model.extra;" in str(error.value)
    assert "lm_head.weight (30, 20), not (31, 20)" in str(error.value)


def test_a_tied_head_may_be_there_but_must_agree(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_folder(model(replace(LLAMA, tie_embeddings=True)), folder)
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load_folder(folder)
    edit_tensors(folder, lambda t: t["lm_head.weight"].add_(1))
    with pytest.raises(ValueError, match=r"lm_head\.weight differs"):
        load_folder(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_unopened(name: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ValueError, match=f"{name} is a pickle.*safetensors"):
        load_folder(folder)


def test_shards_outside_the_folder_or_missing_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    index = {"weight_map": {"a": "../other.safetensors", "b": "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"shards are missing: \.\./other\.safetensors, gone\.safetensors"):
        load_folder(folder)


@pytest.mark.parametrize("broken", [b"", b"\x80\x04 no tensors"])
def test_a_broken_file_is_named(broken: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(broken)
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "lama"},
            "model_type='lama' is not supported. Supported are decoders: .*; encoders: ",
        ),
        ({"hidden_act": "selu"}, "hidden_act='selu' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "short_factor is missing"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0] * 5}},
            "short_factor has 1 numbers, and 5 pairs are rotated",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "rope_scaling.factor|factor=0.5"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "proportional"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 2**63}, r"hidden_size=\d+ must be below"),
        ({"intermediate_size": 1e300}, r"intermediate_size=1e\+300 must be below"),
        ({"intermediate_size": 2**31 - 1}, r"its sizes make \d+ parameters"),
        ({"max_position_embeddings": "auto"}, "max_position_embeddings='auto' must be a whole number"),
        ({"vocab_size": {}}, "vocab_size={} must be a whole number"),
        ({"model_type": "gpt2"}, r"tensors missing: transformer\.h\.0"),
        ({"model_type": "gemma2", "layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
    ],
)
def test_settings_without_counterpart_are_named(values: dict[str, Any], message: str, folder: Path) -> None:
    edit_config(folder, **values)
    with pytest.raises(ValueError, match=message):
        load_folder(folder)


@pytest.mark.parametrize("kind", ["rwkv", "rwkv7", "xlstm_large"])
def test_a_family_that_is_not_supported_gets_the_supported_names_in_groups(kind: str, folder: Path) -> None:
    edit_config(folder, model_type=kind, architectures=[f"{kind}ForCausalLM"])
    with pytest.raises(ValueError, match=f"model_type='{kind}' is not supported. Supported are ") as error:
        load_folder(folder)
    groups = dict(group.split(": ") for group in str(error.value).partition("Supported are ")[2].split("; "))
    assert [*groups] == ["decoders", "encoder decoders", "encoders", "state space"]
    named = {name for names in groups.values() for name in names.split(", ")}
    classes = [settings[0] for settings in (DECODERS | ENCODER_DECODERS | ENCODERS).values()]
    assert {getattr(hf, f"{name}Config").model_type for name in classes} <= named
    assert kind not in named


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            replace(QK_NORM, positions=PositionsConfig(layers=["positional", "none"])),
            r"positions\.layers=\[positional,none\] \(not \[positional\*2\]\)",
        ),
        (replace(LLAMA, block=BlockConfig(norm="layernorm")), r"block\.norm=layernorm \(not rmsnorm\)"),
        (
            replace(LLAMA, attention=AttentionConfig(num_heads=2, sinks=True)),
            r"attention\.sinks=True \(not False\)",
        ),
        (replace(QK_NORM, positions=PositionsConfig(fraction=0.4)), r"positions\.fraction=0\.4 \(not 1\.0\)"),
        (
            replace(
                LLAMA,
                attention=AttentionConfig(
                    num_heads=2, bias=True, out_bias=False, num_kv_heads=1, qk_norm="head"
                ),
            ),
            r"Qwen2: attention\.qk_norm=head \(not none\); Qwen3: attention\.out_bias=False \(not True\)",
        ),
    ],
)
def test_what_cannot_be_said_there_is_named(config: DecoderConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        save_folder(model(config), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_only_training_or_speed_needs_is_no_hindrance(tmp_path: Path) -> None:
    attention = replace(LLAMA.attention, dropout=0.1, kernel="reference", cache="paged", block_size=4)
    block = BlockConfig(dropout=0.2, stochastic_depth=0.1, residual_scaling=False)
    save_folder(model(replace(LLAMA, attention=attention, block=block)), tmp_path / "model")
    assert load_folder(tmp_path / "model").config.attention.dropout == 0.1  # type: ignore[attr-defined]


def test_models_and_parts_unknown_there_are_refused(tmp_path: Path) -> None:
    s4 = S4(S4Config(d_model=16), vocab_size=31, max_length=17)
    with pytest.raises(ValueError, match="this S4"):
        save_folder(s4, tmp_path / "model")
    readout = model()
    readout.attach_readout(nn.Linear(20, 3))
    with pytest.raises(ValueError, match=r"readout\.bias, readout\.weight"):
        save_folder(readout, tmp_path / "model")
    with pytest.raises(ValueError, match="exists"):
        save_folder(model(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_original_gpt2_are_read(tmp_path: Path) -> None:
    """No prefix, and causal masks among the tensors."""
    config = GPT2Config(vocab_size=31, n_positions=17, n_embd=12, n_head=3, n_layer=2)
    theirs = GPT2LMHeadModel(config).eval()
    redraw(theirs)
    theirs.save_pretrained(tmp_path)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 17, 17)

    edit_tensors(tmp_path, change)
    check_logits(load_folder(tmp_path).eval(), theirs, 11, FLOAT32)


@pytest.mark.parametrize(
    "scaling",
    [None, {"type": "linear", "factor": 3.0}, {"rope_type": "yarn", "factor": 4.0, "beta_fast": 3.0}],
)
def test_rotary_settings_of_older_files_are_read(scaling: dict[str, Any] | None, tmp_path: Path) -> None:
    """``rope_theta`` and ``rope_scaling`` beside each other, and optional keys left out."""
    old = {
        "model_type": "llama",
        "vocab_size": 31,
        "hidden_size": 20,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "rope_theta": 77.0,
        "rope_scaling": scaling,
    }
    theirs = LlamaForCausalLM(LlamaConfig.from_dict(old)).eval()
    redraw(theirs)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(old))
    edit_tensors(
        tmp_path, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)})
    )
    check_logits(load_folder(tmp_path).eval(), theirs, 23, FLOAT32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_precision_is_that_asked_for(dtype: torch.dtype, folder: Path, tmp_path: Path) -> None:
    loaded = load_folder(folder, dtype=dtype)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    save_folder(loaded, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["dtype"] == str(dtype)[6:]
    assert same(loaded, load_folder(tmp_path / "again", dtype=dtype))


RULES: dict[str, tuple[type[Rule] | Any, int, list[tuple[int, ...]]]] = {
    "same": (Same, 1, [(5, 3)]),
    "transposed": (Transposed, 1, [(5, 3)]),
    "transposed bias": (Transposed, 1, [(5,)]),
    "stacked": (Stacked, 3, [(6, 4), (2, 4), (3, 4)]),
    "stacked bias": (Stacked, 2, [(6,), (2,)]),
    "stacked transposed": (StackedTransposed, 3, [(4, 3), (4, 3), (5, 3)]),
    "by head": (partial(ByHead, num_heads=3), 3, [(6, 4), (6, 4), (6, 4)]),
    "by head bias": (partial(ByHead, num_heads=3), 3, [(6,), (6,), (6,)]),
    "shifted": (partial(Shifted, rows=2), 1, [(5, 3)]),
}


@pytest.mark.parametrize("name", RULES)
def test_writing_undoes_reading(name: str) -> None:
    make, count, shapes = RULES[name]
    rule = make("theirs", tuple(f"ours{i}" for i in range(count)))
    ours = [torch.randn(shape) for shape in shapes]
    theirs = rule.write(ours)
    assert all(
        torch.equal(a, b) for a, b in zip(rule.read(theirs, [t.shape for t in ours]), ours, strict=True)
    )


def test_heads_alternate_in_a_fused_matrix() -> None:
    q, k, v = (torch.arange(6.0)[:, None] + shift for shift in (0, 10, 20))
    fused = ByHead("qkv", ("q", "k", "v"), num_heads=3).write([q, k, v])
    assert fused[:, 0].tolist() == [0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23, 4, 5, 14, 15, 24, 25]


@pytest.mark.parametrize(
    "index", ['{"weight_map": {"a": 1}}', '{"weight_map": {"a": ["x"]}}', "[]", "9" * 5000]
)
def test_an_index_without_names_of_files_is_an_error(index: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"index\.json cannot be read"):
        folder_module._weight_files(tmp_path)


def test_weights_that_are_a_pipe_are_an_error(tmp_path: Path) -> None:
    """Opening it waited for ever."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is neither a file"):
        folder_module._family(tmp_path)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_weights_are_as_readable_as_other_files(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        save_folder(model(), tmp_path / "model")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()} == {mode}
