import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM

from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from archbench.architectures.pretrained import load_folder, read_folder_config, save_folder
from tests.architectures.pretrained.parity import check_read, check_write, save_theirs

TOLERANCE = {torch.float32: 1e-5, torch.float64: 5e-6}
"""They turn queries and keys in float32, whatever the precision of the model."""
CONFIGS: dict[str, dict[str, Any]] = {
    "odd": {"hidden_size": 30, "num_attention_heads": 5, "num_hidden_layers": 4, "local_attention": 8},
    "untied": {
        "hidden_size": 28,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "local_attention": 5,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "classifier_bias": True,
        "decoder_bias": False,
    },
    "mixed": {
        "hidden_size": 18,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "local_attention": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
        "hidden_activation": "silu",
        "classifier_activation": "relu",
        "norm_eps": 1e-2,
    },
    "scaled": {
        "hidden_size": 30,
        "num_attention_heads": 5,
        "num_hidden_layers": 4,
        "local_attention": 8,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 90.0,
                "factor": 3.0,
                "original_max_position_embeddings": 17,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
}


def modernbert(name: str) -> ModernBertForMaskedLM:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = ModernBertConfig(
        vocab_size=61, intermediate_size=37, max_position_embeddings=53, **ids, **CONFIGS[name]
    )
    return ModernBertForMaskedLM(config)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_reads_modernbert(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    check_read(modernbert(name), tmp_path / "theirs", dtype, 29, TOLERANCE[dtype])


def test_reads_the_configuration_of_the_first_checkpoints(tmp_path: Path) -> None:
    folder = save_theirs(modernbert("odd"), tmp_path / "theirs")
    now = read_folder_config(folder)
    hf = json.loads((folder / "config.json").read_text())
    del hf["layer_types"], hf["rope_parameters"]
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(hf | old))
    before = read_folder_config(folder)
    assert before.config.positions == now.config.positions  # type: ignore[attr-defined]
    windows = [[b.config.attention.window_at(i) for i in range(4)] for b in (before, now)]  # type: ignore[attr-defined]
    assert windows[0] == windows[1] == [None, 8, 8, None]


def ours(**changes: Any) -> Encoder:
    settings = {
        "d_model": 30,
        "num_layers": 4,
        "attention": AttentionConfig(num_heads=3, window=6, layers=["global", "local"]),
        "positions": PositionsConfig(base=700.0, local_base=90.0),
        "block": BlockConfig(norm="layernorm_no_bias", first_norm=False),
        "feedforward": FeedForwardConfig(activation="gelu"),
        "embedding": EmbeddingConfig(norm=True),
        "head": HeadConfig(bias=True),
        "transform_bias": False,
        **changes,
    }
    return Encoder(EncoderConfig(**settings), vocab_size=59, max_length=41)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "tie_embeddings": True,
            "attention": AttentionConfig(num_heads=5, bias=True, out_bias=True),
            "num_layers": 2,
        },
        {
            "block": BlockConfig(norm="layernorm", first_norm=False),
            "positions": PositionsConfig(base=500.0, scaling=RotaryScaling(kind="ntk", factor=3.0)),
            "head": HeadConfig(),
            "transform_bias": True,
            "transform_activation": "gelu_tanh",
            "d_ff": 31,
            "unpad": True,
        },
        {
            "positions": PositionsConfig(
                base=90.0,
                local_base=50.0,
                scaling=RotaryScaling(kind="yarn", factor=3.0, original_length=17),
                scale_local=False,
            )
        },
    ],
)
def test_writes_modernbert(changes: dict[str, Any], tmp_path: Path) -> None:
    model = ours(**changes).double()
    check_write(model, ModernBertForMaskedLM, tmp_path / "ours", 27, TOLERANCE[torch.float64])
    again = load_folder(tmp_path / "ours", dtype=torch.float64)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())


def test_names_the_settings_that_modernbert_lacks(tmp_path: Path) -> None:
    model = ours(
        attention=AttentionConfig(num_heads=5, num_kv_heads=1, bias=True),
        positions=PositionsConfig(interleaved=True),
    )
    expected = r"attention\.num_kv_heads=1 .*attention\.out_bias=False .*positions\.interleaved=True"
    with pytest.raises(ValueError, match=expected):
        save_folder(model, tmp_path / "ours", model_type="modernbert")


def test_names_the_scaling_of_local_layers_that_is_not_supported(tmp_path: Path) -> None:
    folder = save_theirs(modernbert("odd"), tmp_path / "theirs")
    hf = json.loads((folder / "config.json").read_text())
    hf["rope_parameters"]["sliding_attention"] |= {"rope_type": "linear", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(hf))
    with pytest.raises(ValueError, match=r"rope_parameters\.sliding_attention"):
        load_folder(folder)
