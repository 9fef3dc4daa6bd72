"""What becomes of each field of a configuration when its value changes, beside what becomes of it there.

The fields are those that their library writes. A change that it refuses itself, or that does not fit the
tensors, says nothing.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from architectures.pretrained import load_folder
from tests.architectures.pretrained.folders import (
    DECODERS,
    EAGER,
    ENCODER_DECODERS,
    ENCODERS,
    make_folder,
    make_model,
)
from tests.architectures.pretrained.parity import error

NO_EFFECT = {
    "training": r"\w*(dropout|pdrop|jitter|layerdrop)\w*|\w*router\w*(coef|coefficient|logits|probs)"
    r"|sparse_pred(iction|_ignore_index)|z_loss_coefficient|router_ignore_padding_tokens"
    r"|pretraining_tp|summary_\w+|gradient_checkpointing",
    "initialisation": r"initializer_(range|factor|cutoff_factor)|init_(std|device|method)"
    r"|time_step_(min|max|floor|scale)|time_step_init_scheme|embedding_fraction",
    "generation": r"\w+_token_id|use_cache|num_logits_to_keep",
    "computation": r"use_(mambapy|mamba_kernels|associative_scan|falcon_mambapy)|\w*chunk_size\w*"
    r"|slow_but_exact|deterministic_flash_attn|reorder_and_upcast_attn|residual_in_fp32|output_\w+|return_dict|attn_implementation"
    r"|autocast_kernel_dtype|norm_reduction_force_float32|(chunkwise|sequence|step)_kernel|mode"
    r"|max_inference_chunksize|return_last_states",
    "other heads": r"id2label|label2id|problem_type|num_labels|classifier_\w+|is_decoder|add_cross_attention",
    "experts and later predictions that these layers lack": r"moe_\w+|n_(routed|shared)_experts"
    r"|norm_topk_prob|num_experts_per_tok|routed_scaling_factor|mtp_layers_block_type",
    "no other value opens there": r"weight_mode",
    "a length": r"max_(position_embeddings|seq_len)|n_positions",
    "nothing there reads it": r"norm_type|learned_pos_emb|expansion_ratio|topk_method"
    r"|num_nextn_predict_layers|qk_head_dim|head_dim|ep_size|aux_loss_alpha|seq_aux|num_hidden_layers|is_encoder_decoder|attn_config"
    r"|num_sparse_\w+_layers|feed_forward_proj|is_gated_act|partial_rotary_factor|tie_word_embeddings"
    r"|scale_attn_by_inverse_layer_idx|logit_scale|no_bias|sparse_step|intermediate_size|num_key_value_heads"
    r"|original_max_position_embeddings|sliding_window|max_window_layers|no_rope_layer_interval"
    r"|moe_layer_freq|decoder_sparse_step|encoder_sparse_step|expert_capacity|layer_types|d_ff|d_inner"
    r"|mamba_(expand|norm_before_gate|proj_bias|ssm_cache_dtype)|expand|rope_(theta|scaling)|attention_bias|mlp_bias|time_step_limit"
    r"|use_sliding_window|rope_parameters|projectors_bias|num_experts|n_group|topk_group|scoring_func"
    r"|time_step_rank|attn_logit_softcapping|add_out_norm",
}
"""Fields that cannot change the output, or not beside the others that these folders have, by the reason."""
REWRITTEN = ("rescale_prenorm_residual",)
"""With it their library divides weights of Mamba when a folder is opened, after it has loaded them."""
LIBRARY = ("architectures", "model_type", "transformers_version", "dtype", "torch_dtype")
CLASSES = (
    dict.fromkeys(DECODERS, hf.AutoModelForCausalLM)
    | dict.fromkeys(ENCODER_DECODERS, hf.AutoModelForSeq2SeqLM)
    | dict.fromkeys(ENCODERS, hf.AutoModelForMaskedLM)
)
"""Class that opens each folder."""
NAMES = {
    "float32": "bfloat16",
    "bfloat16": "float32",
    "inference": "train",
    "single": "fused",
    "chunkwise--native_autograd": "parallel--native_autograd",
}
"""Other values of fields that take some names only."""
TOLERANCE = 2e-4
"""Largest difference of ours from theirs, as a share of the largest logit."""
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2")
FITTING: dict[str, list[dict[str, Any]]] = {
    "hidden_size": [{"num_heads": 8, "hidden_size": 64}, {"mamba_n_heads": 8, "hidden_size": 64}],
    "num_heads": [{"head_dim": 8, "num_heads": 8}],
    "mamba_n_heads": [{"mamba_d_head": 8, "mamba_n_heads": 8}],
    "mamba_d_head": [{"mamba_n_heads": 8, "mamba_d_head": 8}],
    "mamba_d_ssm": [{"mamba_n_heads": 6, "mamba_d_ssm": 96}],
    "num_attention_heads": [{"num_key_value_heads": 2, "num_attention_heads": 2}],
    "attn_layer_indices": [{"attn_layer_indices": [0, 2]}],
    "attn_layer_offset": [{"attn_layer_offset": 0}],
    "expert_layer_offset": [{"expert_layer_offset": 0}],
    "mlp_only_layers": [{"mlp_only_layers": [0]}],
    "embedding_dim": [{"hidden_size": 128, "embedding_dim": 128}],
    "qk_dim_factor": [{"qk_dim_factor": 2.0}],
    "no_rope_layers": [{"no_rope_layers": [0, 1, 0, 1]}],
}
"""Values of a field that go with the others, or with these, where those of ``changes`` may not."""

FAR_OFF = {"eps": [100.0]}
"""Further values of a field that the nearer ones change too little to be told from rounding."""


def changes(value: Any) -> list[Any]:
    """Other values of a field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(value - 1, 1), 2 * value]
    if isinstance(value, float):
        return [value * 1.5 + 0.25, value / 2]
    if isinstance(value, str):
        return (
            [name for name in ACTIVATIONS if name != value][:2]
            if value in ACTIVATIONS
            else [NAMES.get(value, "other")]
        )
    if isinstance(value, list):
        return [[x * 1.5 if type(x) in (int, float) else x for x in value], []]
    if isinstance(value, dict):
        return [{**value, key: other} for key, old in value.items() for other in changes(old)[:1]]
    return [True, 3, 0.5]


