"""Parity of Mamba and Mamba-2 with the Hugging Face library, in both directions and in generation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.pretrained import load_folder, save_folder
from tests.architectures.pretrained.parity import (
    FLOAT32,
    FLOAT64,
    check_generate,
    check_logits,
    check_read,
    check_write,
    redraw,
    save_theirs,
)

LENGTH = 19
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = TOKENS | {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3}
ONE = SIZES | {"state_size": 5, "use_mambapy": False}
TWO = SIZES | {"state_size": 5, "num_heads": 6, "head_dim": 8, "n_groups": 2, "chunk_size": 8}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba plain": ("Mamba", ONE),
    "mamba untied": ("Mamba", ONE | {"tie_word_embeddings": False, "expand": 3, "conv_kernel": 2}),
    "mamba biases": ("Mamba", ONE | {"use_bias": True, "use_conv_bias": False, "time_step_rank": 5}),
    "falcon plain": ("FalconMamba", ONE),
    "falcon eps": (
        "FalconMamba",
        ONE | {"mixer_rms_eps": 0.1, "tie_word_embeddings": False, "use_bias": True, "time_step_rank": 3},
    ),
    "mamba2 plain": ("Mamba2", TWO),
    "mamba2 tied": ("Mamba2", TWO | {"tie_word_embeddings": True, "n_groups": 1, "conv_kernel": 3}),
    "mamba2 biases": ("Mamba2", TWO | {"use_bias": True, "use_conv_bias": False, "layer_norm_epsilon": 1e-2}),
    "mamba2 wide": ("Mamba2", TWO | {"expand": 1, "num_heads": 3, "n_groups": 3, "chunk_size": 256}),
}


def build(name: str) -> Any:
    family, settings = CASES[name]
    return getattr(hf, f"{family}ForCausalLM")(getattr(hf, f"{family}Config")(**settings))


@pytest.mark.parametrize("name", CASES)
def test_reads_and_generates_as_theirs(name: str, tmp_path: Path) -> None:
    theirs = build(name)
    ours = check_read(theirs, tmp_path, torch.float32, LENGTH, FLOAT32)
    check_generate(ours, theirs, length=7, new=20)


@pytest.mark.parametrize("name", CASES)
def test_reads_in_float64(name: str, tmp_path: Path) -> None:
    check_read(build(name), tmp_path, torch.float64, LENGTH, FLOAT64)


def test_time_steps_are_limited_as_theirs(tmp_path: Path) -> None:
    theirs = hf.Mamba2ForCausalLM(hf.Mamba2Config(**TWO, time_step_limit=(0.3, 1.0)))
    ours: Any = check_read(theirs, tmp_path, torch.float64, LENGTH, FLOAT64)
    assert (ours.config.dt_floor, ours.config.dt_ceiling) == (0.3, 1.0)


PLAIN = MambaConfig(d_model=24, num_layers=2, d_state=3)
FALCON = replace(PLAIN, selection_norm=True, selection_norm_weight=False)
PLAIN2 = Mamba2Config(d_model=24, num_layers=2, num_heads=6, d_state=7, num_groups=3)


def model(config: MambaConfig | Mamba2Config) -> Backbone:
    cls: Any = Mamba if isinstance(config, MambaConfig) else Mamba2
    return cls(config, vocab_size=61, max_length=33)


@pytest.mark.parametrize(
    "config",
    [
        PLAIN,
        replace(PLAIN, d_inner=72, dt_rank=4, conv_width=2, tie_embeddings=True),
        replace(PLAIN, bias=True, conv_bias=False, scan="reference", dt_max=1.0),
        FALCON,
        replace(FALCON, selection_norm_eps=0.05, norm_eps=1e-3, tie_embeddings=True),
        PLAIN2,
        replace(PLAIN2, tie_embeddings=True, num_groups=1, conv_width=2, chunk=4),
        replace(PLAIN2, bias=True, conv_bias=False, head_dim=4, norm_eps=1e-3, dt_ceiling=0.5),
    ],
)
def test_theirs_reads_ours(config: MambaConfig | Mamba2Config, tmp_path: Path) -> None:
    cls = hf.MambaForCausalLM if isinstance(config, MambaConfig) else hf.Mamba2ForCausalLM
    cls = hf.FalconMambaForCausalLM if getattr(config, "selection_norm", False) else cls
    ours = model(config)
    check_write(ours, cls, tmp_path / "model", LENGTH, FLOAT32)
    back = load_folder(tmp_path / "model")
    assert back.max_length == 33
    assert all(torch.equal(back.state_dict()[name], value) for name, value in ours.state_dict().items())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(PLAIN, negative_eigenvalues=True), r"negative_eigenvalues=True \(not False\)"),
        (replace(PLAIN, selection_norm=True), r"selection_norm_weight=True \(not False\)"),
        (replace(PLAIN, d_inner=40), "40 channels are no multiple of d_model=24"),
        (replace(PLAIN2, norm="none"), r"norm=none \(not after_gate\)"),
        (replace(PLAIN2, norm="before_gate"), r"norm=before_gate \(not after_gate\)"),
        (replace(PLAIN2, head_dim=3), "18 channels are no multiple of d_model=24"),
    ],
)
def test_what_cannot_be_said_there_is_named(
    config: MambaConfig | Mamba2Config, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        save_folder(model(config), tmp_path / "model")


def test_the_first_published_files_are_read(tmp_path: Path) -> None:
    """Another name of the embedding, and a head although it is tied."""
    theirs = build("mamba plain")
    save_theirs(theirs, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    tensors["lm_head.weight"] = tensors["backbone.embedding.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_logits(load_folder(tmp_path).eval(), theirs, LENGTH, FLOAT32)


def test_other_activations_are_refused(tmp_path: Path) -> None:
    ours = model(PLAIN)
    redraw(ours)
    save_folder(ours, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "gelu"}))
    with pytest.raises(ValueError, match="hidden_act='gelu' is not supported"):
        load_folder(tmp_path / "model")
