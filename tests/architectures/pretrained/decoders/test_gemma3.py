"""Gemma 3 with a vision tower: its language model is loaded, and written as a model of text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from archbench.architectures.pretrained import load_folder, read_config_json, read_folder_config, save_folder
from tests.architectures.pretrained.parity import (
    FLOAT32,
    check_generate,
    check_logits,
    error,
    open_theirs,
    save_theirs,
)

TEXT = {
    "vocab_size": 70,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 80,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 8,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def make(folder: Path, text: Mapping[str, Any] = TEXT, **settings: Any) -> Any:
    """A folder of their library, and its model."""
    tokens = {"image_token_index": 69, "boi_token_index": 68, "eoi_token_index": 67, "eos_token_id": [1, 66]}
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(**text),
        vision_config=VISION,
        mm_tokens_per_image=4,
        **tokens,
        **settings,
    )
    theirs = hf.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager")
    save_theirs(theirs, folder)
    return theirs


@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": False}])
def test_the_language_model_is_loaded_and_written(settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = make(tmp_path / "theirs", **settings)
    ours = load_folder(tmp_path / "theirs").eval()
    check_logits(ours, theirs, 19, FLOAT32)
    check_generate(ours, theirs, length=7, new=9)
    original = read_config_json(tmp_path / "theirs")
    assert original["eos_token_id"] == [1, 66]
    save_folder(ours, tmp_path / "ours", original=original)
    written = open_theirs(hf.AutoModelForCausalLM, tmp_path / "ours", torch.float32)
    assert type(written) is hf.Gemma3ForCausalLM
    check_logits(ours, written, 19, FLOAT32)


@pytest.mark.parametrize("key", ["final_logit_softcapping", "attn_logit_softcapping"])
def test_soft_caps_that_the_class_with_images_does_not_read_are_ignored(key: str, tmp_path: Path) -> None:
    theirs = make(tmp_path / "theirs", TEXT | {key: 0.5})
    ours = load_folder(tmp_path / "theirs").eval()
    check_logits(ours, theirs, 19, FLOAT32)
    save_folder(ours, tmp_path / "ours", original=read_config_json(tmp_path / "theirs"))
    check_logits(ours, open_theirs(hf.AutoModelForCausalLM, tmp_path / "ours", torch.float32), 19, FLOAT32)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_names_of_old_and_new_files_are_read(prefix: str, tmp_path: Path) -> None:
    theirs = make(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("language_model.model.", prefix).replace("vision_tower", "model.vision_tower"): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tokens_BT = torch.randint(3, 60, (2, 9))
    with torch.no_grad():
        found, expected = load_folder(tmp_path).eval()(tokens_BT).logits_BTV, theirs(tokens_BT).logits
    assert error(found, expected) < FLOAT32


def test_the_settings_of_published_models_are_enough(tmp_path: Path) -> None:
    """text_config of gemma-3-4b leaves out heads, vocabulary and length."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
    text |= {"num_hidden_layers": 34, "sliding_window": 1024}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}}))
    theirs = hf.Gemma3TextConfig(**text)
    ours = read_folder_config(tmp_path)
    assert (ours.vocab_size, ours.max_length) == (theirs.vocab_size, theirs.max_position_embeddings)
    assert ours.config.attention.num_heads == theirs.num_attention_heads  # type: ignore[attr-defined]
    assert ours.config.positions.scaling.factor == 8.0  # type: ignore[attr-defined]
    assert ours.config.tie_embeddings  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "text_config=None must be an object"),
        ({"model_type": "gemma2"}, "model_type='gemma2' is not supported"),
    ],
)
def test_a_language_model_of_another_class_is_refused(text: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    with pytest.raises(ValueError, match=message):
        read_folder_config(tmp_path)