def tokens() -> Tensor:
    return torch.randint(8, 290, (2, 24), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def theirs(folder: Path, kind: Any) -> Tensor | None:
    """Their logits, or None where they refuse the folder or miss a tensor."""
    seq2seq = kind is hf.AutoModelForSeq2SeqLM
    inputs = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if seq2seq else {})
    try:
        model, info = kind.from_pretrained(folder, output_loading_info=True, **EAGER)
        if any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
            return None
        logits = model.eval()(**inputs).logits
    except Exception:  # whatever a value brings about
        return None
    return logits if logits.isfinite().all() else None


@torch.no_grad()
def ours(folder: Path, kind: Any) -> Tensor:
    source = {"source_BS": tokens()} if kind is hf.AutoModelForSeq2SeqLM else {}
    return load_folder(folder).eval()(tokens(), **source).logits_BTV


@dataclass(kw_only=True)
class Outcome:
    """What the values that were tried for a field brought about."""

    followed: bool = False
    """One of them changed their logits, and ours alike."""
    redrawn: bool = False
    """One of them does not go with the tensors of the folder; with new ones, ours has their logits."""
    refused: bool = False
    """One of them is refused here, and opens there."""
    tried: bool = False
    """One of them opens there with the tensors of the folder."""
    problem: str | None = None
    """What is wrong."""


def try_field(folder: Path, base: dict[str, Any], key: str, name: str, before: Tensor) -> Outcome:
    """Change a field of a folder, and compare; with new tensors where it is not followed with the old."""
    outcome, new, kind = Outcome(), folder / "new", CLASSES[name]
    tried = changes(base.get(key)) + FAR_OFF.get(key, [])
    values = [value for value in tried if value != base.get(key)]
    for value in values:
        (folder / "config.json").write_text(json.dumps(base | {key: value}))
        expected = theirs(folder, kind)
        if expected is not None:
            outcome.tried = True
            if compare(folder, f"{key}={value}", base, kind, expected, outcome):
                # What a processor may round away, or ours may differ by, shows nothing.
                outcome.followed |= error(before, expected) > 2 * TOLERANCE
    for settings in [{key: value} for value in values] + FITTING.get(key, []):
        if outcome.followed or outcome.redrawn or (outcome.tried and not outcome.refused):
            break
        expected = theirs_redrawn(new, name, settings)
        if expected is not None:
            outcome.redrawn |= compare(new, f"{key}={settings[key]}", base, kind, expected, outcome)
    if not (outcome.followed or outcome.redrawn or outcome.refused) and reason(key) is None:
        outcome.problem = outcome.problem or f"{key} changes nothing and is on no list"
    return outcome


def theirs_redrawn(folder: Path, name: str, settings: dict[str, Any]) -> Tensor | None:
    """Their logits for a new folder with other settings, or None where they refuse it."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        make_model(name, **settings).save_pretrained(folder)
    except Exception:  # whatever a value brings about
        return None
    return theirs(folder, CLASSES[name])


def compare(
    folder: Path, change: str, base: dict[str, Any], kind: Any, expected: Tensor, outcome: Outcome
) -> bool:
    """Return True where ours opens a folder with their logits; note in the outcome what else happens."""
    names = {*base, *(inner for value in base.values() if isinstance(value, dict) for inner in value)}
    try:
        found = ours(folder, kind)
    except ValueError as refusal:
        outcome.refused = True
        named = any(re.search(rf"\b{field}(=| is missing)", str(refusal)) for field in names)
        if not named and "tensors " not in str(refusal):
            outcome.problem = f"{change} is refused without its name: {refusal}"
        return False
    if found.shape != expected.shape or error(found, expected) > TOLERANCE:
        outcome.problem = f"{change} is ignored, or followed otherwise"
        return False
    return True


def reason(key: str) -> str | None:
    """Why a field cannot change the output, or None where it is on no list."""
    return next((why for why, pattern in NO_EFFECT.items() if re.fullmatch(pattern, key)), None)


def declared(config: hf.PretrainedConfig) -> list[str]:
    """The fields that their library writes for a class, without those of the library itself."""
    fields = {key for key in config.to_dict() if not key.startswith("_")}
    return sorted(fields - {*LIBRARY, *REWRITTEN})


def try_fields(name: str, folder: Path) -> dict[str, Outcome]:
    """Change every field of a class, one by one, in a folder that is made for it."""
    make_folder(name, folder)
    base = json.loads((folder / "config.json").read_text())
    before = theirs(folder, CLASSES[name])
    assert before is not None
    keys = declared(hf.AutoConfig.from_pretrained(folder))
    return {key: try_field(folder, base, key, name, before) for key in keys}
