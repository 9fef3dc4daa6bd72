"""Transformers drawn at random from all that can be configured keep every promise.

Cached is full, paged is contiguous, absorbed is naive, unpadded is padded, packed
is separate, batched is single.

Shapes: B batch, T length.
"""

import dataclasses
import random
from typing import Any

import pytest
import torch

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.transformer import HeadConfig, TransformerConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from tests.architectures.conformance import (
    check_batch_invariance,
    check_close,
    check_decoding,
    check_gradients,
    check_moved_rows,
    check_no_leak,
    check_packed,
    check_padding,
    check_prompts_together,
    check_sees_everything,
    enliven,
    random_inputs,
)
from tests.architectures.costs import check_flops, check_parameters, check_state_bytes
from tests.tiers import fast_only

VOCABULARY, LONGEST = 23, 64
DRAWS = fast_only(range(24), range(3))
WINDOWS = [["local"], ["local", "global"], ["global", "local*2"]]
POSITIONS = [["positional"], ["positional", "none"], ["none", "positional*2"]]


def draw_attention(rng: random.Random, *, latent: bool) -> AttentionConfig:
    if latent and rng.random() < 0.25:
        ranks = LatentConfig(
            kv_rank=rng.choice([3, 6]),
            q_rank=rng.choice([None, 5]),
            nope_dim=rng.choice([2, 5]),
            rope_dim=rng.choice([2, 4]),
            v_dim=rng.choice([3, 4]),
            absorbed=rng.random() < 0.5,
        )
        return AttentionConfig(num_heads=3, latent=ranks, cache=rng.choice(["contiguous", "paged"]))
    heads = rng.choice([1, 2, 3, 4, 6])
    window = rng.choice([None, 1, 4, 7])
    softcap = rng.choice([None, None, 2.0])
    return AttentionConfig(
        num_heads=heads,
        num_kv_heads=rng.choice([None, *(g for g in range(1, heads + 1) if heads % g == 0)]),
        head_dim=rng.choice([4, 8]),
        bias=rng.random() < 0.5,
        out_bias=rng.random() < 0.5,
        qk_norm=rng.choice(["none", "head", "full"]),
        scale=rng.choice([None, 0.6]),
        softcap=softcap,
        output_gate=rng.random() < 0.2,
        sinks=rng.random() < 0.3,
        window=window,
        layers=["global"] if window is None else rng.choice(WINDOWS),
        kernel="reference" if softcap or rng.random() < 0.3 else "auto",
        cache=rng.choice(["contiguous", "paged"]),
        block_size=rng.choice([1, 3, 16]),
    )


def draw_positions(rng: random.Random, kinds: list[str]) -> PositionsConfig:
    kind = rng.choice(kinds)
    scaling = RotaryScaling(
        kind=rng.choice(["none", "none", "linear", "ntk", "yarn", "llama3"]), factor=2.5, original_length=12
    )
    return PositionsConfig(
        kind=kind,
        layers=rng.choice(POSITIONS) if kind in ("rope", "alibi", "relative") else ["positional"],
        base=rng.choice([50.0, 10000.0]),
        local_base=rng.choice([None, 100.0]),
        fraction=rng.choice([1.0, 0.5]),
        interleaved=rng.random() < 0.5,
        scaling=scaling,
        num_buckets=8,
        max_distance=20,
    )


def draw(seed: int, cls: type[TransformerConfig], **fixed: Any) -> TransformerConfig:
    """A configuration of the zoo."""
    rng = random.Random(seed)
    attention = draw_attention(rng, latent=cls is not EncoderDecoderConfig)
    kinds = ["rope"] if attention.latent.kv_rank else ["rope", "alibi", "relative", "learned", "sinusoidal"]
    placement = rng.choice(["pre", "post", "sandwich", "output"])
    parallel = placement == "pre" and rng.random() < 0.4 and cls is not EncoderDecoderConfig
    shared = parallel and rng.random() < 0.5
    settings: dict[str, Any] = {
        "d_model": rng.choice([9, 14]),
        "num_layers": rng.choice([2, 3]),
        "d_ff": rng.choice([None, 11]),
        "tie_embeddings": rng.random() < 0.5,
        "attention": attention,
        "positions": draw_positions(rng, kinds),
        "block": BlockConfig(
            norm=rng.choice(["rmsnorm", "rmsnorm_offset", "layernorm", "layernorm_no_bias"]),
            placement=placement,
            parallel=parallel,
            shared_norm=shared,
            first_norm=placement != "pre" or shared or rng.random() < 0.7,
        ),
        "feedforward": FeedForwardConfig(
            activation=rng.choice(["relu", "relu_squared", "gelu", "gelu_tanh", "silu", "quick_gelu"]),
            gated=rng.random() < 0.5,
            bias=rng.random() < 0.5,
        ),
        "embedding": EmbeddingConfig(
            norm=rng.random() < 0.5, scale=rng.random() < 0.3, num_segments=rng.choice([0, 2])
        ),
        "head": HeadConfig(
            bias=rng.random() < 0.5, softcap=rng.choice([None, 5.0]), scale=rng.random() < 0.2
        ),
    }
    return cls(**(settings | fixed))


