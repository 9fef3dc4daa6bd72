"""One token of a few sequences by the C++ kernels, against the same model by PyTorch in float64.

Shapes: B batch, T length, S source.
"""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder
from archbench.architectures.backbones.hybrid import Hybrid
from archbench.architectures.backbones.mamba import Mamba
from archbench.architectures.backbones.mamba2 import Mamba2
from archbench.architectures.backbones.moe import MoE
from archbench.architectures.backbones.stack import Stack
from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.kernels.cpu import build
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.decode_steps import ROWS, CompiledDecodingState
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from tests.architectures.conformance import enliven

pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())

VOCABULARY = 23
ROOM = 45
READ = 5
"""Tokens read in one piece before the others, one at a time."""


def make_model(cls: type[Backbone], **settings: Any) -> Backbone:
    config = cls.Config(**{"d_model": 36, "num_layers": 2} | settings)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = enliven(cls(config, vocab_size=VOCABULARY, max_length=ROOM)).eval()
    for name, buffer in model.named_buffers():
        if "selection" in name:
            buffer.normal_(0, 0.1)
    return model


def attention(**settings: Any) -> AttentionConfig:
    return AttentionConfig(**{"num_heads": 3} | settings)


def positions(kind: str = "rope", **settings: Any) -> PositionsConfig:
    return PositionsConfig(kind=kind, **settings)


EXPERTS = {"num_experts": 5, "experts_per_token": 3}
SCALING = RotaryScaling(kind="yarn", factor=3.0, original_length=8)
MODELS = {
    "llama": lambda: make_model(Decoder, attention=attention()),
    "grouped, biases": lambda: make_model(
        Decoder,
        attention=attention(num_heads=6, num_kv_heads=2, bias=True, out_bias=True, scale=0.3),
        feedforward=FeedForwardConfig(bias=True, activation="gelu", gated=False),
        block=BlockConfig(norm="layernorm"),
        d_ff=50,
    ),
    "multi-query, partly rotated": lambda: make_model(
        Decoder,
        attention=attention(num_heads=2, num_kv_heads=1, head_dim=70),
        positions=positions(fraction=0.6, interleaved=True, scaling=SCALING),
        feedforward=FeedForwardConfig(activation="gelu_tanh"),
        block=BlockConfig(norm="rmsnorm_offset", placement="sandwich"),
    ),
    "norms of heads": lambda: make_model(
        Decoder, attention=attention(num_heads=6, num_kv_heads=2, qk_norm="head"), positions=positions()
    ),
    "norms of queries and keys": lambda: make_model(
        Decoder,
        attention=attention(num_heads=6, num_kv_heads=3, qk_norm="full"),
        block=BlockConfig(norm="layernorm"),
    ),
    "learned positions": lambda: make_model(
        Decoder,
        attention=attention(),
        positions=positions("learned"),
        feedforward=FeedForwardConfig(activation="relu_squared", gated=False),
        block=BlockConfig(norm="layernorm_no_bias", placement="post"),
    ),
    "parallel": lambda: make_model(
        Decoder,
        attention=attention(),
        positions=positions("alibi"),
        block=BlockConfig(norm="layernorm", parallel=True, shared_norm=True),
    ),
    "parallel, two norms": lambda: make_model(
        Decoder,
        attention=attention(),
        positions=positions(layers=["positional", "none"]),
        block=BlockConfig(parallel=True),
    ),
    "buckets": lambda: make_model(
        Decoder,
        attention=attention(),
        positions=positions("relative", num_buckets=8, max_distance=20),
        feedforward=FeedForwardConfig(activation="relu", gated=False),
        block=BlockConfig(placement="output"),
    ),
    "experts": lambda: make_model(MoE, attention=attention(), experts=ExpertsConfig(**EXPERTS)),
    "shared experts": lambda: make_model(
        MoE,
        attention=attention(),
        experts=ExpertsConfig(
            **EXPERTS, num_shared_experts=2, shared_gate=True, score="sigmoid", scaling=1.7, bias_rate=0.1
        ),
    ),
    "experts as they are": lambda: make_model(
        MoE,
        attention=attention(),
        experts=ExpertsConfig(**EXPERTS, renormalise=False, num_shared_experts=1),
        feedforward=FeedForwardConfig(gated=False),
    ),
    "mamba": lambda: make_model(Mamba, d_model=40),
    "mamba, norms": lambda: make_model(
        Mamba, d_model=24, selection_norm=True, d_state=7, conv_width=2, bias=True
    ),
    "mamba, norms without weights": lambda: make_model(
        Mamba, d_model=24, selection_norm=True, selection_norm_weight=False, selection_norm_eps=0.1
    ),
    "mamba2": lambda: make_model(
        Mamba2, num_heads=3, num_groups=3, d_state=18, dt_ceiling=0.9, dt_floor=0.01
    ),
    "mamba2, norm first": lambda: make_model(
        Mamba2, num_heads=4, num_groups=2, norm="before_gate", conv_width=1
    ),
    "mamba2, no norm": lambda: make_model(Mamba2, num_heads=2, norm="none", conv_bias=False),
    "source": lambda: make_model(
        EncoderDecoder, attention=attention(), positions=positions("relative"), block=BlockConfig()
    ),
    "source, biases by layer": lambda: make_model(
        EncoderDecoder, attention=attention(), positions=positions("relative", by_layer=True)
    ),
    "grouped source": lambda: make_model(
        EncoderDecoder,
        attention=attention(num_heads=6, num_kv_heads=3, bias=True, qk_norm="head"),
        block=BlockConfig(norm="layernorm", placement="post"),
    ),
    "mixed": lambda: make_model(Hybrid, layers=["attention", "gla"], attention=attention()),
}


