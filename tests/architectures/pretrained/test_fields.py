"""Every field of every class, changed: followed, refused by its name, or on the list of those without effect.

The fields are those that their library writes. A change that it refuses itself, or that does not fit the
tensors, says nothing.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from architectures.pretrained import load_folder
from tests.architectures.pretrained.folders import DECODERS, EAGER, ENCODER_DECODERS, ENCODERS, make_folder
from tests.tiers import fast_only

NO_EFFECT = {
    "training": r"\w*(dropout|pdrop|jitter|layerdrop)\w*|\w*router\w*(coef|coefficient|logits|probs)"
    r"|sparse_pred(iction|_ignore_index)|z_loss_coefficient|router_ignore_padding_tokens"
    r"|pretraining_tp|summary_\w+|gradient_checkpointing",
    "initialisation": r"initializer_(range|factor|cutoff_factor)|init_(std|device|method)"
    r"|time_step_(min|max|floor|scale)|time_step_init_scheme|embedding_fraction",
    "generation": r"\w+_token_id|use_cache|num_logits_to_keep",
    "computation": r"use_(mambapy|mamba_kernels|associative_scan|falcon_mambapy)|\w*chunk_size\w*"
    r"|slow_but_exact|deterministic_flash_attn|reorder_and_upcast_attn|residual_in_fp32|router_dtype|output_\w+|return_dict|attn_implementation",
    "other heads": r"id2label|label2id|problem_type|num_labels|classifier_\w+|is_decoder|add_cross_attention",
    "experts and later predictions that these layers lack": r"moe_\w+|n_(routed|shared)_experts"
    r"|norm_topk_prob|num_experts_per_tok|routed_scaling_factor|mtp_layers_block_type",
    "a length": r"max_(position_embeddings|seq_len)|n_positions",
    "read by nothing there": r"norm_type|learned_pos_emb|expansion_ratio|topk_method|num_nextn_predict_layers"
    r"|qk_head_dim|head_dim|ep_size|aux_loss_alpha|seq_aux|num_hidden_layers|is_encoder_decoder|attn_config"
    r"|num_sparse_\w+_layers|feed_forward_proj|is_gated_act|partial_rotary_factor|tie_word_embeddings"
    r"|scale_attn_by_inverse_layer_idx|logit_scale|no_bias|sparse_step|intermediate_size|num_key_value_heads"
    r"|original_max_position_embeddings|sliding_window|max_window_layers|no_rope_layer_interval"
    r"|moe_layer_freq|decoder_sparse_step|encoder_sparse_step|expert_capacity|layer_types|d_ff|d_inner"
    r"|mamba_(expand|norm_before_gate|proj_bias|ssm_cache_dtype)|expand|rope_(theta|scaling)|attention_bias|mlp_bias|time_step_limit"
    r"|use_sliding_window|rope_parameters|projectors_bias|num_experts|n_group|topk_group|scoring_func"
    r"|time_step_rank|attn_logit_softcapping",
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
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


def changes(value: Any) -> list[Any]:
    """Other values of a field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(value - 1, 1), 2 * value]
    if isinstance(value, float):
        return [value * 1.5 + 0.25, value / 2]
    if isinstance(value, str):
        return [name for name in ACTIVATIONS if name != value][:2] if value in ACTIVATIONS else ["other"]
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


def check_field(folder: Path, base: dict[str, Any], key: str, kind: Any, before: Tensor) -> str | None:
    """Return what is wrong with a field, or None."""
    matters = tried = False
    names = {*base, *(inner for value in base.values() if isinstance(value, dict) for inner in value)}
    for value in changes(base.get(key)):
        if value == base.get(key):
            continue
        (folder / "config.json").write_text(json.dumps(base | {key: value}))
        expected = theirs(folder, kind)
        if expected is None:
            continue
        tried = True
        try:
            found = ours(folder, kind)
        except ValueError as error:
            matters = True
            if not any(f"{field}=" in str(error) for field in names) and "tensors " not in str(error):
                return f"{key}={value} is refused without its name: {error}"
            continue
        if found.shape != expected.shape or (found - expected).abs().max() > 2e-4 * expected.abs().max():
            return f"{key}={value} is ignored, or followed otherwise"
        matters |= not torch.allclose(expected, before, rtol=1e-5, atol=1e-6)
    listed = any(re.fullmatch(pattern, key) for pattern in NO_EFFECT.values())
    return f"{key} changes nothing and is on no list" if tried and not matters and not listed else None


@pytest.mark.full
@pytest.mark.parametrize("name", fast_only([*CLASSES], []))
def test_no_field_is_ignored(name: str, tmp_path: Path) -> None:
    kind = CLASSES[name]
    folder = make_folder(name, tmp_path / name)
    base = json.loads((folder / "config.json").read_text())
    before = theirs(folder, kind)
    assert before is not None
    fields = {key for key in hf.AutoConfig.from_pretrained(folder).to_dict() if not key.startswith("_")}
    wrong = [check_field(folder, base, key, kind, before) for key in sorted(fields - {*LIBRARY, *REWRITTEN})]
    problems = [problem for problem in wrong if problem is not None]
    assert not problems, problems
