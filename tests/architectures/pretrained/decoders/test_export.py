"""Our decoders written to folders: the Hugging Face library finds the class and gives the same logits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.multipliers import MultipliersConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from archbench.architectures.pretrained import load_folder, save_folder
from tests.architectures.pretrained.parity import FLOAT32, check_generate, check_logits, open_theirs, redraw

BASE = DecoderConfig(d_model=30, num_layers=2, d_ff=37, attention=AttentionConfig(num_heads=5))
WIDE = AttentionConfig(num_heads=6, num_kv_heads=2, head_dim=4)
LATENT = LatentConfig(kv_rank=18, nope_dim=8, rope_dim=6, v_dim=9)
PLAIN_FF = FeedForwardConfig(activation="gelu_tanh", gated=False, bias=True)
LAYERNORM = BlockConfig(norm="layernorm")


LLAMA = BASE
MISTRAL = replace(BASE, attention=replace(WIDE, window=5, layers=["local"]))
QWEN2 = replace(BASE, attention=AttentionConfig(num_heads=5, num_kv_heads=1, bias=True))
QWEN3 = replace(BASE, attention=replace(WIDE, qk_norm="head"))
GEMMA2 = replace(
    BASE,
    tie_embeddings=True,
    attention=replace(WIDE, softcap=3.0, window=4, layers=["local", "global"]),
    block=BlockConfig(norm="rmsnorm_offset", placement="sandwich"),
    embedding=EmbeddingConfig(scale=True),
    feedforward=FeedForwardConfig(activation="gelu_tanh"),
    head=HeadConfig(softcap=5.0),
)
OLMO2 = replace(
    BASE,
    attention=replace(WIDE, qk_norm="full", head_dim=None),
    block=BlockConfig(placement="output"),
    d_model=36,
)
GPT2 = replace(
    BASE,
    attention=AttentionConfig(num_heads=5, bias=True, out_bias=True),
    positions=PositionsConfig(kind="learned"),
    block=LAYERNORM,
    feedforward=PLAIN_FF,
)
NEOX = replace(GPT2, positions=PositionsConfig(fraction=0.34), block=replace(LAYERNORM, parallel=True))
BLOOM = replace(
    GPT2, d_ff=None, positions=PositionsConfig(kind="alibi"), embedding=EmbeddingConfig(norm=True)
)
MPT = replace(
    BASE,
    d_ff=None,
    positions=PositionsConfig(kind="alibi"),
    block=BlockConfig(norm="layernorm_no_bias"),
    feedforward=FeedForwardConfig(activation="gelu", gated=False),
)
DEEPSEEK = replace(
    BASE, attention=replace(BASE.attention, latent=LATENT), positions=PositionsConfig(interleaved=True)
)
YARN = RotaryScaling(kind="yarn", factor=3.0, original_length=9, beta_fast=2.5)


LONGROPE = RotaryScaling(
    kind="longrope",
    factor=4.0,
    original_length=20,
    short_factors=[1.0, 1.5, 2.0],
    long_factors=[1.0, 3.0, 5.0],
)
GRANITE = MultipliersConfig(embedding=3.0, head=0.2, attention_out=0.4, down=0.4)
PHI = replace(
    GPT2,
    d_model=40,
    positions=PositionsConfig(fraction=0.5),
    block=replace(LAYERNORM, parallel=True, shared_norm=True),
    head=HeadConfig(bias=True),
)
COHERE2 = replace(
    BASE,
    num_layers=3,
    attention=replace(BASE.attention, window=5, layers=["local", "global", "local"]),
    positions=PositionsConfig(interleaved=True, layers=["positional", "none", "positional"]),
    block=BlockConfig(norm="layernorm_no_bias", parallel=True, shared_norm=True),
    multipliers=MultipliersConfig(head=0.5),
    tie_embeddings=True,
)


def scaled(config: DecoderConfig, scaling: RotaryScaling, base: float = 700.0) -> DecoderConfig:
    return replace(config, positions=replace(config.positions, scaling=scaling, base=base))


def attention(config: DecoderConfig, **settings: object) -> DecoderConfig:
    return replace(config, attention=replace(config.attention, **settings))


CASES: dict[str, tuple[DecoderConfig, type]] = {
    "llama defaults": (replace(LLAMA, d_ff=None), hf.LlamaForCausalLM),
    "llama biases": (
        replace(
            attention(LLAMA, bias=True, out_bias=True, head_dim=4),
            tie_embeddings=True,
            feedforward=FeedForwardConfig(bias=True, activation="relu_squared"),
        ),
        hf.LlamaForCausalLM,
    ),
    "llama linear": (scaled(LLAMA, RotaryScaling(kind="linear", factor=2.5)), hf.LlamaForCausalLM),
    "llama ntk": (scaled(LLAMA, RotaryScaling(kind="ntk", factor=2.5)), hf.LlamaForCausalLM),
    "llama yarn": (scaled(replace(LLAMA, attention=WIDE), YARN), hf.LlamaForCausalLM),
    "llama llama3": (
        scaled(LLAMA, RotaryScaling(kind="llama3", factor=4.0, original_length=8, high_frequency=2.0)),
        hf.LlamaForCausalLM,
    ),
    "llama longrope": (scaled(LLAMA, LONGROPE), hf.LlamaForCausalLM),
    "llama dynamic": (
        scaled(LLAMA, RotaryScaling(kind="dynamic", factor=2.5, original_length=43)),
        hf.LlamaForCausalLM,
    ),
    "phi3 partial": (
        replace(
            BASE,
            d_model=40,
            positions=PositionsConfig(fraction=0.75, scaling=replace(LONGROPE, original_length=8)),
        ),
        hf.Phi3ForCausalLM,
    ),
    "granite": (
        replace(attention(LLAMA, scale=0.3), multipliers=GRANITE, feedforward=FeedForwardConfig(bias=True)),
        hf.GraniteForCausalLM,
    ),
    "phi": (PHI, hf.PhiForCausalLM),
    "phi tied": (replace(attention(PHI, qk_norm="head"), tie_embeddings=True), hf.PhiForCausalLM),
    "cohere2": (COHERE2, hf.Cohere2ForCausalLM),
    "mistral window": (MISTRAL, hf.MistralForCausalLM),
    "mistral multi-query": (attention(MISTRAL, num_kv_heads=1, window=2), hf.MistralForCausalLM),
    "mistral odd width": (replace(MISTRAL, d_model=31, tie_embeddings=True), hf.MistralForCausalLM),
    "qwen2 plain": (QWEN2, hf.Qwen2ForCausalLM),
    "qwen2 local": (attention(QWEN2, window=3, layers=["global", "local"]), hf.Qwen2ForCausalLM),
    "qwen2 tied": (replace(scaled(QWEN2, YARN), tie_embeddings=True, norm_eps=1e-2), hf.Qwen2ForCausalLM),
    "qwen3 plain": (QWEN3, hf.Qwen3ForCausalLM),
    "qwen3 local": (attention(QWEN3, window=3, layers=["local", "global"], head_dim=6), hf.Qwen3ForCausalLM),
    "qwen3 biases": (attention(QWEN3, bias=True, out_bias=True), hf.Qwen3ForCausalLM),
    "gemma2 plain": (GEMMA2, hf.Gemma2ForCausalLM),
    "gemma2 scale": (attention(GEMMA2, scale=11**-0.5, layers=["global"]), hf.Gemma2ForCausalLM),
    "gemma2 untied": (replace(attention(GEMMA2, softcap=None), tie_embeddings=False), hf.Gemma2ForCausalLM),
    "olmo2 plain": (OLMO2, hf.Olmo2ForCausalLM),
    "olmo2 multi-query": (attention(OLMO2, num_kv_heads=1), hf.Olmo2ForCausalLM),
    "olmo2 tied": (replace(OLMO2, tie_embeddings=True, num_layers=3), hf.Olmo2ForCausalLM),
    "gpt2 plain": (GPT2, hf.GPT2LMHeadModel),
    "gpt2 tied": (replace(GPT2, tie_embeddings=True, norm_eps=1e-2), hf.GPT2LMHeadModel),
    "gpt2 wide": (replace(GPT2, d_ff=None, d_model=35), hf.GPT2LMHeadModel),
    "neox plain": (NEOX, hf.GPTNeoXForCausalLM),
    "neox sequential": (replace(NEOX, block=LAYERNORM), hf.GPTNeoXForCausalLM),
    "neox bare": (attention(NEOX, bias=False, out_bias=False), hf.GPTNeoXForCausalLM),
    "bloom plain": (BLOOM, hf.BloomForCausalLM),
    "bloom tied": (replace(BLOOM, tie_embeddings=True), hf.BloomForCausalLM),
    "bloom three heads": (attention(BLOOM, num_heads=3), hf.BloomForCausalLM),
    "mpt plain": (MPT, hf.MptForCausalLM),
    "mpt tied": (replace(MPT, tie_embeddings=True), hf.MptForCausalLM),
    "mpt scale": (attention(MPT, scale=0.7), hf.MptForCausalLM),
    "deepseek v2": (replace(DEEPSEEK, tie_embeddings=True), hf.DeepseekV2ForCausalLM),
    "deepseek v2 ranks": (attention(DEEPSEEK, latent=replace(LATENT, q_rank=11)), hf.DeepseekV2ForCausalLM),
    "deepseek v2 yarn": (attention(scaled(DEEPSEEK, YARN), scale=0.5), hf.DeepseekV2ForCausalLM),
    "deepseek v3": (replace(DEEPSEEK, positions=PositionsConfig()), hf.DeepseekV3ForCausalLM),
    "deepseek v3 ranks": (
        attention(
            replace(DEEPSEEK, positions=PositionsConfig()),
            latent=replace(LATENT, q_rank=11),
            out_bias=True,
            bias=True,
        ),
        hf.DeepseekV3ForCausalLM,
    ),
    "deepseek v3 yarn": (
        attention(scaled(replace(DEEPSEEK, positions=PositionsConfig()), YARN), scale=0.5),
        hf.DeepseekV3ForCausalLM,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_writes_and_reads_back(name: str, tmp_path: Path) -> None:
    config, expected = CASES[name]
    ours = Decoder(config, vocab_size=59, max_length=43).eval()
    redraw(ours)
    save_folder(ours, tmp_path / "ours")
    theirs = open_theirs(
        hf.AutoModelForCausalLM, tmp_path / "ours", torch.float32, attn_implementation="eager"
    )
    assert type(theirs) is expected
    check_logits(ours, theirs, 19, FLOAT32)
    check_generate(ours, theirs, length=5, new=14)
    back = load_folder(tmp_path / "ours").state_dict()
    assert back.keys() == ours.state_dict().keys()
    assert all(torch.equal(back[key], value) for key, value in ours.state_dict().items())
