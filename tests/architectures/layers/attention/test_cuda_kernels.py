"""Which of PyTorch's attention kernels is asked for on a GPU. There is none here: tensors say that they are
on one, and PyTorch's attention is a stand-in that notes what it is asked.

Shapes: B batch, H heads, T queries, S keys, E head_dim.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from archbench.architectures.layers.attention import functional
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.attention.functional import Scores, attend
from archbench.architectures.layers.attention.latent import LatentAttention
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.positions import PositionsConfig


@pytest.fixture
def cudnn_asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call of PyTorch's attention, whether cuDNN may serve it."""
    asked: list[bool] = []

    def stand_in(q: Tensor, k: Tensor, v: Tensor, **others: Any) -> Tensor:
        asked.append(torch.backends.cuda.cudnn_sdp_enabled())
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
        return torch.empty_like(q)

    monkeypatch.setattr(functional.F, "scaled_dot_product_attention", stand_in)
    return asked


class OnGPU(Tensor):
    """A tensor that says it is on a GPU; so do all that are computed from it."""

    is_cuda = True


def on_gpu(*shape: int) -> Tensor:
    return torch.zeros(*shape).as_subclass(OnGPU)


def tensors(queries: int, keys: int) -> list[Tensor]:
    return [on_gpu(2, 2, length, 4) for length in (queries, keys, keys)]


def test_cudnn_serves_plain_training_alone(cudnn_asked: list[bool]) -> None:
    scores = Scores(scale=1.0)
    attend(*tensors(8, 8), scores, kernel="sdpa", causal=True)
    attend(*tensors(8, 8), scores, kernel="sdpa")
    assert cudnn_asked == [True, True]
    cudnn_asked.clear()
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    attend(*tensors(8, 8), scores, kernel="sdpa", mask=mask)
    attend(*tensors(8, 8), scores, kernel="sdpa", bias=on_gpu(1, 2, 8, 8))
    attend(*tensors(1, 9), scores, kernel="sdpa")
    attend(*tensors(1, 1), scores, kernel="sdpa")
    attend(*tensors(8, 8), scores, kernel="sdpa", sink_H=on_gpu(2), causal=True)
    assert cudnn_asked == [False] * 5
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_unpadded_documents_pass_over_cudnn(cudnn_asked: list[bool]) -> None:
    attention = Attention(
        8, AttentionConfig(num_heads=2), causal=False, window=None, positions=PositionsConfig()
    )
    positions_1T = torch.arange(9)[None]
    q, k, v = (on_gpu(1, 2, 9, 4) for _ in range(3))
    attention.attend_whole(q, k, v, Context(positions_BT=positions_1T, lengths=[4, 5]))
    assert cudnn_asked == [False, False]


def test_the_first_tokens_in_a_cache_are_plain_causal_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any device, and no mask is made; so a GPU runs the kernel of training, not FlexAttention."""
    calls: list[dict[str, Any]] = []
    honest = functional.F.scaled_dot_product_attention
    monkeypatch.setattr(
        functional.F,
        "scaled_dot_product_attention",
        lambda *tensors, **others: calls.append(others) or honest(*tensors, **others),
    )
    for cache in ("auto", "paged", "int8"):
        config = (
            AttentionConfig(num_heads=2) if cache == "auto" else AttentionConfig(num_heads=2, cache=cache)
        )
        attention = (
            Attention(8, config, causal=True, window=None, positions=PositionsConfig()).double().eval()
        )
        x_BTD = torch.randn(2, 6, 8, dtype=torch.float64)
        state = attention.start(2, 16)
        calls.clear()
        first = attention.step(x_BTD[:, :4], state, Context.next(x_BTD[:, :4, 0], [0, 0], None))
        assert [(call["is_causal"], call["attn_mask"]) for call in calls] == [(True, None)], cache
        rest = attention.step(x_BTD[:, 4:], state, Context.next(x_BTD[:, 4:, 0], [4, 4], None))
        assert calls[1]["attn_mask"] is not None
        whole = attention(x_BTD, Context.whole(x_BTD[..., 0], None, None))
        torch.testing.assert_close(
            torch.cat([first, rest], dim=1), whole, atol=0.05 if cache == "int8" else 1e-9, rtol=0
        )


def test_latents_are_absorbed_for_a_single_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LatentConfig(kv_rank=6, q_rank=None, nope_dim=3, rope_dim=4, v_dim=5, absorbed=True)
    config = AttentionConfig(num_heads=3, latent=settings)
    positions = PositionsConfig(interleaved=True)
    attention = LatentAttention(8, config, causal=True, positions=positions, positional=True).eval()
    asked: list[int] = []
    honest = attention._absorbed
    monkeypatch.setattr(attention, "_absorbed", lambda q, *o: asked.append(q.shape[2]) or honest(q, *o))
    state = attention.start(1, 16)
    for begin, end in ((0, 4), (4, 6), (6, 7), (7, 8)):
        x_BTD = torch.randn(1, end - begin, 8)
        attention.step(x_BTD, state, Context.next(x_BTD[..., 0], [begin], None))
    assert asked == [1, 1]


@pytest.mark.parametrize("masked", [True, False], ids=["documents", "causal"])
def test_a_block_mask_is_made_once_for_all_layers(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    honest = flex.create_block_mask
    monkeypatch.setattr(flex, "create_block_mask", lambda *a, **k: made.append(1) or honest(*a, **k))
    config = AttentionConfig(num_heads=2, kernel="flex")
    layers = [Attention(8, config, causal=True, window=None, positions=PositionsConfig()) for _ in range(3)]
    x_BTD = torch.randn(2, 6, 8)
    documents_BT = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]]) if masked else None
    with torch.no_grad():
        for _ in range(2):  # batches
            context = Context.whole(x_BTD[..., 0], None, documents_BT)
            for layer in layers:
                found = layer(x_BTD, context)
                layer.config = AttentionConfig(num_heads=2, kernel="reference")
                torch.testing.assert_close(found, layer(x_BTD, context), atol=1e-5, rtol=0)
                layer.config = config
    assert len(made) == 2
