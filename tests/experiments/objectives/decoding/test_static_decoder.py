"""Steps of fixed shapes give what steps give, run the same kernels every time, and read nothing back.

No CUDA graph is captured here: ``tests.recorded.Tape`` stands in for it. ``tests/gpu`` has the real one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from archbench.architectures import fast_paths
from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.block_diffusion import BlockDiffusion, BlockDiffusionConfig
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.linear_attention import GatedDeltaNet, GatedDeltaNetConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding import steps as decoding_steps
from archbench.experiments.objectives.decoding.prefill import PrefillState
from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig, generate
from archbench.experiments.objectives.decoding.steps import StaticDecoder, Steps, problem
from tests.architectures.conformance import check_close, enliven, random_inputs
from tests.recorded import Recorded, capture_on_a_cpu, without_cpp_kernels

WIDTH, ROOM, PROMPT, TOKENS = 16, 14, 5, 8
WORDS = Vocabulary(num_symbols=16, num_sentinels=0)
VOCABULARY = WORDS.size
GROUPED = ExpertsConfig(num_experts=4, experts_per_token=2, dispatch="grouped")
LATENT = AttentionConfig(num_heads=2, latent=LatentConfig(kv_rank=6, nope_dim=4, rope_dim=2, v_dim=4))
DYNAMIC = RotaryScaling(kind="dynamic", factor=2.0, original_length=7)
MODELS = {
    "decoder": (Decoder, DecoderConfig(d_model=WIDTH)),
    "window": (
        Decoder,
        DecoderConfig(d_model=WIDTH, attention=AttentionConfig(layers=["global", "local"], window=4)),
    ),
    "int8": (Decoder, DecoderConfig(d_model=WIDTH, attention=AttentionConfig(cache="int8"))),
    "alibi": (Decoder, DecoderConfig(d_model=WIDTH, positions=PositionsConfig(kind="alibi"))),
    "dynamic": (Decoder, DecoderConfig(d_model=WIDTH, positions=PositionsConfig(scaling=DYNAMIC))),
    "latent": (Decoder, DecoderConfig(d_model=WIDTH, attention=LATENT)),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig(d_model=WIDTH)),
    "moe": (MoE, MoEConfig(d_model=WIDTH, d_ff=32, experts=GROUPED)),
    "mamba": (Mamba, MambaConfig(d_model=WIDTH)),
    "mamba2": (Mamba2, Mamba2Config(d_model=WIDTH, num_heads=2)),
    "s4": (S4, S4Config(d_model=WIDTH)),
    "gated_deltanet": (GatedDeltaNet, GatedDeltaNetConfig(d_model=WIDTH)),
    "hybrid": (Hybrid, HybridConfig(d_model=WIDTH)),
    "rwkv7, mamba3": (Hybrid, HybridConfig(d_model=WIDTH, layers=["rwkv7", "mamba3"])),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cpp_kernels(monkeypatch)


def make(name: str) -> Backbone:
    cls, config = MODELS[name]
    return enliven(cls(config, vocab_size=VOCABULARY, max_length=ROOM).eval())


def begun(model: Backbone) -> tuple[Tensor, DecodingState, StaticDecoder]:
    """Return the tokens to come (B, T), and two ways to go on after the prompt: a state, and fixed shapes."""
    inputs = random_inputs(model, 3, PROMPT + TOKENS)
    plain, fixed = (model.start(3, ROOM, source_BS=inputs.source_BS) for _ in range(2))
    for state in (plain, fixed):
        model.step(inputs.tokens_BT[:, :PROMPT], state)
    return inputs.tokens_BT[:, PROMPT:], plain, StaticDecoder(model, fixed, TOKENS)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_fixed_shapes_is_the_step_and_always_the_same_kernels(name: str) -> None:
    model = make(name)
    tokens_BT, plain, step = begun(model)
    runs = []
    for token_B1 in tokens_BT.split(1, dim=1):
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


@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_step_is_the_step_for_every_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a layer writes its state where it was, and a trial leaves nothing behind."""
    capture_on_a_cpu(monkeypatch)
    model = make(name)
    tokens_BT, plain, step = begun(model)
    step.capture()
    with monkeypatch.context() as patched:
        patched.setattr(model, "step_with_context", None)  # a graph calls no Python
        found = [step(token_B1).clone() for token_B1 in tokens_BT.split(1, dim=1)]
    for token_B1, found_B1V in zip(tokens_BT.split(1, dim=1), found, strict=True):
        check_close(found_B1V, model.step(token_B1, plain), f"logits after {plain.length} tokens")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingConfig(top_p=0.9, repetition_penalty=1.3)], ids=["greedy", "sampled"]
)
def test_generate_gives_the_tokens_of_plain_steps(
    name: str, sampling: SamplingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rows of which some end early, and one after another leaves the batch."""
    model = make(name)
    inputs = random_inputs(model, 4, PROMPT)
    captured = []

    def texts() -> list[list[int]]:
        start = PrefillState(
            state=model.start(4, ROOM, source_BS=inputs.source_BS), unread_BT=inputs.tokens_BT
        )
        return generate(
            model,
            start,
            WORDS,
            max_tokens=TOKENS + 1,
            generators=[torch.Generator().manual_seed(row) for row in range(4)],
            sampling=sampling,
            ended=lambda row, generated: len(generated) == 2 + 3 * row,
        )

    expected = texts()
    assert [len(text) for text in expected] == [2, 5, 8, 9]
    capture_on_a_cpu(monkeypatch)
    monkeypatch.setattr(decoding_steps, "captures", lambda device: True)
    monkeypatch.setattr(decoding_steps, "FEWEST", 2)
    capture = StaticDecoder.capture
    monkeypatch.setattr(StaticDecoder, "capture", lambda self: (captured.append(self), capture(self)))
    assert texts() == expected
    assert len(captured) == 1


def decoder(**settings: Any) -> Decoder:
    config = DecoderConfig(d_model=WIDTH, **settings)
    return Decoder(config, vocab_size=VOCABULARY, max_length=ROOM).eval()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (decoder(attention=AttentionConfig(cache="paged")), r"attention\.cache=contiguous"),
        (decoder(attention=AttentionConfig(num_heads=1, softcap=20.0)), "block mask"),
        (decoder().train(), "in training"),
        (
            MoE(MoEConfig(d_model=WIDTH, d_ff=32), vocab_size=VOCABULARY, max_length=ROOM).eval(),
            "how many tokens each expert takes",
        ),
        (
            BlockDiffusion(
                BlockDiffusionConfig(d_model=WIDTH), vocab_size=VOCABULARY, max_length=ROOM
            ).eval(),
            "one token at a time",
        ),
    ],
    ids=["paged", "softcap", "training", "loop over experts", "blockwise"],
)
def test_what_has_no_fixed_shapes_is_refused_and_generated_by_plain_steps(
    model: Backbone, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = model.start(1, ROOM)
    with pytest.raises(ValueError, match=reason):
        StaticDecoder(model, state, ROOM)
    monkeypatch.setattr(decoding_steps, "captures", lambda device: True)
    assert type(decoding_steps.make_steps(model, state, 2 * decoding_steps.FEWEST)) is Steps


def test_routing_that_is_recorded_is_not_left_to_a_graph() -> None:
    model = make("moe")
    state = model.start(1, ROOM)
    assert not problem(model, state)
    for part in model.modules():
        if isinstance(part, Experts):
            part.watcher = lambda routing, valid_BT: None
    assert "where each token is routed" in problem(model, state)


def test_rows_of_different_lengths_are_refused() -> None:
    model = decoder()
    state = model.start(2, ROOM)
    assert not problem(model, state)
    state.lengths = [1, 2]
    assert "different numbers of tokens" in problem(model, state)


def test_tokens_that_may_be_read_again_are_not_left_to_a_graph() -> None:
    scaling = RotaryScaling(kind="longrope", short_factors=[1.0] * 2, long_factors=[2.0] * 2)
    config = DecoderConfig(d_model=WIDTH, positions=PositionsConfig(scaling=scaling))
    model = Decoder(config, vocab_size=VOCABULARY, max_length=ROOM).eval()
    assert "longrope" in problem(model, model.start(1, ROOM))


def test_a_step_needs_room() -> None:
    model = decoder()
    with pytest.raises(ValueError, match="room for 1 tokens, not for 2"):
        StaticDecoder(model, model.start(1, 1), 2)
    step = StaticDecoder(model, model.start(1, 1), 1)
    step(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="room for 1 tokens, not for 2"):
        step(torch.zeros(1, 1, dtype=torch.int64))


def test_a_graph_is_captured_on_a_gpu_by_one_process_for_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert decoding_steps.captures(gpu)
    assert not decoding_steps.captures(cpu)
    with monkeypatch.context() as patched:
        patched.setattr(fast_paths, "_chosen", "torch")
        assert not decoding_steps.captures(gpu)
    with monkeypatch.context() as patched:
        patched.setattr(torch.distributed, "is_initialized", lambda: True)
        patched.setattr(torch.distributed, "get_world_size", lambda: 2)
        assert not decoding_steps.captures(gpu)

    capture_on_a_cpu(monkeypatch)
    monkeypatch.setattr(decoding_steps, "captures", lambda device: True)
    model, fewest = decoder(), decoding_steps.FEWEST
    few, many = (
        decoding_steps.make_steps(model, model.start(1, fewest), tokens) for tokens in (fewest - 1, fewest)
    )
    assert type(few) is Steps
    assert type(many) is decoding_steps.StaticSteps
