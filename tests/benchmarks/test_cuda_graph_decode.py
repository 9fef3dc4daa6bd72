"""Steps of fixed shapes give what steps give, run the same kernels every time, and read nothing back."""

from __future__ import annotations

import pytest
import torch

from architectures.backbone import Backbone
from architectures.backbones.decoder import Decoder, DecoderConfig
from architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from architectures.backbones.hybrid import Hybrid, HybridConfig
from architectures.backbones.linear_attention import GatedDeltaNet, GatedDeltaNetConfig
from architectures.backbones.mamba import Mamba, MambaConfig
from architectures.backbones.mamba2 import Mamba2, Mamba2Config
from architectures.backbones.moe import MoE, MoEConfig
from architectures.backbones.s4 import S4, S4Config
from architectures.layers.attention.config import AttentionConfig, LatentConfig
from architectures.layers.moe.config import ExpertsConfig
from architectures.layers.positions import PositionsConfig
from tests import ROOT
from tests.architectures.conformance import check_close, enliven, random_inputs
from tests.recorded import Recorded, without_cpp_kernels

WIDTH, VOCABULARY, ROOM, PROMPT, TOKENS = 16, 23, 14, 5, 8
GROUPED = ExpertsConfig(num_experts=4, experts_per_token=2, dispatch="grouped")
LATENT = AttentionConfig(num_heads=2, latent=LatentConfig(kv_rank=6, nope_dim=4, rope_dim=2, v_dim=4))
MODELS = {
    "decoder": (Decoder, DecoderConfig(d_model=WIDTH)),
    "window": (
        Decoder,
        DecoderConfig(d_model=WIDTH, attention=AttentionConfig(layers=["global", "local"], window=4)),
    ),
    "int8": (Decoder, DecoderConfig(d_model=WIDTH, attention=AttentionConfig(cache="int8"))),
    "alibi": (Decoder, DecoderConfig(d_model=WIDTH, positions=PositionsConfig(kind="alibi"))),
    "latent": (Decoder, DecoderConfig(d_model=WIDTH, attention=LATENT)),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig(d_model=WIDTH)),
    "moe": (MoE, MoEConfig(d_model=WIDTH, d_ff=32, experts=GROUPED)),
    "mamba": (Mamba, MambaConfig(d_model=WIDTH)),
    "mamba2": (Mamba2, Mamba2Config(d_model=WIDTH, num_heads=2)),
    "s4": (S4, S4Config(d_model=WIDTH)),
    "gated_deltanet": (GatedDeltaNet, GatedDeltaNetConfig(d_model=WIDTH)),
    "hybrid": (Hybrid, HybridConfig(d_model=WIDTH)),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    without_cpp_kernels(monkeypatch)


def make(name: str) -> Backbone:
    cls, config = MODELS[name]
    return enliven(cls(config, vocab_size=VOCABULARY, max_length=ROOM).eval())


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_fixed_shapes_is_the_step_and_always_the_same_kernels(name: str) -> None:
    from cuda_graph_decode import StaticDecoder

    model = make(name)
    inputs = random_inputs(model, 3, PROMPT + TOKENS)
    plain, fixed = (model.start(3, ROOM, source_BS=inputs.source_BS) for _ in range(2))
    for state in (plain, fixed):
        model.step(inputs.tokens_BT[:, :PROMPT], state)
    step = StaticDecoder(model, fixed, ROOM)
    runs = []
    for token_B1 in inputs.tokens_BT[:, PROMPT:].split(1, dim=1):
        expected_B1V = model.step(token_B1, plain)
        with Recorded() as recorded:
            found_B1V = step(token_B1)
        check_close(found_B1V, expected_B1V, f"logits after {plain.length} tokens")
        assert not recorded.waits
        runs.append(recorded.kernels)
    assert step.state.lengths == plain.lengths
    assert all(run == runs[0] for run in runs)


def test_plain_steps_of_a_transformer_have_shapes_that_grow() -> None:
    """So the comparison above can fail, and so a graph of one such step could not be used for another."""
    model = make("decoder")
    state = model.start(1, ROOM)
    runs = []
    for _ in range(2):
        with Recorded() as recorded:
            model.step(torch.zeros(1, 1, dtype=torch.int64), state)
        runs.append(recorded.kernels)
    assert runs[0] != runs[1]


def test_what_has_no_fixed_shapes_is_refused() -> None:
    from cuda_graph_decode import StaticDecoder

    model = make("decoder")
    state = model.start(2, ROOM)
    state.lengths = [1, 2]
    with pytest.raises(ValueError, match="rows of one length"):
        StaticDecoder(model, state, ROOM)
    paged = Decoder(
        DecoderConfig(d_model=WIDTH, attention=AttentionConfig(cache="paged")),
        vocab_size=VOCABULARY,
        max_length=ROOM,
    )
    with pytest.raises(ValueError, match=r"attention\.cache=contiguous"):
        StaticDecoder(paged, paged.start(1, ROOM), ROOM)
    full = model.start(1, 1)
    step = StaticDecoder(model, full, 1)
    step(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="room for 1 tokens, not for 2"):
        step(torch.zeros(1, 1, dtype=torch.int64))
