from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration

from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained import load_folder, save_folder
from tests.architectures.pretrained.folders import write_json
from tests.architectures.pretrained.parity import FLOAT32, FLOAT64, open_theirs, redraw, save_theirs
from tests.architectures.pretrained.seq2seq_parity import check_seq2seq_generate, check_seq2seq_logits

CONFIGS: dict[str, dict[str, Any]] = {
    "odd": {"d_model": 30, "heads": 5, "encoder_layers": 3, "decoder_layers": 2, "ffn_dim": 37},
    "scaled": {
        "d_model": 21,
        "heads": 3,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "ffn_dim": 40,
        "scale_embedding": True,
    },
    "sides": {
        "d_model": 24,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "ffn_dim": 37,
        "encoder_attention_heads": 3,
        "encoder_ffn_dim": 11,
    },
    "relu": {
        "d_model": 16,
        "heads": 1,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "ffn_dim": 11,
        "activation_function": "relu",
    },
}


def bart(d_model: int, heads: int, ffn_dim: int, **settings: Any) -> BartForConditionalGeneration:
    for side in ("encoder", "decoder"):
        settings = {f"{side}_attention_heads": heads, f"{side}_ffn_dim": ffn_dim} | settings
    config = BartConfig(vocab_size=61, max_position_embeddings=31, d_model=d_model, **settings)
    model = BartForConditionalGeneration(config)
    model.final_logits_bias.normal_()
    return model


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, FLOAT32), (torch.float64, FLOAT64)])
def test_reads_bart(name: str, dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    theirs = bart(**CONFIGS[name]).to(dtype)
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs"), dtype=dtype).eval()
    check_seq2seq_logits(ours, theirs, (23, 19), tolerance)
    if dtype == torch.float64:
        check_seq2seq_generate(ours, theirs, 13, 21)


def test_reads_files_of_the_bare_model(tmp_path: Path) -> None:
    """Without the bias of the vocabulary, which their library then takes for zero, and without prefixes."""
    theirs = bart(**CONFIGS["odd"])
    folder = save_theirs(theirs, tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    del tensors["final_logits_bias"]
    bare = {name.removeprefix("model."): value for name, value in tensors.items()}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    theirs.final_logits_bias.zero_()
    check_seq2seq_logits(load_folder(folder).eval(), theirs, (9, 8), FLOAT32)


def test_refuses_two_token_tables(tmp_path: Path) -> None:
    """Untied, they have a table for each side; when these differ, nothing here is the same."""
    theirs = bart(**CONFIGS["odd"], tie_word_embeddings=False)
    folder = save_theirs(theirs, tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"embed_tokens\.weight differs from what it repeats"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("encoder_attention_heads", 0, "encoder_attention_heads=0 must be at least 1"),
        ("encoder_attention_heads", 7, "d_model=30 must be a positive multiple of 7"),
        ("encoder_ffn_dim", 36, r"of another shape than in config.json: model.encoder.layers.0.fc1"),
    ],
)
def test_impossible_sides_are_named(key: str, value: int, message: str, tmp_path: Path) -> None:
    folder = save_theirs(bart(**CONFIGS["odd"]), tmp_path / "theirs")
    write_json(folder / "config.json", **{key: value})
    with pytest.raises(ValueError, match=message):
        load_folder(folder)


def ours(**changes: Any) -> EncoderDecoder:
    settings = {
        "d_model": 33,
        "num_layers": 2,
        "norm_eps": 1e-5,
        "attention": AttentionConfig(num_heads=3, bias=True, out_bias=True),
        "positions": PositionsConfig(kind="learned"),
        "block": BlockConfig(norm="layernorm", placement="post"),
        "feedforward": FeedForwardConfig(activation="gelu", gated=False, bias=True),
        "embedding": EmbeddingConfig(norm=True),
        **changes,
    }
    return EncoderDecoder(EncoderDecoderConfig(**settings), vocab_size=59, max_length=23)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": True, "head": HeadConfig(bias=True), "num_encoder_layers": 1},
        {
            "tie_embeddings": True,
            "embedding": EmbeddingConfig(norm=True, scale=True),
            "d_ff": 41,
            "num_layers": 3,
        },
        {"encoder_heads": 11, "encoder_d_ff": 13},
    ],
)
def test_writes_bart(changes: dict[str, Any], tmp_path: Path) -> None:
    model = ours(**changes).double().eval()
    redraw(model)
    save_folder(model, tmp_path / "ours")
    theirs = open_theirs(BartForConditionalGeneration, tmp_path / "ours", torch.float64)
    check_seq2seq_logits(model, theirs, (17, 20), FLOAT64)
    check_seq2seq_generate(model, theirs, 11, 16)
    again = load_folder(tmp_path / "ours", dtype=torch.float64)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())


def test_names_the_settings_that_bart_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Bart: norm_eps=0\.001 \(not 1e-05\)"):
        save_folder(ours(norm_eps=1e-3), tmp_path / "ours")
