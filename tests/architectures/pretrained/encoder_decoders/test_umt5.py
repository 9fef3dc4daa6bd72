"""Parity of UMT5 with the Hugging Face library, in both directions and in generation."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import UMT5Config, UMT5ForConditionalGeneration
from transformers.models.umt5.modeling_umt5 import UMT5LayerNorm

from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained import load_folder, save_folder
from tests.architectures.pretrained.parity import FLOAT32, FLOAT64, open_theirs, redraw, save_theirs
from tests.architectures.pretrained.seq2seq_parity import check_seq2seq_generate, check_seq2seq_logits


@pytest.fixture
def exact_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their RMSNorm in the precision of the model: as it is, it takes the mean square in float32."""

    def forward(self: UMT5LayerNorm, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(UMT5LayerNorm, "forward", forward)


def umt5(*, untied: bool) -> UMT5ForConditionalGeneration:
    config = UMT5Config(  # type: ignore[call-arg]
        vocab_size=61,
        d_model=20,
        d_kv=6,
        d_ff=37,
        num_heads=5,
        num_layers=3,
        num_decoder_layers=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=11,
        decoder_start_token_id=0,
    )
    model = UMT5ForConditionalGeneration(config)
    if untied:
        model.lm_head.weight = nn.Parameter(torch.zeros_like(model.lm_head.weight))
    return model


@pytest.mark.parametrize("untied", [False, True])
def test_reads_umt5(untied: bool, tmp_path: Path) -> None:
    theirs = umt5(untied=untied)
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs")).eval()
    assert ours.config.tie_embeddings is not untied  # type: ignore[attr-defined]
    # From float64, their logits are as far away.
    check_seq2seq_logits(ours, theirs, (23, 19), 3 * FLOAT32)


@pytest.mark.usefixtures("exact_norm")
def test_reads_umt5_in_float64(tmp_path: Path) -> None:
    theirs = umt5(untied=False).double()
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs"), dtype=torch.float64).eval()
    check_seq2seq_logits(ours, theirs, (23, 19), FLOAT64)
    check_seq2seq_generate(ours, theirs, 13, 21)


def own(**changes: object) -> EncoderDecoder:
    settings = {
        "d_model": 21,
        "num_layers": 2,
        "num_encoder_layers": 3,
        "tie_embeddings": True,
        "attention": AttentionConfig(num_heads=3, scale=1.0),
        "positions": PositionsConfig(kind="relative", num_buckets=12, max_distance=17, by_layer=True),
        "head": HeadConfig(scale=True),
        **changes,
    }
    return EncoderDecoder(EncoderDecoderConfig(**settings), vocab_size=59, max_length=33)  # type: ignore[arg-type]


@pytest.mark.usefixtures("exact_norm")
def test_writes_umt5(tmp_path: Path) -> None:
    model = own().double().eval()
    redraw(model)
    save_folder(model, tmp_path / "ours")
    theirs = open_theirs(UMT5ForConditionalGeneration, tmp_path / "ours", torch.float64)
    check_seq2seq_logits(model, theirs, (17, 20), FLOAT64)
    again = load_folder(tmp_path / "ours", dtype=torch.float64)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())


def test_a_head_that_is_not_scaled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"UMT5: head\.scale=False \(not True\)"):
        save_folder(own(head=HeadConfig()), tmp_path / "ours")
