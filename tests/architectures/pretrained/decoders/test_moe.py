"""Parity of decoders with experts with the Hugging Face library, both ways and in generation."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from archbench.architectures.pretrained import export_config, load_folder, save_folder
from tests.architectures.pretrained.parity import (
    FLOAT32,
    FLOAT64,
    check_generate,
    check_logits,
    check_read,
    open_theirs,
    redraw,
)

LENGTH = 19
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 41,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_experts_per_tok": 2,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 10}
MIXTRAL = SIZES | {"num_local_experts": 5, "rope_parameters": ROPE}
OLMOE = SIZES | {"num_experts": 5}
QWEN = SIZES | {"num_experts": 5, "moe_intermediate_size": 11, "shared_expert_intermediate_size": 22}
DEEPSEEK = SIZES | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 18,
    "q_lora_rank": 11,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 13,
}
GPT_OSS = SIZES | {"num_local_experts": 5, "head_dim": 6, "sliding_window": 6, "swiglu_limit": 1.1}
V2 = DEEPSEEK | {"num_experts_per_tok": 3}
V3 = DEEPSEEK | {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", MIXTRAL),
    "mixtral window": ("Mixtral", MIXTRAL | {"sliding_window": 6, "tie_word_embeddings": True}),
    "mixtral one expert": ("Mixtral", MIXTRAL | {"num_experts_per_tok": 1, "head_dim": 6}),
    "mixtral usual base": ("Mixtral", SIZES | {"num_local_experts": 5}),
    "olmoe": ("Olmoe", OLMOE),
    "olmoe renormalised": ("Olmoe", OLMOE | {"norm_topk_prob": True, "attention_bias": True}),
    "qwen2": ("Qwen2Moe", QWEN),
    "qwen2 layers": ("Qwen2Moe", QWEN | {"mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen2 every second": ("Qwen2Moe", QWEN | {"decoder_sparse_step": 2, "qkv_bias": False}),
    "qwen2 window": (
        "Qwen2Moe",
        QWEN | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3},
    ),
    "gpt-oss": ("GptOss", GPT_OSS | {"rope_parameters": ROPE}),
    "gpt-oss global": (
        "GptOss",
        GPT_OSS
        | {
            "rope_parameters": ROPE,
            "layer_types": ["full_attention"] * 3,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "gpt-oss yarn": ("GptOss", GPT_OSS),
    "gpt-oss yarn truncated": ("GptOss", GPT_OSS | {"rope_parameters": YARN}),
    "deepseek v2": ("DeepseekV2", V2 | {"routed_scaling_factor": 1.7}),
    "deepseek v2 groups": (
        "DeepseekV2",
        V2 | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek v2 all": ("DeepseekV2", V2 | {"first_k_dense_replace": 0, "n_shared_experts": 1}),
    "deepseek v3": ("DeepseekV3", V3),
    "deepseek v3 one group": ("DeepseekV3", V3 | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
}
ROUNDED = ("deepseek", "mixtral usual base", "gpt-oss yarn")
"""Here angles, or what the router reads, are rounded to float32."""


def oracle(name: str) -> Any:
    family, settings = CASES[name]
    config = getattr(hf, f"{family}Config")(**settings)
    model = getattr(hf, f"{family}ForCausalLM")._from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    for key, buffer in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.3)
    return model


@pytest.mark.parametrize("name", CASES)
def test_reads_and_generates_as_theirs(name: str, tmp_path: Path) -> None:
    theirs = oracle(name)
    ours = check_read(theirs, tmp_path, torch.float32, LENGTH, FLOAT32)
    assert type(ours) is MoE
    check_generate(ours, theirs, length=7, new=16)


@pytest.mark.parametrize("name", CASES)
def test_reads_in_float64(name: str, tmp_path: Path) -> None:
    tolerance = 1e-6 if name.startswith(ROUNDED) else FLOAT64
    check_read(oracle(name), tmp_path, torch.float64, LENGTH, tolerance)


BASE = MoEConfig(d_model=32, num_layers=3, d_ff=22, attention=AttentionConfig(num_heads=4, num_kv_heads=2))
FEW = ExpertsConfig(num_experts=5, experts_per_token=2)
PLAIN = replace(BASE, experts=FEW)
OLMO = replace(
    PLAIN,
    attention=replace(BASE.attention, qk_norm="full"),
    experts=replace(FEW, renormalise=False),
)
SHARED = replace(
    BASE,
    attention=replace(BASE.attention, bias=True),
    experts=replace(FEW, num_shared_experts=2, shared_gate=True, d_ff=9),
)
LATENT = LatentConfig(kv_rank=18, nope_dim=8, rope_dim=6, v_dim=9)
V2_OURS = replace(
    BASE,
    feedforwards=["dense", "experts*2"],
    attention=AttentionConfig(num_heads=4, latent=LATENT),
    positions=PositionsConfig(interleaved=True),
    experts=ExpertsConfig(
        num_experts=6, experts_per_token=3, d_ff=7, num_shared_experts=1, renormalise=False, scaling=1.3
    ),
)
V3_OURS = replace(
    V2_OURS,
    experts=ExpertsConfig(
        num_experts=8,
        experts_per_token=3,
        d_ff=7,
        num_shared_experts=2,
        score="sigmoid",
        scaling=2.5,
        num_groups=4,
        groups_per_token=2,
        bias_rate=0.01,
    ),
)
OSS = replace(
    PLAIN,
    attention=replace(
        BASE.attention, bias=True, out_bias=True, sinks=True, window=5, layers=["local", "global"]
    ),
    feedforward=FeedForwardConfig(activation="quick_gelu", limit=1.2),
    experts=replace(FEW, bias=True),
)
MADE: dict[str, tuple[DecoderConfig, type]] = {
    "mixtral": (PLAIN, hf.MixtralForCausalLM),
    "mixtral standard width": (replace(PLAIN, d_ff=None, tie_embeddings=True), hf.MixtralForCausalLM),
    "mixtral window": (
        replace(PLAIN, attention=replace(BASE.attention, window=5, layers=["local"])),
        hf.MixtralForCausalLM,
    ),
    "olmoe": (OLMO, hf.OlmoeForCausalLM),
    "qwen2": (SHARED, hf.Qwen2MoeForCausalLM),
    "qwen2 layers": (replace(SHARED, feedforwards=["experts", "dense"]), hf.Qwen2MoeForCausalLM),
    "deepseek v2": (V2_OURS, hf.DeepseekV2ForCausalLM),
    "deepseek v2 groups": (
        replace(V2_OURS, experts=replace(V2_OURS.experts, num_groups=3, groups_per_token=2)),
        hf.DeepseekV2ForCausalLM,
    ),
    "deepseek v3": (V3_OURS, hf.DeepseekV3ForCausalLM),
    "gpt-oss": (OSS, hf.GptOssForCausalLM),
    "gpt-oss yarn": (
        replace(
            OSS,
            positions=PositionsConfig(
                scaling=RotaryScaling(kind="yarn", factor=3.0, original_length=9, truncate=False)
            ),
        ),
        hf.GptOssForCausalLM,
    ),
    "a decoder": (
        DecoderConfig(**{f.name: getattr(PLAIN, f.name) for f in fields(PLAIN)}),
        hf.MixtralForCausalLM,
    ),
}


def make(config: DecoderConfig) -> Backbone:
    cls = MoE if isinstance(config, MoEConfig) else Decoder
    model = cls(config, vocab_size=59, max_length=43).eval()
    redraw(model)
    for key, buffer in model.named_buffers():
        if key.endswith("selection_X"):
            buffer.normal_(0.0, 0.3)
    return model


@pytest.mark.parametrize("name", MADE)
def test_writes_and_reads_back(name: str, tmp_path: Path) -> None:
    config, expected = MADE[name]
    ours = make(config)
    save_folder(ours, tmp_path / "ours", shard_bytes=3000)
    theirs = open_theirs(
        hf.AutoModelForCausalLM,
        tmp_path / "ours",
        torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    assert type(theirs) is expected
    check_logits(ours, theirs, LENGTH, FLOAT32)
    check_generate(ours, theirs, length=5, new=14)
    back = load_folder(tmp_path / "ours").state_dict()
    assert back.keys() == ours.state_dict().keys()
    assert all(torch.equal(back[key], value) for key, value in ours.state_dict().items())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            replace(PLAIN, feedforwards=["dense", "experts"]),
            r"Qwen3Moe: attention\.qk_norm=none \(not head\)",
        ),
        (
            replace(PLAIN, experts=replace(FEW, renormalise=False)),
            r"Mixtral: experts\.renormalise=False \(not True\)",
        ),
        (replace(PLAIN, experts=replace(FEW, capacity=3)), r"Mixtral: experts\.capacity=3 \(not None\)"),
        (
            replace(PLAIN, experts=replace(FEW, bias_rate=0.1)),
            r"Mixtral: experts\.bias_rate=0\.0 \(not None\)",
        ),
        (
            replace(SHARED, experts=replace(SHARED.experts, shared_gate=False)),
            r"Qwen2Moe: experts\.shared_gate=False \(not True\)",
        ),
        (
            replace(V3_OURS, experts=replace(V3_OURS.experts, bias_rate=None)),
            r"DeepseekV3: experts\.bias_rate=None \(not 0\.0\)",
        ),
    ],
)
def test_what_no_family_expresses_is_named(config: MoEConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export_config(make(config))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("olmoe", {"clip_qkv": 8.0}, r"clip_qkv=8\.0 is not supported"),
        ("qwen2", {"shared_expert_intermediate_size": 21}, "only multiples of moe_intermediate_size=11"),
        ("deepseek v2", {"topk_method": "noaux_tc"}, "topk_method='noaux_tc' is not supported"),
        ("deepseek v2", {"norm_topk_prob": True}, "norm_topk_prob=True is not supported"),
        ("deepseek v3", {"scoring_func": "softmax"}, "scoring_func='softmax' is not supported"),
        ("gpt-oss", {"swiglu_alpha": 1.0}, r"swiglu_alpha=1\.0 is not supported, only 1\.702"),
        (
            "gpt-oss",
            {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
            r"partial_rotary_factor=0\.5 is not supported, only None or 1\.0",
        ),
        ("gpt-oss", {"sliding_window": None}, "sliding_window is missing"),
        (
            "gpt-oss",
            {"quantization_config": {"quant_method": "mxfp4"}},
            r"write the folder again without it, with quantization_config=Mxfp4Config\(dequantize=True\)",
        ),
    ],
)
def test_settings_without_counterpart_are_named(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    oracle(name).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
        load_folder(tmp_path)


def test_settings_of_training_are_kept_out_of_the_comparison(tmp_path: Path) -> None:
    """Dropping in training, losses and the way of running do not change the model that is written."""
    settings = {"capacity_factor": 1.25, "jitter": 0.1, "z_coefficient": 0.1, "dispatch": "padded"}
    family, written = export_config(make(replace(PLAIN, experts=replace(FEW, balance="batch", **settings))))
    assert family.__name__ == "Mixtral"
    assert written["router_jitter_noise"] == 0.1
