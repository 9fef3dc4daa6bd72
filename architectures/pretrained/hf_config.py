"""config.json of a Hugging Face folder: its type, and the checks that hold for every family.

They find values of the wrong type, values that no model can have, and settings without counterpart here.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

from archbench.architectures.checkpoint_folders import HFConfig as HFConfig

COUNTS = re.compile(
    r"(num_\w+|n_(layers?|heads?|embd|inner|positions|groups?|routed_experts|shared_experts|kv_heads)"
    r"|\w+_(layers|heads|dim|rank|size|experts|per_tok|position_embeddings)"
    r"|(seq|max_sequence)_length|max_seq_len|dim|d_model|d_ff|d_kv|d_inner)"
)
"""Keys with integer values."""
LARGEST = 2**31
"""No size of a model is as large."""
FRACTIONS = ("moe_layer_freq", "type_vocab_size")
SMALL = re.compile(
    r"\w*(eps|epsilon|theta|rotary_emb_base)|(qk_dim|v_dim|ffn_proj)_factor|(linear_)?conv_kernel(_dim)?|mamba_d_conv"
    r"|logits_scaling"
)
"""Keys with positive values."""
KEYS = {
    r"encoder_heads=": "encoder_attention_heads=",
    r"encoder_d_ff=": "encoder_ffn_dim=",
    r"num_heads=": "n_heads=|n_head=|num_attention_heads=",
    r"num_kv_heads=": "n_kv_heads=|num_key_value_heads=",
    r"attention\.window=": "sliding_window=",
    r"attention\.head_dim=": "head_dim=",
    r"attention\.scale=": "attention_multiplier=|query_pre_attn_scalar=",
    r"multipliers\.embedding=": "embedding_multiplier=",
    r"multipliers\.head=": "logits_scaling=|logit_scale=|lm_head_multiplier=",
    r"multipliers\.(down|attention_out)=": "residual_multiplier=",
    r"attention\.softcap=": "attn_logit_softcapping=",
    r"attention\.dropout=": "attn_pdrop=|attention_dropout=",
    r"experts\.num_groups": "n_group",
    r"experts\.groups_per_token": "topk_group",
    r"experts\.experts_per_token": "num_experts_per_tok",
    r"experts\.num_experts": "num_experts",
    r"experts\.capacity=": "expert_capacity=",
    r"experts\.jitter": "router_jitter_noise",
    r"experts\.balance_coefficient": "router_aux_loss_coef",
    r"positions\.fraction=": "partial_rotary_factor=",
    r"positions\.base=": "rope_theta=",
    r"positions\.num_buckets": "relative_attention_num_buckets",
    r"positions\.max_distance": "relative_attention_max_distance",
    r"positions\.local_base=": "rope_local_base_freq=|rope_theta=",
    r"positions\.scaling\.original_length=": "original_max_position_embeddings=",
    r"positions\.scaling\.short_factors\b": "short_factor",
    r"positions\.scaling\.long_factors\b": "long_factor",
    r"positions\.scaling": "rope_parameters",
    r"\blow_frequency": "low_freq_factor",
    r"\bhigh_frequency": "high_freq_factor",
    r"norm_eps=": "rms_norm_eps=",
    r"head\.softcap=": "output_logit_soft_cap=|final_logit_softcapping=",
    r"gate_cap=": "gate_soft_cap=",
    r"num_layers=": "n_layers=|num_hidden_layers=",
    r"block\.dropout=": "resid_pdrop=|dropout=",
    r"\bdt_min=": "time_step_min=",
    r"\bdt_max=": "time_step_max=",
    r"\bd_model=": "dim=|hidden_size=",
    r"\bd_ff=": "hidden_dim=|intermediate_size=",
}
"""Our names of settings, and those of files: of multiple keys, the first one in the file, or else the
last."""
T5_KEYS = {r"num_attention_heads=": "num_heads=", r"hidden_size=": "d_model=", r"intermediate_size=": "d_ff="}


def check_config(hf: Mapping[str, Any], *, causal: bool) -> None:
    """Raise ValueError for a value of the wrong type, an impossible one, or one not followed anywhere."""
    for key, value in hf.items():
        if value is None:
            continue
        if COUNTS.fullmatch(key) and key not in FRACTIONS:
            _check_count(key, value)
        elif SMALL.fullmatch(key):
            _check_positive(key, value)
    for key in ("rope_parameters", "rope_scaling"):
        _check_rope(key, hf.get(key))
    quantized = hf.get("quantization_config")
    if quantized is not None:
        mxfp4 = isinstance(quantized, dict) and quantized.get("quant_method") == "mxfp4"
        how = "quantization_config=Mxfp4Config(dequantize=True)" if mxfp4 else "dequantize()"
        raise ValueError(
            "config.json: quantization_config is not supported: write the folder again without it, with "
            f"{how} and save_pretrained of the Hugging Face library"
        )
    if causal and hf.get("is_causal") is False:
        raise ValueError("config.json: is_causal=False is not supported, only True")
    if not causal and hf.get("is_decoder"):
        raise ValueError("config.json: is_decoder=True is not supported, only False")
    if hf.get("auto_map"):
        warnings.warn("config.json: auto_map names code of the folder, which is not run", stacklevel=2)


def _check_count(key: str, value: Any) -> None:
    if key.endswith("_layers") and isinstance(value, list):  # such as mlp_only_layers
        return
    if key.endswith("_rank") and value == "auto":
        return
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or value < 0:
        raise ValueError(f"config.json: {key}={value!r} must be a whole number, not negative")
    if value >= LARGEST:
        raise ValueError(f"config.json: {key}={value!r} must be below {LARGEST}")


def _check_positive(key: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ValueError(f"config.json: {key}={value!r} must be a positive number")


def _check_rope(key: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise ValueError(f"config.json: {key}={value!r} must be an object")
    for name, inner in value.items():
        if isinstance(inner, dict):
            _check_rope(f"{key}.{name}", inner)
        elif name in ("rope_theta", "factor") and inner is not None:
            _check_positive(f"{key}.{name}", inner)


def with_file_keys(error: ValueError, hf: Mapping[str, Any]) -> ValueError:
    """Return the error with the keys of config.json instead of the names that settings have here."""
    text = str(error)
    if text.startswith("config.json"):
        return error
    known_keys = {*hf, *(inner for value in hf.values() if isinstance(value, dict) for inner in value)}
    for setting, keys in KEYS.items():
        names = keys.split("|")
        text = re.sub(
            setting, next((name for name in names if name.strip("=") in known_keys), names[-1]), text
        )
    for name, keys in T5_KEYS.items():
        if name.rstrip("=") not in hf and keys.rstrip("=") in hf:
            text = text.replace(name, keys)
    return ValueError(f"config.json: {text}")
