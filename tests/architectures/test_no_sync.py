"""A training step keeps no GPU waiting for the host, and tells it the same whatever the data: shown on a CPU.

Two ways, of which each sees what the other does not. Tensors of the meta device have no values, so what
reads one fails; and on them models take the paths that they take wherever there is no CPU. Recorded is what
a CPU with real values does, where PyTorch's own operations are all there is.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.linear_attention import (
    KDA,
    GatedDeltaNet,
    GatedDeltaNetConfig,
    KDAConfig,
)
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.embedding import Embedding
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.experiments.training.optimizer_step import clip_gradients, gradient_norm
from archbench.experiments.training.optimizers.adamw import AdamW
from tests.recorded import Recorded, without_cpp_kernels

BATCH, LENGTH, VOCABULARY, WIDTH = 2, 24, 32, 16
GROUPED: dict[str, Any] = {"d_ff": 32, "experts": ExpertsConfig(dispatch="grouped", bias_rate=0.001)}
"""Experts as they run on a GPU in bfloat16."""
MODELS = {
    "decoder": (Decoder, DecoderConfig(d_model=WIDTH)),
    "forgetting": (Decoder, DecoderConfig(d_model=WIDTH, attention=AttentionConfig(forget_gate=True))),
    "differential": (Decoder, DecoderConfig(d_model=WIDTH, attention=AttentionConfig(differential=True))),
    "mixture_of_depths": (Decoder, DecoderConfig(d_model=WIDTH, mixture_of_depths=0.25)),
    "encoder": (Encoder, EncoderConfig(d_model=WIDTH)),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig(d_model=WIDTH)),
    "s4": (S4, S4Config(d_model=WIDTH)),
    "mamba": (Mamba, MambaConfig(d_model=WIDTH)),
    "mamba2": (Mamba2, Mamba2Config(d_model=WIDTH, num_heads=2)),
    "gated_deltanet": (GatedDeltaNet, GatedDeltaNetConfig(d_model=WIDTH)),
    "kda": (KDA, KDAConfig(d_model=WIDTH)),
    "moe": (MoE, MoEConfig(d_model=WIDTH, **GROUPED)),
    "masked_diffusion": (MaskedDiffusion, MaskedDiffusionConfig(d_model=WIDTH)),
    "hybrid": (Hybrid, HybridConfig(d_model=WIDTH)),
    "rwkv7, mamba3": (Hybrid, HybridConfig(d_model=WIDTH, layers=["rwkv7", "mamba3"])),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cpp_kernels(monkeypatch)
    monkeypatch.setattr(Embedding, "_check_length", lambda *_: None)  # reads positions, on a CPU alone


def make(name: str, device: str = "cpu") -> Backbone:
    cls, config = MODELS[name]
    with torch.device(device):
        return cls(config, vocab_size=VOCABULARY, max_length=LENGTH).train()


def tokens(device: str = "cpu", seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator).to(device)


def loss_of(model: Backbone, token_BT: Tensor) -> Tensor:
    source_BS = token_BT.flip(1) if model.capabilities.encoder_decoder else None
    output = model(token_BT, source_BS=source_BS)
    loss = F.cross_entropy(output.logits_BTV.flatten(0, 1).float(), token_BT.flatten())
    return loss + sum(output.auxiliary.values(), torch.zeros_like(loss))


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_read_where_nothing_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The meta device knows no autocast.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    model = make(name, "meta")
    if name == "moe":
        model = model.bfloat16()  # what GPUs have a grouped product for
    loss_of(model, tokens("meta")).backward()
    model.after_step()
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_step_waits_for_nothing_and_is_the_same_for_all_data(name: str) -> None:
    model = make(name)
    optimizer = AdamW().build(model)
    parameters = list(model.parameters())
    runs = []
    for seed in range(3):
        token_BT = tokens(seed=seed)
        with Recorded() as recorded:
            loss_of(model, token_BT).backward()
            clip_gradients(parameters, 1.0, gradient_norm(parameters))
            optimizer.step()
            model.after_step()
            optimizer.zero_grad(set_to_none=True)
        assert not recorded.waits
        runs.append(recorded.kernels)
    assert runs[1] == runs[2]  # the first has the optimizer's moments to make


@pytest.mark.parametrize(
    ("experts", "waits"),
    [
        # In float32 each expert is a product of its own, whose rows the host must know.
        (ExpertsConfig(dispatch="loop"), ["tolist"]),
        (ExpertsConfig(dispatch="padded"), ["_local_scalar_dense"]),
        (ExpertsConfig(dispatch="reference"), []),
        # How many visits are left out is known when they are counted.
        (ExpertsConfig(dispatch="grouped", capacity_factor=1.0), ["_local_scalar_dense"]),
    ],
)
def test_what_other_ways_to_run_experts_wait_for(experts: ExpertsConfig, waits: list[str]) -> None:
    config = MoEConfig(d_model=WIDTH, d_ff=32, num_layers=1, experts=experts)
    model = MoE(config, vocab_size=VOCABULARY, max_length=LENGTH).train()
    with Recorded() as recorded:
        loss_of(model, tokens()).backward()
    assert set(recorded.waits) == set(waits)


def test_a_wait_is_recorded_however_it_comes_about() -> None:
    x, mask = torch.arange(4.0), torch.tensor([True, False, True, False])
    ways = (
        lambda: x.sum().item(),
        lambda: float(x.max()),
        lambda: bool(mask.any()),
        lambda: mask.nonzero(),
        lambda: x[mask],
        lambda: x.masked_select(mask),
        lambda: x.clone().__setitem__(mask, torch.ones(2)),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.unique(),
        lambda: torch.bincount(x.long()),
        lambda: torch.repeat_interleave(x, x.long()),
        lambda: torch.equal(x, x),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: x.new_tensor([1.0]),
    )
    for way in ways:
        with Recorded() as recorded:
            way()
        assert recorded.waits
    index = torch.tensor([1, 2])
    with Recorded() as recorded:
        (x[index] * 2).sum()
        torch.where(mask, x, 0.0).masked_fill(mask, 1.0)
        x.repeat_interleave(2)
    assert not recorded.waits
