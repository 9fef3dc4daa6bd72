"""Sizes that are legal in their library and uncommon: odd widths, heads of any width, few or many buckets."""

from pathlib import Path
from typing import Any

import pytest
import torch

from archbench.architectures.pretrained import load_folder
from tests.architectures.pretrained.folders import ENCODER_DECODERS, make_model
from tests.architectures.pretrained.parity import FLOAT64, KeepFloat64, error

RELATIVE = ("t5", "flan_t5", "switch", "mt5", "umt5")
BUCKETS = ((4, 128), (5, 3), (6, 7), (7, 1000), (9, 20), (31, 17), (33, 129), (64, 64))
"""Numbers of buckets, and the distance from which all are in the last."""
WIDTHS: tuple[dict[str, int], ...] = (
    {"d_kv": 1, "d_ff": 1, "num_heads": 3, "d_model": 21},
    {"d_kv": 13, "d_ff": 101, "num_heads": 7, "d_model": 21},
)
ONE_KEY = {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 30, "intermediate_size": 7}
NARROW = {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 21, "intermediate_size": 1}
WIDE = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 21, "intermediate_size": 101}
HEADS = (ONE_KEY | {"head_dim": 8}, NARROW | {"head_dim": 2})
OFTEN = ("mistral", "qwen2", "qwen3", "olmo2", "mixtral", "qwen3_moe", "gpt_oss", "olmo3", "smollm3", "phi3")
ATTENTION = (*OFTEN, "llama", "granite", "gemma2", "gemma3", "jamba", "nemotron_h", "qwen3_next")
UNDIVIDED = ("mistral", "qwen2", "olmo3_yarn", "phi3", "jamba", "smollm3", "mixtral")
"""Without a width of heads: that of the model is divided by four, and rounded down."""
SMALL = {"hidden_size": 21, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 11}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {"relative_attention_num_buckets": count, "relative_attention_max_distance": distance})
        for name in RELATIVE
        for count, distance in BUCKETS
    ),
    *((name, sizes) for name in RELATIVE for sizes in WIDTHS),
    *((name, sizes) for name in ATTENTION for sizes in HEADS),
    *((name, WIDE | {"head_dim": 10}) for name in (*OFTEN, "jamba", "nemotron_h", "qwen3_next")),
    *((name, {"hidden_size": 34}) for name in UNDIVIDED),
    ("jamba", NARROW | {"hidden_size": 35, "num_attention_heads": 5, "num_key_value_heads": 5}),
    ("gpt_neox", {"hidden_size": 21, "num_attention_heads": 3, "rotary_pct": 0.3}),
    ("gpt_neox", {"hidden_size": 35, "num_attention_heads": 5, "rotary_pct": 0.6, "intermediate_size": 3}),
    ("gpt2", {"n_embd": 21, "n_head": 3, "n_inner": 7}),
    ("gpt2", {"n_embd": 5, "n_head": 5, "n_inner": 1}),
    ("mpt", {"d_model": 35, "n_heads": 7}),
    ("bloom", {"hidden_size": 21, "n_head": 3}),
    ("deepseek_v3", SMALL | {"kv_lora_rank": 5, "q_lora_rank": 3, "moe_intermediate_size": 3}),
    ("mamba", {"hidden_size": 21, "state_size": 3, "time_step_rank": 2, "conv_kernel": 3, "expand": 3}),
    ("mamba", {"hidden_size": 7, "state_size": 1, "time_step_rank": 5, "conv_kernel": 2, "expand": 1}),
    ("mamba", {"intermediate_size": 50}),
    ("falcon_mamba", {"hidden_size": 21, "state_size": 3, "expand": 16, "intermediate_size": 42}),
    ("mamba2", {"hidden_size": 21, "num_heads": 6, "head_dim": 7, "n_groups": 3, "state_size": 5}),
    ("bamba", WIDE | {"head_dim": 12, "mamba_n_heads": 14, "mamba_d_head": 3, "mamba_n_groups": 1}),
    ("falcon_h1", {"mamba_d_ssm": 21, "mamba_n_heads": 3, "mamba_d_head": 7, "mamba_n_groups": 1}),
    ("nemotron_h", {"mamba_num_heads": 6, "mamba_head_dim": 7, "n_groups": 3, "ssm_state_size": 5}),
    ("xlstm", {"qk_dim_factor": 0.5, "v_dim_factor": 0.7, "num_heads": 2, "use_cache": False}),
    ("xlstm", {"hidden_size": 21, "num_heads": 3, "ffn_round_up_to_multiple_of": 64, "use_cache": False}),
    ("qwen3_next", {"linear_key_head_dim": 3, "linear_value_head_dim": 7, "linear_num_value_heads": 6}),
    ("bart", {"d_model": 21, "encoder_attention_heads": 3, "decoder_attention_heads": 3}),
    ("mbart", {"encoder_attention_heads": 8, "encoder_ffn_dim": 5, "decoder_ffn_dim": 44}),
    ("mbart", {"d_model": 21, "encoder_attention_heads": 7, "decoder_attention_heads": 7}),
    ("bert", {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 7}),
    ("phi", ONE_KEY | {"partial_rotary_factor": 0.7}),
    ("cohere2", ONE_KEY),
    ("distilbert", {"dim": 21, "n_heads": 3, "hidden_dim": 7}),
    ("roberta", {"hidden_size": 21, "num_attention_heads": 7, "intermediate_size": 1}),
    ("xlm_roberta", {"hidden_size": 5, "num_attention_heads": 1, "intermediate_size": 3}),
    ("modernbert", {"hidden_size": 20, "num_attention_heads": 2, "intermediate_size": 1}),
]
EXACT = (*RELATIVE, "gpt2", "gpt_neox", "mamba", "falcon_mamba", "mamba2", "jamba", "bart", "bert", "roberta")
"""Elsewhere angles, slopes, multipliers or what a router reads are of float32 on one side."""


@pytest.mark.parametrize(("name", "sizes"), CASES)
@torch.no_grad()
def test_uncommon_sizes_are_read_in_float64(name: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    theirs = make_model(name, **sizes).double()
    for key, buffer in theirs.named_buffers():
        if key.endswith("inv_freq"):  # angles are of float32 on both sides; double() has changed theirs
            buffer.data = buffer.data.float()
    theirs.save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(8, 290, (2, 40), generator=generator)
    source_BS = torch.randint(8, 290, (2, 47), generator=generator)
    encoded = name in ENCODER_DECODERS
    inputs = {"input_ids": source_BS, "decoder_input_ids": tokens_BT} if encoded else {"input_ids": tokens_BT}
    with KeepFloat64():
        expected_BTV = theirs(**inputs).logits
    ours = load_folder(tmp_path, dtype=torch.float64).eval()
    found_BTV = ours(tokens_BT, **({"source_BS": source_BS} if encoded else {})).logits_BTV
    assert error(found_BTV, expected_BTV) < (FLOAT64 if name in EXACT else 2e-6)