def build(cls: type[Backbone], config: TransformerConfig) -> Backbone:
    torch.manual_seed(0)
    return enliven(cls(config, vocab_size=VOCABULARY, max_length=LONGEST).double()).eval()


@pytest.mark.parametrize("seed", DRAWS)
def test_a_decoder_keeps_its_promises(seed: int) -> None:
    model = build(Decoder, draw(seed, DecoderConfig))
    check_padding(model, 13)
    check_batch_invariance(model, 13)
    check_decoding(model, 19)
    check_state_bytes(model, 17)
    check_parameters(model, tied=model.config.tie_embeddings and not model.config.head.bias)  # type: ignore[attr-defined]
    no_window = dataclasses.replace(model.config.attention, layers=["global"])  # type: ignore[attr-defined]
    check_no_leak(build(Decoder, dataclasses.replace(model.config, attention=no_window)), 9)  # type: ignore[call-arg]


@pytest.mark.parametrize("seed", DRAWS)
def test_an_encoder_keeps_its_promises(seed: int) -> None:
    model = build(Encoder, draw(seed, EncoderConfig))
    check_padding(model, 13)
    check_batch_invariance(model, 13)
    everywhere = dataclasses.replace(model.config.attention, layers=["global"])  # type: ignore[attr-defined]
    check_sees_everything(build(Encoder, dataclasses.replace(model.config, attention=everywhere)), 8)  # type: ignore[call-arg]


@pytest.mark.parametrize("seed", DRAWS)
def test_an_encoder_decoder_keeps_its_promises(seed: int) -> None:
    config = draw(seed, EncoderDecoderConfig, num_encoder_layers=2 + seed % 2, embedding=EmbeddingConfig())
    model = build(EncoderDecoder, config)
    check_padding(model, 9)
    check_batch_invariance(model, 9)
    check_decoding(model, 15)
    check_state_bytes(model, 11)


@pytest.mark.parametrize("seed", DRAWS)
def test_every_parameter_of_a_decoder_learns(seed: int) -> None:
    torch.manual_seed(0)
    config = draw(seed, DecoderConfig, embedding=EmbeddingConfig())
    if config.attention.window == 1:  # alone in its window, a key is seen whatever the query
        config = dataclasses.replace(config, attention=dataclasses.replace(config.attention, window=2))
    check_gradients(Decoder(config, vocab_size=VOCABULARY, max_length=LONGEST), 21, autocast=seed % 2 == 0)


@pytest.mark.parametrize("seed", DRAWS)
def test_flops_are_those_that_run(seed: int) -> None:
    """On the fused path, where the counter sees the pairs."""
    config = draw(seed, DecoderConfig)
    fused = dataclasses.replace(config.attention, kernel="sdpa", softcap=None, sinks=False)
    check_flops(build(Decoder, dataclasses.replace(config, attention=fused)), 12)


@pytest.mark.parametrize("cls", [Decoder, Encoder])
@pytest.mark.parametrize("seed", DRAWS)
def test_packed_documents_are_separate_ones(seed: int, cls: type[Backbone]) -> None:
    check_packed(build(cls, draw(seed, cls.Config)))


