"""Parity of Switch transformers with the Hugging Face library, both ways."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersLayerNorm,
    SwitchTransformersTop1Router,
)

from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.pretrained import export_config, load_folder, save_folder
from tests.architectures.pretrained.parity import (
    FLOAT32,
    FLOAT64,
    KeepFloat64,
    open_theirs,
    redraw,
    save_theirs,
)
from tests.architectures.pretrained.seq2seq_parity import check_seq2seq_logits

SIZES = {"vocab_size": 61, "d_model": 30, "d_kv": 7, "num_heads": 3, "d_ff": 17, "num_experts": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "every second": {
        "num_layers": 4,
        "num_decoder_layers": 2,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 1,
    },
    "every": {"num_layers": 2, "num_sparse_encoder_layers": 2, "num_decoder_layers": 3},
    "little room": {
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 2,
        "expert_capacity": 3,
    },
    "none asked for": {
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_sparse_encoder_layers": 0,
        "num_sparse_decoder_layers": 1,
        "dense_act_fn": "gelu",
    },
}


def switch(name: str, dtype: torch.dtype) -> SwitchTransformersForConditionalGeneration:
    config = SwitchTransformersConfig(decoder_start_token_id=0, use_cache=False, **SIZES, **CONFIGS[name])  # type: ignore[call-arg]
    return widened(SwitchTransformersForConditionalGeneration(config).to(dtype))


def widened(model: Any) -> Any:
    """Their routers in the precision of the model: as they are, they turn to float32."""
    for part in model.modules():
        if isinstance(part, SwitchTransformersTop1Router):
            part.dtype = part.classifier.weight.dtype
    return model


@pytest.fixture
def exact_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their RMSNorm in the precision of the model: as it is, it takes the mean square in float32."""

    def forward(self: SwitchTransformersLayerNorm, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(SwitchTransformersLayerNorm, "forward", forward)


@pytest.mark.usefixtures("exact_norm")
# In float32 each side lies up to 3e-5 from float64 (24 draws), by rounding that differs between processors:
# two such errors may add up, and one processor gave 4.5e-5. That both are one function float64 proves.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 10 * FLOAT32), (torch.float64, FLOAT64)])
@pytest.mark.parametrize("name", CONFIGS)
def test_reads_switch(name: str, dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    theirs = switch(name, dtype)
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs"), dtype=dtype).eval()
    with KeepFloat64():
        check_seq2seq_logits(ours, theirs, (23, 19), tolerance)
    if name == "little room":  # it is seen to matter
        tokens, source = torch.randint(61, (2, 19)), torch.randint(61, (2, 23))
        logits = ours(tokens, source_BS=source).logits_BTV
        for part in ours.modules():
            if hasattr(part, "route"):
                part.config = replace(part.config, capacity=None)  # type: ignore[type-var]
        assert (ours(tokens, source_BS=source).logits_BTV - logits).abs().max() > 1e-3


OURS = EncoderDecoderConfig(
    d_model=21,
    num_layers=2,
    d_ff=11,
    tie_embeddings=True,
    attention=AttentionConfig(num_heads=3, scale=1.0),
    feedforward=FeedForwardConfig(activation="relu", gated=False),
    head=HeadConfig(scale=True),
    feedforwards=["dense", "experts"],
    experts=ExpertsConfig(num_experts=3, experts_per_token=1, renormalise=False, capacity=40),
)


@pytest.mark.usefixtures("exact_norm")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_encoder_layers": 4, "norm_eps": 1e-3},
        {"encoder_feedforwards": ["experts"]},
        {"tie_embeddings": False, "head": HeadConfig()},
    ],
)
def test_writes_switch(changes: dict[str, Any], tmp_path: Path) -> None:
    model = EncoderDecoder(replace(OURS, **changes), vocab_size=59, max_length=33).double().eval()
    redraw(model)
    save_folder(model, tmp_path / "ours")
    cls = SwitchTransformersForConditionalGeneration
    theirs = widened(open_theirs(cls, tmp_path / "ours", torch.float64, use_cache=False))
    with KeepFloat64():
        check_seq2seq_logits(model, theirs, (17, 20), FLOAT64)
    again = load_folder(tmp_path / "ours", dtype=torch.float64).state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"feedforwards": ["experts", "dense"]},
            r"Switch: .*feedforwards=\[experts,dense\] \(not \[dense,experts\]\)",
        ),
        (
            {"experts": replace(OURS.experts, capacity=None)},
            r"Switch: experts\.capacity=None \(not 33\)",
        ),
        ({"experts": replace(OURS.experts, experts_per_token=2)}, r"experts\.experts_per_token=2 \(not 1\)"),
    ],
)
def test_settings_that_switch_lacks_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export_config(EncoderDecoder(replace(OURS, **changes), vocab_size=59, max_length=33))
