"""Parity of every family of decoders with the Hugging Face library, in both directions and in generation."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from archbench.architectures.pretrained import load_folder
from tests.architectures.pretrained.parity import FLOAT32, FLOAT64, check_generate, check_read, save_theirs

LENGTH = 19
SIZES = {
    "vocab_size": 61,
    "hidden_size": 30,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "max_position_embeddings": 41,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WIDE = SIZES | {"hidden_size": 28, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6}
GROUPED = SIZES | {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3}
"""Heads whose widths do not add up to the width of the model, and fewer of keys and values."""
LOCAL = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = SIZES | {"head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 7, "num_key_value_heads": 1}
LATENT = SIZES | {
    "num_key_value_heads": 5,
    "kv_lora_rank": 18,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "first_k_dense_replace": 3,
}


def rope(kind: str, theta: float = 10000.0, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **settings}}


LLAMA3 = rope(
    "llama3",
    500.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=3.0,
    original_max_position_embeddings=11,
)
YARN = rope("yarn", 5000.0, factor=4.0, original_max_position_embeddings=10, beta_fast=3.0)
DEEP_YARN = rope(
    "yarn", factor=4.0, original_max_position_embeddings=10, beta_fast=3.0, mscale=0.7, mscale_all_dim=1.3
)
LONG = {"short_factor": [1.0, 1.2, 1.7], "long_factor": [1.0, 2.0, 4.0]}
"""Generation exceeds the original length of some of these: there are 7 tokens before and 27 after."""
PHI3 = SIZES | rope("longrope", 500.0, **LONG) | {"original_max_position_embeddings": 12}
EIGHT = SIZES | {"hidden_size": 40}
PRE_NORM = {"vocab_size": 61, "n_positions": 33, "bos_token_id": 1, "eos_token_id": 2}
ALIBI = {"vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def alibi(d_model: int, n_heads: int, n_layers: int, **settings: Any) -> dict[str, Any]:
    sizes = {"d_model": d_model, "n_heads": n_heads, "n_layers": n_layers, "max_seq_len": 41}
    return {**ALIBI, **sizes, **settings}


def bloom(hidden_size: int, n_head: int, n_layer: int, **settings: Any) -> dict[str, Any]:
    return {**ALIBI, "hidden_size": hidden_size, "n_head": n_head, "n_layer": n_layer, **settings}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2 odd": ("GPT2", PRE_NORM | {"n_embd": 30, "n_head": 5, "n_layer": 3, "n_inner": 37}),
    "gpt2 untied": (
        "GPT2",
        PRE_NORM | {"n_embd": 21, "n_head": 3, "n_layer": 2, "tie_word_embeddings": False},
    ),
    "gpt2 relu": (
        "GPT2",
        PRE_NORM | {"n_embd": 28, "n_head": 1, "n_layer": 2, "activation_function": "relu"},
    ),
    "llama plain": ("Llama", SIZES),
    "llama grouped tied": ("Llama", GROUPED | {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    "llama biases": ("Llama", SIZES | {"attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    "llama llama3": ("Llama", GROUPED | LLAMA3 | {"head_dim": 10}),
    "llama linear": ("Llama", SIZES | rope("linear", 300.0, factor=2.5)),
    "llama yarn": ("Llama", SIZES | YARN | {"head_dim": 12}),
    "mistral window": ("Mistral", WIDE | {"sliding_window": 6}),
    "mistral global": ("Mistral", WIDE | {"sliding_window": None, "num_key_value_heads": 6}),
    "mistral tied": ("Mistral", WIDE | {"sliding_window": 3, "tie_word_embeddings": True}),
    "qwen2 plain": ("Qwen2", GROUPED),
    "qwen2 local": ("Qwen2", GROUPED | LOCAL | {"tie_word_embeddings": True}),
    "qwen2 types": ("Qwen2", GROUPED | LOCAL | {"layer_types": TYPES, "num_key_value_heads": 1}),
    "qwen3 plain": ("Qwen3", WIDE),
    "qwen3 local": ("Qwen3", WIDE | LOCAL | {"tie_word_embeddings": True}),
    "qwen3 biases": (
        "Qwen3",
        WIDE | YARN | {"attention_bias": True, "num_key_value_heads": 1, "head_dim": 8},
    ),
    "gemma2 plain": ("Gemma2", GEMMA),
    "gemma2 caps": ("Gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2 types": ("Gemma2", GEMMA | {"layer_types": TYPES[1:] + TYPES[:1], "num_key_value_heads": 5}),
    "gemma2 uncapped": (
        "Gemma2",
        GEMMA
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "tie_word_embeddings": False},
    ),
    "olmo2 plain": ("Olmo2", SIZES),
    "olmo2 grouped": ("Olmo2", GROUPED | {"rms_norm_eps": 1e-6}),
    "olmo2 tied": ("Olmo2", GROUPED | {"tie_word_embeddings": True, "attention_bias": True}),
    "smollm3 plain": ("SmolLM3", GROUPED),
    "smollm3 local": ("SmolLM3", GROUPED | LOCAL | {"no_rope_layers": [0, 1, 0]}),
    "smollm3 types": ("SmolLM3", GROUPED | {"sliding_window": 5, "layer_types": TYPES}),
    "neox quarter": ("GPTNeoX", SIZES | {"hidden_size": 40}),
    "neox sequential": ("GPTNeoX", SIZES | {"use_parallel_residual": False, "rotary_pct": 0.7}),
    "neox bare": (
        "GPTNeoX",
        SIZES | {"attention_bias": False, "rotary_pct": 1.0, "rotary_emb_base": 77, "hidden_act": "gelu_new"},
    ),
    "llama longrope": (
        "Llama",
        GROUPED | rope("longrope", 500.0, **LONG, factor=4.0, original_max_position_embeddings=5),
    ),
    "llama dynamic": ("Llama", GROUPED | rope("dynamic", factor=3.0) | {"max_position_embeddings": 13}),
    "phi3 crossing": ("Phi3", PHI3),
    "phi3 long": ("Phi3", PHI3 | {"original_max_position_embeddings": 5, "sliding_window": 6}),
    "phi3 short": ("Phi3", PHI3 | {"original_max_position_embeddings": 40}),
    "phi3 partial": (
        "Phi3",
        EIGHT
        | rope("longrope", 500.0, **LONG, partial_rotary_factor=0.75, attention_factor=1.3)
        | {"original_max_position_embeddings": 15},
    ),
    "granite plain": ("Granite", GROUPED),
    "granite factors": (
        "Granite",
        GROUPED
        | {"embedding_multiplier": 3.0, "logits_scaling": 5.0, "residual_multiplier": 0.4}
        | {"attention_multiplier": 0.7, "attention_bias": True, "mlp_bias": True},
    ),
    "granite tied": (
        "Granite",
        SIZES | YARN | {"tie_word_embeddings": True, "logits_scaling": 0.3, "attention_multiplier": 0.4},
    ),
    "phi half": ("Phi", EIGHT),
    "phi norms": ("Phi", EIGHT | {"qk_layernorm": True, "num_key_value_heads": 1, "layer_norm_eps": 1e-2}),
    "phi tied": ("Phi", EIGHT | {"tie_word_embeddings": True, "partial_rotary_factor": 0.75}),
    "phi dynamic": (
        "Phi",
        EIGHT | rope("dynamic", factor=2.0, partial_rotary_factor=0.5) | {"max_position_embeddings": 11},
    ),
    "cohere2 plain": ("Cohere2", GROUPED | {"sliding_window": 6, "num_hidden_layers": 5}),
    "cohere2 types": (
        "Cohere2",
        GROUPED
        | {"sliding_window": 5, "layer_types": TYPES, "logit_scale": 1.5}
        | {"attention_bias": True, "tie_word_embeddings": False},
    ),
    "mpt five": ("Mpt", alibi(30, 5, 3)),
    "mpt twelve": ("Mpt", alibi(36, 12, 2, tie_word_embeddings=False)),
    "mpt scaled": ("Mpt", alibi(18, 2, 2, attn_config={"softmax_scale": 0.9})),
    "bloom five": ("Bloom", bloom(30, 5, 3)),
    "bloom twelve": ("Bloom", bloom(36, 12, 2, tie_word_embeddings=False)),
    "bloom one": ("Bloom", bloom(14, 1, 2, layer_norm_epsilon=1e-2)),
    "deepseek v2": ("DeepseekV2", LATENT),
    "deepseek v2 ranks": (
        "DeepseekV2",
        LATENT | {"q_lora_rank": 11, "attention_bias": True, "mlp_bias": True},
    ),
    "deepseek v2 yarn": ("DeepseekV2", LATENT | DEEP_YARN | {"tie_word_embeddings": True}),
    "deepseek v3": ("DeepseekV3", LATENT | {"q_lora_rank": 11, "attention_bias": True}),
    "deepseek v3 direct": ("DeepseekV3", LATENT | {"rope_interleave": False, "rms_norm_eps": 1e-3}),
    "deepseek v3 yarn": ("DeepseekV3", LATENT | DEEP_YARN | {"q_lora_rank": 11}),
}
ROUNDED = (
    *("llama llama3", "llama yarn", "llama longrope", "llama dynamic", "phi3", "phi dynamic", "granite tied"),
    *("cohere2", "gemma2", "mpt twelve", "bloom", "deepseek v2"),
)
"""Here angles, slopes or the scale of the embedding are rounded to float32, on their side or on both."""


def build(name: str, attention: str = "eager") -> Any:
    family, settings = CASES[name]
    suffix = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    config = getattr(hf, f"{family}Config")(**settings)
    return getattr(hf, f"{family}{suffix}")._from_config(config, attn_implementation=attention)


@pytest.mark.parametrize("name", CASES)
def test_reads_and_generates_as_theirs(name: str, tmp_path: Path) -> None:
    theirs = build(name)
    ours = check_read(theirs, tmp_path, torch.float32, LENGTH, FLOAT32)
    check_generate(ours, theirs, length=7, new=20)


@pytest.mark.parametrize("name", CASES)
def test_reads_in_float64(name: str, tmp_path: Path) -> None:
    tolerance = 1e-6 if name.startswith(ROUNDED) else FLOAT64
    check_read(build(name), tmp_path, torch.float64, LENGTH, tolerance)


def test_a_length_that_turns_positions_off_there_is_refused(tmp_path: Path) -> None:
    """A layer of theirs then gives the last token the same logits, in whatever order the others are."""
    theirs = hf.MptForCausalLM(hf.MptConfig(**alibi(36, 12, 1, max_seq_len=1))).eval()
    save_theirs(theirs, tmp_path)
    tokens_BT = torch.randint(3, 61, (1, LENGTH))
    turned_BT = torch.cat([tokens_BT[:, :-1].flip(1), tokens_BT[:, -1:]], dim=1)
    with torch.no_grad():
        one, two = (theirs(input_ids=tokens).logits[:, -1] for tokens in (tokens_BT, turned_BT))
    torch.testing.assert_close(one, two)
    with pytest.raises(ValueError, match=r"config.json: max_seq_len=1 is not supported"):
        load_folder(tmp_path)
