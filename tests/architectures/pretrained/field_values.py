"""Folders to begin with, and other values of the fields of their ``config.json``.

A field may be read only where another has some value, such as ``max_window_layers`` where ``layer_types`` is
not given. So a family has several folders, with windows, scaled rotary positions, biases, dense and sparse
layers, and without the fields that their library derives from others.
"""

import re
from typing import Any

Settings = dict[str, Any]
REMOVED = object()
"""Marks a field that is missing."""
S, F = "sliding_attention", "full_attention"
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
LINEAR = PLAIN | {"rope_type": "linear", "factor": 4.0}
YARN = PLAIN | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MSCALE = YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}
DYNAMIC = PLAIN | {"rope_type": "dynamic", "factor": 2.0}
LONGROPE = PLAIN | {"rope_type": "longrope", "short_factor": [1.5] * 4, "long_factor": [2.5] * 4}
PARTIAL_LONG = {"partial_rotary_factor": 1.0, "original_max_position_embeddings": 10}
PARTIAL = PLAIN | {"partial_rotary_factor": 0.5}
EARLY = {"type": "linear", "factor": 2.0}
BY_LAYER = {F: YARN, S: PLAIN, "truncate": False}
UNTRUNCATED = YARN | {"truncate": False}
ROPES = (PLAIN, LINEAR, LLAMA3, YARN, MSCALE, UNTRUNCATED, DYNAMIC, LONGROPE, PARTIAL, EARLY, BY_LAYER, {})
BIASES = {"attention_bias": True, "mlp_bias": True}
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "num_hidden_layers": 4}
UNTYPED = {"layer_types": REMOVED}
SPARSE = {"num_hidden_layers": 4, "mlp_only_layers": [0], "decoder_sparse_step": 2}
SCALED = {"rope_parameters": YARN, "head_dim": 10}
BASES: dict[str, tuple[Settings, ...]] = {
    "gpt2": ({}, UNTIED),
    "llama": ({}, BIASES | TIED, {"rope_parameters": LLAMA3, "head_dim": 12}, SCALED),
    "mistral": ({}, {"sliding_window": None, "head_dim": 12}, {"rope_parameters": LINEAR} | TIED),
    "qwen2": ({}, WINDOWS | UNTYPED | {"max_window_layers": 2}, WINDOWS | {"max_window_layers": 0} | TIED),
    "qwen3": ({}, WINDOWS | UNTYPED | {"max_window_layers": 1}, {"rope_parameters": YARN} | BIASES),
    "gemma2": ({}, UNTYPED | {"num_hidden_layers": 3, "attention_bias": True}, {"layer_types": [S, S]}),
    "olmo2": ({}, {"attention_bias": True} | TIED, {"rope_parameters": YARN}),
    "gpt_neox": ({}, {"use_parallel_residual": False, "rope_parameters": PLAIN}, TIED),
    "mpt": ({}, UNTIED),
    "bloom": ({}, UNTIED),
    "deepseek_v2": (
        {},
        {"q_lora_rank": None, "first_k_dense_replace": 0, "attention_bias": True},
        {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
        {"first_k_dense_replace": 2, "mlp_bias": True},
        {"rope_parameters": MSCALE, "num_hidden_layers": 3},
    ),
    "deepseek_v3": (
        {},
        {"q_lora_rank": None, "rope_interleave": False, "attention_bias": True},
        {"rope_parameters": MSCALE},
        {"first_k_dense_replace": 2},
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "n_shared_experts": 2},
    ),
    "mixtral": ({}, {"sliding_window": 5} | TIED, SCALED),
    "olmoe": ({}, {"norm_topk_prob": True, "attention_bias": True}, {"rope_parameters": LINEAR} | TIED),
    "qwen2_moe": (
        {},
        WINDOWS | UNTYPED | {"max_window_layers": 3},
        SPARSE | {"qkv_bias": False, "norm_topk_prob": True},
    ),
    "qwen3_moe": ({}, WINDOWS, SPARSE | {"norm_topk_prob": True, "attention_bias": True}),
    "gpt_oss": (
        {},
        {"layer_types": [F, F, S]},
        UNTYPED | {"rope_parameters": PLAIN, "attention_bias": False},
    ),
    "olmo3": ({}, {"layer_types": [F, S, F, S]}, UNTYPED | {"rope_parameters": REMOVED}),
    "olmo3_yarn": ({}, {"attention_bias": True} | TIED),
    "smollm3": (
        {},
        WINDOWS | UNTYPED | {"no_rope_layers": REMOVED},
        {"sliding_window": 5, "layer_types": [S, F, S, F]},
        WINDOWS | {"layer_types": [S, F, F, S], "no_rope_layers": [0, 1, 1, 0]},
        BIASES | UNTIED | {"rope_parameters": YARN},
    ),
    "phi3": ({}, {"sliding_window": None, "rope_parameters": PARTIAL}, TIED),
    "phi3_longrope": ({}, {"sliding_window": 6, "rope_parameters": LONGROPE} | TIED),
    "granite": (
        {},
        BIASES | TIED | {"rope_parameters": DYNAMIC, "max_position_embeddings": 10},
        {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 10}, "head_dim": 8},
    ),
    "phi": ({}, {"qk_layernorm": True} | TIED, {"rope_parameters": LONGROPE | PARTIAL_LONG}),
    "cohere2": (
        {},
        UNTYPED | UNTIED | {"attention_bias": True},
        {"layer_types": [F, S, S, F], "rope_parameters": DYNAMIC, "max_position_embeddings": 10},
    ),
    "gemma3": (
        {},
        {"layer_types": [S, F, F, S, F, S]},
        UNTYPED | {"attention_bias": True, "num_hidden_layers": 7, "rope_parameters": REMOVED},
    ),
    "gemma3_linear": ({},),
    "mamba": ({}, {"use_bias": True, "use_conv_bias": False} | UNTIED),
    "falcon_mamba": ({}, {"use_bias": True}),
    "mamba2": ({}, {"use_bias": True} | TIED, {"time_step_limit": [0.1, 0.9]}),
    "jamba": ({}, {"num_experts": 1}, {"expert_layer_period": 1, "expert_layer_offset": 0} | TIED),
    "bamba": ({}, BIASES | TIED, {"rope_parameters": PARTIAL, "attn_layer_indices": [0, 2]}),
    "nemotron_h": ({}, {"mlp_bias": True, "use_bias": True}),
    "qwen3_next": (
        {},
        {"attention_bias": True} | TIED,
        UNTYPED | {"full_attention_interval": 2, "decoder_sparse_step": 2, "mlp_only_layers": []},
    ),
    "nemotron_h_experts": ({}, {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    "xlstm": ({},),
    "falcon_h1": (
        {},
        {"mamba_rms_norm": True} | BIASES,
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "t5": ({}, {"feed_forward_proj": "gated-gelu"}),
    "flan_t5": ({},),
    "switch": (
        {},
        {"num_layers": 4, "num_sparse_encoder_layers": 2, "expert_capacity": 3}
        | {"encoder_sparse_step": REMOVED, "decoder_sparse_step": REMOVED},
    ),
    "mt5": ({},),
    "umt5": ({},),
    "bart": ({}, {"scale_embedding": True}),
    "mbart": ({}, {"scale_embedding": True}),
    "bert": ({}, UNTIED),
    "distilbert": ({}, UNTIED),
    "roberta": ({}, UNTIED),
    "xlm_roberta": ({},),
    "modernbert": (
        {},
        {"layer_types": [S, F, F, S]},
        BIASES | UNTYPED | UNTIED | {"norm_bias": True, "decoder_bias": False},
    ),
}
"""Further fields of config.json in the first folders, by the name in ``folders``."""
ROTARY = ("rope_theta", "rope_scaling", "partial_rotary_factor", "original_max_position_embeddings")
FOREIGN = (
    *("head_dim", "attention_bias", "mlp_bias", "qkv_bias", "use_sliding_window", "sliding_window"),
    *("layer_types", "num_key_value_heads", "tie_word_embeddings", "hidden_act", "hidden_size", "is_causal"),
    *("attn_logit_softcapping", "final_logit_softcapping", "no_rope_layers", "query_pre_attn_scalar"),
    *("norm_topk_prob", "routed_scaling_factor", "scoring_func", "clip_qkv", "use_bidirectional_attention"),
    *("num_local_experts", "rms_norm_eps", "layer_norm_eps", "attention_chunk_size"),
)
"""Fields of some families, which ``config.json`` of others may have too."""
NAMES = {
    "float32": "bfloat16",
    "bfloat16": "float32",
    "inference": "train",
    "single": "fused",
    "chunkwise--native_autograd": "parallel--native_autograd",
}
"""Other values of fields that take some names only."""
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2")
MLP_FIRST = ["mlp", "linear_attention"]
VALUES: dict[str, tuple[Any, ...]] = {
    r"rope_parameters|rope_scaling": (*ROPES, None),
    r"rope_theta|rotary_emb_base|\w+_rope_theta|rope_local_base_freq": (50.0, 3e5),
    r"partial_rotary_factor|rotary_pct": (0.25, 0.5, 1.0, None),
    r"sliding_window|local_attention": (None, 1, 3, 4, 200),
    r"max_window_layers|first_k_dense_replace": (0, 1, 2, 28),
    r"num_key_value_heads": (None, 1, 2, 4),
    r"head_dim": (None, 4, 8, 10),
    r"mlp_only_layers": (None, [], [0], [1], [0, 1, 2, 3]),
    r"(de|en)coder_sparse_step|no_rope_layer_interval|full_attention_interval": (1, 2, 3, 9),
    r"global_attn_every_n_layers|sliding_window_pattern": (1, 2, 3, 9),
    r"(attn|expert)_layer_(period|offset)": (0, 1, 2, 3, 9),
    r"num_sparse_\w+_layers|n_shared_experts": (None, 0, 1, 2, 4),
    r"q_lora_rank": (None, 5),
    r"n_group|topk_group": (None, 1, 2, 4, 8),
    r"topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
    r"num_experts|num_local_experts|n_routed_experts": (0, 1, 2, 4, 8),
    r"num_experts_per_tok": (None, 1, 2, 3, 4),
    r"moe_intermediate_size": (11, 22),
    r"(moe_)?shared_expert_intermediate_size": (0, 11, 13, 22, 26),
    r"num_hidden_layers|n_layers?|num_(decoder_)?layers": (1, 2, 3, 4, 6),
    r"hidden_size|dim|d_model|n_embd|n_embed|embedding_dim": (16, 24, 64),
    r"expert_capacity": (1, 3, 64),
    r"max_position_embeddings|n_positions": (24, 40, 160),
    r"original_max_position_embeddings": (10, 80),
    r"layers_block_type": (["mamba", "moe", "attention", "mlp"], ["full_attention", "mlp"], MLP_FIRST),
    r"hybrid_override_pattern": ("M-M*-", "MEM*E"),
    r"feed_forward_proj": ("relu", "gelu", "gated-gelu", "gated-silu"),
    r"attn_config": (
        *({"alibi": False}, {"alibi": True, "alibi_bias_max": 4}, {"softmax_scale": 0.4}),
        *({"qk_ln": True}, {"clip_qkv": 0.5}, None),
    ),
    r"mlp_multipliers": ([1.0, 1.0], [0.5, 2.0], None),
    r"ssm_multipliers": ([1.0] * 5, [2.0, 0.5, 1.5, 0.7, 1.2], None),
    r"time_step_limit": ([0.0, {"__float__": "Infinity"}], [0.2, 0.5], [0.0, 0.3]),
    r"attn_layer_indices": (None, [], [0], [0, 2]),
    r"mamba_d_ssm": (None, 32, 64),
    r"mamba_d_head": ("auto", 8, 16),
    r"mamba_dt_rank|time_step_rank": ("auto", 3),
    r"\w+_logit_softcapping": (None, 0.7, 3.0),
    r"query_pre_attn_scalar": (4, 16, 64),
    r"use_\w+|is_causal|is_decoder|norm_topk_prob|\w+_bias": (True, False, None),
    r"eps|\w+_eps|\w+_epsilon": (1e-6, 0.5),
    r"clip_qkv": (None, 0.5),
    r"logit_scale": (None, 0.5, "inv_sqrt_d_model"),
    r"scoring_func": ("softmax", "sigmoid"),
}
"""Values of fields by their names; ``other_values`` has those of others."""
FITTING: dict[str, list[Settings]] = {
    "hidden_size": [
        {f"{heads}_heads": 8, "hidden_size": 64} for heads in ("num", "mamba_n", "num_attention")
    ],
    "num_heads": [{"head_dim": 8, "num_heads": 8}],
    "mamba_n_heads": [{"mamba_d_head": 8, "mamba_n_heads": 8}],
    "mamba_d_head": [{"mamba_n_heads": 8, "mamba_d_head": 8}],
    "mamba_d_ssm": [{"mamba_n_heads": 6, "mamba_d_ssm": 96}],
    "num_attention_heads": [
        {"num_key_value_heads": 2, "num_attention_heads": 2},
        {"hidden_size": 64, "num_attention_heads": 8},
    ],
    "embedding_dim": [{"hidden_size": 128, "embedding_dim": 128}],
    "qk_dim_factor": [{"qk_dim_factor": 2.0}],
    "qk_rope_head_dim": [{"head_dim": REMOVED, "qk_head_dim": REMOVED, "qk_rope_head_dim": 12}],
    "num_hidden_layers": [{"layer_types": REMOVED, "no_rope_layers": REMOVED, "num_hidden_layers": 6}],
}
"""Changes of a field together with others, where it does not go with those of the folder."""


def other_values(key: str, value: Any, config: Settings) -> list[Any]:
    """Return other values of a field beside a ``config.json``."""
    if key in ("layer_types", "no_rope_layers"):
        return layer_patterns(key, config)
    for pattern, values in VALUES.items():
        if re.fullmatch(pattern, key):
            return [each for each in values if each != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(value - 1, 1), 2 * value]
    if isinstance(value, float):
        return [value * 1.5 + 0.25, value / 2]
    if isinstance(value, str) and value in ACTIVATIONS:
        return [name for name in ACTIVATIONS if name != value]
    if isinstance(value, str):
        return [NAMES.get(value, "other")]
    return [True, 3, 0.5] if value is None else [[]]


def layer_patterns(key: str, config: Settings) -> list[Any]:
    """Return patterns over the layers, and none."""
    count = config.get("num_hidden_layers")
    count = count if isinstance(count, int) and count else 2  # it may be removed
    one, two = (1, 0) if key == "no_rope_layers" else (S, F)
    one = "linear_attention" if config["model_type"] == "qwen3_next" else one
    patterns = ([one], [two], [one, two], [two, two, one])
    return [None, *([pattern[i % len(pattern)] for i in range(count)] for pattern in patterns)]