@pytest.mark.parametrize("seed", DRAWS)
def test_unpadded_is_padded(seed: int) -> None:
    config = draw(seed, EncoderConfig)
    padded, unpadded = (build(Encoder, dataclasses.replace(config, unpad=u)) for u in (False, True))  # type: ignore[call-arg]
    tokens_BT = random_inputs(padded, 4, 14).tokens_BT
    segments_BT = tokens_BT % 2 if config.embedding.num_segments else None
    valid_BT = torch.arange(14) < torch.tensor([[14], [1], [9], [3]])
    gradients, outputs = [], []
    for model in (padded, unpadded):
        output = model(tokens_BT, valid_BT=valid_BT, segments_BT=segments_BT)
        outputs.append(output)
        loss = (output.logits_BTV * valid_BT[..., None]).square().sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
    check_close(outputs[1].logits_BTV[valid_BT], outputs[0].logits_BTV[valid_BT], "logits, unpadded")
    check_close(outputs[1].hidden_BTD[valid_BT], outputs[0].hidden_BTD[valid_BT], "hidden, unpadded")
    for name, found, expected in zip(dict(padded.named_parameters()), *gradients[::-1], strict=True):
        if expected is not None:
            check_close(found, expected, f"gradient of {name}, unpadded")


@pytest.mark.parametrize("seed", DRAWS)
@pytest.mark.parametrize("cls", [Decoder, EncoderDecoder])
def test_prompts_of_different_lengths_are_decoded_together_as_alone(seed: int, cls: type[Backbone]) -> None:
    check_prompts_together(build(cls, draw(seed, cls.Config, embedding=EmbeddingConfig())))


@pytest.mark.parametrize("seed", DRAWS)
def test_paged_is_contiguous(seed: int) -> None:
    config = draw(seed, DecoderConfig)
    found = []
    for cache in ("contiguous", "paged"):
        attention = dataclasses.replace(config.attention, cache=cache)
        model = build(Decoder, dataclasses.replace(config, attention=attention))
        check_moved_rows(model)
        state = model.start(2, 20)
        sizes = [9] + [1] * 11
        pieces = random_inputs(model, 2, 20).tokens_BT.split(sizes, dim=1)
        found.append(torch.cat([model.step(piece, state) for piece in pieces], dim=1))
    check_close(found[1], found[0], "paged")


def test_int8_is_near_and_smaller() -> None:
    config = DecoderConfig(d_model=32, attention=AttentionConfig(num_heads=2, num_kv_heads=1, cache="int8"))
    torch.manual_seed(0)
    model = Decoder(config, vocab_size=VOCABULARY, max_length=LONGEST).eval()
    tokens_BT = random_inputs(model, 2, 30).tokens_BT
    state = model.start(2, 30)
    with torch.no_grad():
        full = model(tokens_BT).logits_BTV
        found = torch.cat([model.step(token, state) for token in tokens_BT.split(1, dim=1)], dim=1)
    assert 0 < (found - full).abs().max() < 0.02 * full.abs().max()
    full_precision = dataclasses.replace(config, attention=AttentionConfig(num_heads=2, num_kv_heads=1))
    plain = Decoder(full_precision, vocab_size=VOCABULARY, max_length=LONGEST).state_bytes(30)
    assert state.num_bytes() == 2 * model.state_bytes(30)
    assert model.state_bytes(30) / plain == (16 + 4) / (16 * 4)


def test_a_block_is_skipped_for_some_sequences_in_training_only() -> None:
    config = DecoderConfig(d_model=8, num_layers=2, block=BlockConfig(stochastic_depth=0.5))
    model = build(Decoder, config)
    tokens_BT = random_inputs(model, 1, 6).tokens_BT.expand(64, -1)
    quiet = model(tokens_BT).logits_BTV
    torch.testing.assert_close(quiet[0], quiet[-1])
    model.train()
    torch.manual_seed(0)
    kinds = model(tokens_BT).logits_BTV.sum((1, 2)).round(decimals=6).unique()
    assert len(kinds) == 4  # of the second block: both branches, either, none
    assert model.blocks[0].mixer_residual.skip == 0
    assert model.blocks[1].mixer_residual.skip == 0.5


def test_documents_and_segments_are_refused_where_they_mean_nothing() -> None:
    model = build(Decoder, DecoderConfig(d_model=8))
    tokens_BT = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"embedding\.num_segments"):
        model(tokens_BT, segments_BT=tokens_BT)
    unpadded = build(Encoder, EncoderConfig(d_model=8, unpad=True))
    with pytest.raises(ValueError, match="not packed"):
        unpadded(tokens_BT, valid_BT=tokens_BT == 0, documents_BT=tokens_BT)