def begin(model: Backbone, batch: int) -> DecodingState:
    if not model.capabilities.encoder_decoder:
        return model.start(batch, ROOM)
    source_BS = (torch.arange(11) * torch.arange(1, batch + 1)[:, None]) % VOCABULARY
    valid_BS = torch.arange(11) < torch.arange(3, batch + 3)[:, None]
    return model.start(batch, ROOM, source_BS=source_BS, source_valid_BS=valid_BS)


@torch.no_grad()
def decode(model: Backbone, tokens_BT: Tensor, *, valid_BT: Tensor | None = None) -> Tensor:
    """Logits of a piece, then of single tokens, with other rows from the middle on."""
    state = begin(model, len(tokens_BT))
    found = [model.step(tokens_BT[:, :READ], state, valid_BT)[:, -1]]
    half = (READ + tokens_BT.shape[1]) // 2
    for t in range(READ, tokens_BT.shape[1]):
        if t == half:
            rows = [*reversed(range(1, len(tokens_BT))), 0, 0]
            tokens_BT = tokens_BT[rows]
            state.select(rows)
        found.append(model.step(tokens_BT[:, t : t + 1], state)[:, -1])
    return torch.cat(found)


def check(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() / expected.abs().max() < 3e-5


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_pytorch(name):
    model = MODELS[name]()
    assert model.kernels()["decoding"] == ("cpp in 1 of 2 blocks" if name == "mixed" else "cpp")
    for batch in (1, 3, 9):
        tokens_BT = torch.randint(VOCABULARY, (batch, 18), generator=torch.Generator().manual_seed(batch))
        # Prompts of different lengths, but for a batch of three.
        valid_BT = torch.arange(READ) < 2 + torch.arange(batch)[:, None] % (READ - 1)
        valid = None if batch == 3 else valid_BT
        found = decode(model.float(), tokens_BT, valid_BT=valid)
        check(found, decode(model.double(), tokens_BT, valid_BT=valid))


def test_a_long_context_in_wide_layers_is_read_whole():
    torch.manual_seed(0)
    config = DecoderConfig(d_model=272, num_layers=1, attention=AttentionConfig(num_heads=2))
    model = Decoder(config, vocab_size=VOCABULARY, max_length=700).eval()
    tokens_BT = torch.randint(VOCABULARY, (2, 700))
    with torch.no_grad():
        state = model.start(2, 700)
        model.step(tokens_BT[:, :600], state)
        found = torch.cat([model.step(tokens_BT[:, t : t + 1], state) for t in range(600, 700)], dim=1)
        check(found, model.double()(tokens_BT).logits_BTV[:, 600:])


@pytest.mark.parametrize("name", ["llama", "shared experts", "mamba", "mamba2"])
@torch.no_grad()
def test_neither_threads_nor_other_rows_change_a_bit(name):
    """Wide enough that the work is shared out."""
    small = MODELS[name]()
    same = {field.name: getattr(small.config, field.name) for field in dataclasses.fields(small.config)}
    model = make_model(type(small), **same | {"d_model": 240, "num_layers": 1})
    assert isinstance(model, Stack)
    x_B1D = torch.randn(ROWS, 1, 240)
    before, found = torch.get_num_threads(), []
    try:
        for threads, rows in ((1, ROWS), (2, ROWS), (3, ROWS), (2, 1), (2, 3), (1, 6), (1, 9)):
            torch.set_num_threads(threads)
            state = model.start(ROWS, ROOM)
            state.select([*range(rows)])
            assert isinstance(state, CompiledDecodingState)
            step = state.steps[0]
            assert step is not None
            x_BTD = x_B1D[:rows]
            for _ in range(2):
                context = model.next_context(torch.zeros(rows, 1), state.lengths, None)
                x_BTD = step(x_BTD, state.layers[0], context)
            found.append(x_BTD)
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(found[0][: len(other)], other)


def test_what_is_not_plain_keeps_to_pytorch(monkeypatch):
    plain = {"attention": attention()}
    assert make_model(Decoder, **plain).kernels()["decoding"] == "cpp"
    others = [
        {"attention": attention(sinks=True)},
        {"attention": attention(output_gate=True)},
        {"attention": attention(softcap=3.0)},
        {"attention": attention(window=4, layers=["local"])},
        {"attention": attention(cache="paged")},
        {"attention": attention(cache="int8")},
        {"attention": attention(kernel="sdpa")},
        {"attention": attention(kernel="reference")},
        plain | {"feedforwards": ["experts"], "experts": ExpertsConfig(capacity=1)},
        plain | {"feedforwards": ["experts"], "experts": ExpertsConfig(num_groups=2)},
        plain | {"feedforwards": ["experts"], "experts": ExpertsConfig(dispatch="loop")},
        plain | {"feedforwards": ["experts"], "experts": ExpertsConfig(bias=True)},
        plain | {"feedforward": FeedForwardConfig(limit=0.1)},
        plain | {"feedforward": FeedForwardConfig(activation="quick_gelu")},
    ]
    for settings in others:
        assert make_model(Decoder, **settings).kernels()["decoding"] == "torch", settings
    assert make_model(Mamba, d_model=40, scan="torch").kernels()["decoding"] == "torch"
    assert make_model(Mamba2, num_heads=2, scan="torch").kernels()["decoding"] == "torch"
    for dtype in (torch.bfloat16, torch.float64):
        assert make_model(Decoder, **plain).to(dtype).kernels()["decoding"] == "torch"
    assert make_model(Decoder, **plain).to("meta").kernels()["decoding"] == "torch"
    monkeypatch.setattr(build, "problem", lambda: "no C++ compiler")
    assert make_model(Decoder, **plain).kernels()["decoding"] == "torch"


@torch.no_grad()
def test_pieces_padding_autocast_training_and_many_rows_keep_to_pytorch():
    model = make_model(Decoder, attention=attention())

    def refuse(*arguments: object) -> Tensor:
        raise AssertionError("a step by the C++ kernels")

    def state_of(rows: int) -> DecodingState:
        state = model.start(rows, ROOM)
        assert isinstance(state, CompiledDecodingState) != model.training
        if isinstance(state, CompiledDecodingState):
            state.steps = [refuse for _ in state.steps]
        return state

    one_BT = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(AssertionError, match="by the C"):
        model.step(one_BT, state_of(2))
    model.step(one_BT.expand(2, 3), state_of(2))
    model.step(one_BT, state_of(2), torch.ones(2, 1, dtype=torch.bool))
    model.step(one_BT[:1].expand(ROWS + 1, 1), state_of(ROWS + 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.step(one_BT, state_of(2))
    model.train()
    model.step(one_BT, state_of(2))


@torch.no_grad()
def test_a_full_cache_is_an_error():
    model = make_model(Decoder, attention=attention())
    state, token_BT = model.start(1, 2), torch.zeros(1, 1, dtype=torch.long)
    for _ in range(2):
        model.step(token_BT, state)
    with pytest.raises(ValueError, match="room for 2 tokens, not for 3"):
        model.step(token_BT, state)


@torch.no_grad()
def test_weights_may_change_in_place_between_steps():
    model = make_model(Decoder, attention=attention())
    state, token_BT = model.start(1, ROOM), torch.zeros(1, 1, dtype=torch.long)
    for parameter in model.parameters():
        parameter.mul_(1.1)
    check(model.step(token_BT, state), model.double()(token_BT).logits_BTV)
