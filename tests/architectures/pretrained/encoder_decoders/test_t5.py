import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5LayerNorm

from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained import load_folder, read_folder_config, save_folder
from tests.architectures.pretrained.parity import FLOAT32, FLOAT64, open_theirs, redraw, save_theirs
from tests.architectures.pretrained.seq2seq_parity import check_seq2seq_generate, check_seq2seq_logits

CONFIGS: dict[str, dict[str, Any]] = {
    "first": {"d_model": 30, "d_kv": 7, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 2},
    "v1.1": {
        "d_model": 20,
        "d_kv": 6,
        "num_heads": 5,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
    "few buckets": {
        "d_model": 17,
        "d_kv": 9,
        "num_heads": 2,
        "num_layers": 1,
        "feed_forward_proj": "gated-silu",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 11,
        "layer_norm_epsilon": 1e-2,
    },
}


def t5(name: str) -> T5ForConditionalGeneration:
    config = T5Config(vocab_size=61, d_ff=37, decoder_start_token_id=0, **CONFIGS[name])  # type: ignore[call-arg]
    model = T5ForConditionalGeneration(config)
    if name == "v1.1":  # their class ties it all the same, unless it is given a head of its own
        model.lm_head.weight = nn.Parameter(torch.zeros_like(model.lm_head.weight))
    return model


@pytest.fixture
def exact_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their RMSNorm in the precision of the model: as it is, it takes the mean square in float32."""

    def forward(self: T5LayerNorm, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(T5LayerNorm, "forward", forward)


@pytest.mark.parametrize("name", CONFIGS)
def test_reads_t5(name: str, tmp_path: Path) -> None:
    theirs = t5(name)
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs")).eval()
    # From float64, 1.1's logits are 1.9e-5 away in their library, 1.0e-5 in ours.
    check_seq2seq_logits(ours, theirs, (23, 19), 3 * FLOAT32 if name == "v1.1" else FLOAT32)


@pytest.mark.usefixtures("exact_norm")
@pytest.mark.parametrize("name", CONFIGS)
def test_reads_t5_in_float64(name: str, tmp_path: Path) -> None:
    theirs = t5(name).double()
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs"), dtype=torch.float64).eval()
    assert ours.config.tie_embeddings is (name != "v1.1")  # type: ignore[attr-defined]
    check_seq2seq_logits(ours, theirs, (23, 19), FLOAT64)
    check_seq2seq_generate(ours, theirs, 13, 21)


def test_reads_a_tied_head_that_is_not_scaled(tmp_path: Path) -> None:
    """What their library makes of T5 v1.1 when it is drawn anew."""
    sizes = {"d_model": 12, "d_kv": 4, "num_heads": 3, "num_layers": 1}
    config = T5Config(vocab_size=61, d_ff=9, tie_word_embeddings=False, **sizes)  # type: ignore[call-arg]
    theirs = T5ForConditionalGeneration(config)
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs")).eval()
    assert ours.config.tie_embeddings  # type: ignore[attr-defined]
    assert not ours.config.head.scale  # type: ignore[attr-defined]
    check_seq2seq_logits(ours, theirs, (9, 7), FLOAT32)


def test_reads_configurations_of_the_original_v1_1(tmp_path: Path) -> None:
    """There the head is untied by ``tie_word_embeddings`` alone; later it is the tensors that tell."""
    folder = save_theirs(t5("v1.1"), tmp_path / "theirs")
    now = read_folder_config(folder)
    hf = json.loads((folder / "config.json").read_text())
    assert hf.pop("scale_decoder_outputs") is False
    (folder / "config.json").write_text(json.dumps(hf | {"tie_word_embeddings": False}))
    assert read_folder_config(folder) == now
    assert not now.config.tie_embeddings  # type: ignore[attr-defined]


def ours(**changes: Any) -> EncoderDecoder:
    settings = {
        "d_model": 21,
        "num_layers": 2,
        "attention": AttentionConfig(num_heads=3, scale=1.0),
        **changes,
    }
    return EncoderDecoder(EncoderDecoderConfig(**settings), vocab_size=59, max_length=33)


@pytest.mark.usefixtures("exact_norm")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": True, "num_encoder_layers": 3, "head": HeadConfig(scale=True)},
        {"tie_embeddings": True, "attention": AttentionConfig(num_heads=5, head_dim=7, scale=1.0)},
        {"head": HeadConfig(scale=True), "d_ff": 40, "norm_eps": 1e-3},
        {
            "feedforward": FeedForwardConfig(activation="relu", gated=False),
            "positions": PositionsConfig(kind="relative", num_buckets=12, max_distance=17),
        },
    ],
)
def test_writes_t5(changes: dict[str, Any], tmp_path: Path) -> None:
    model = ours(**changes).double().eval()
    redraw(model)
    save_folder(model, tmp_path / "ours")
    theirs = open_theirs(T5ForConditionalGeneration, tmp_path / "ours", torch.float64)
    check_seq2seq_logits(model, theirs, (17, 20), FLOAT64)
    check_seq2seq_generate(model, theirs, 11, 16)
    again = load_folder(tmp_path / "ours", dtype=torch.float64)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())


def test_names_the_settings_that_t5_lacks(tmp_path: Path) -> None:
    model = ours(
        attention=AttentionConfig(num_heads=3, layers=["global", "local"], window=4),
        num_layers=1,
        num_encoder_layers=2,
    )
    with pytest.raises(ValueError, match=r"T5: attention\.layers=\[global,local\] .*attention\.scale="):
        save_folder(model, tmp_path / "ours")


def test_names_the_feed_forward_that_is_not_supported(tmp_path: Path) -> None:
    folder = save_theirs(t5("first"), tmp_path / "theirs")
    hf = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(hf | {"feed_forward_proj": "gated-tanh", "dense_act_fn": None})
    )
    with pytest.raises(ValueError, match="feed_forward_proj='tanh' is not supported"):
        load_folder(folder)
