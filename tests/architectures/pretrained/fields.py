"""Compare what we and transformers compute from a configuration with some fields changed.

A folder is written by their library, ``config.json`` is changed, and both libraries compute its logits. The
fields are those that their library writes, those of our table, and those of other families.
"""

import functools
import json
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from archbench.architectures.pretrained import load_folder
from archbench.architectures.pretrained.checkpoint import Checkpoint, families
from tests.architectures.pretrained.field_values import (
    BASES,
    FITTING,
    FOREIGN,
    REMOVED,
    ROTARY,
    Settings,
    other_values,
)
from tests.architectures.pretrained.folders import (
    DECODERS,
    EAGER,
    ENCODER_DECODERS,
    ENCODERS,
    draw_weights,
    make_model,
)
from tests.architectures.pretrained.parity import KeepFloat64, error

hf.logging.set_verbosity_error()  # its table of tensors takes as long as opening a folder
hf.logging.disable_progress_bar()

NO_EFFECT = {
    "training": r"\w*(dropout|pdrop|jitter|layerdrop)\w*|\w*router\w*(coef|coefficient|logits|probs)"
    r"|sparse_pred(iction|_ignore_index)|z_loss_coefficient|router_ignore_padding_tokens"
    r"|pretraining_tp|summary_\w+|gradient_checkpointing",
    "initialisation": r"initializer_(range|factor|cutoff_factor)|init_(std|device|method)"
    r"|time_step_(min|max|floor|scale)|time_step_init_scheme|embedding_fraction|sinusoidal_pos_embds",
    "generation": r"\w+_token_id|use_cache|num_logits_to_keep",
    "computation": r"use_(mambapy|mamba_kernels|associative_scan|falcon_mambapy)|\w*chunk_size\w*"
    r"|slow_but_exact|deterministic_flash_attn|reorder_and_upcast_attn|residual_in_fp32|output_\w+|return_dict|attn_implementation"
    r"|autocast_kernel_dtype|norm_reduction_force_float32|(chunkwise|sequence|step)_kernel|mode"
    r"|max_inference_chunksize|return_last_states",
    "other heads": r"id2label|label2id|problem_type|num_labels|classifier_\w+|is_decoder|add_cross_attention",
    "experts or prediction layers absent": r"moe_\w+|n_(routed|shared)_experts"
    r"|norm_topk_prob|num_experts_per_tok|routed_scaling_factor|mtp_layers_block_type",
    "no other value opens there": r"weight_mode",
    "length": r"max_(position_embeddings|seq_len)|n_positions",
    "not read by transformers": r"norm_type|learned_pos_emb|expansion_ratio|topk_method"
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
OUTPUT = ("length", "not read by transformers", "experts or prediction layers absent")
"""Reasons of fields that change the output beside some others."""
CLASSES = (
    dict.fromkeys(DECODERS, hf.AutoModelForCausalLM)
    | dict.fromkeys(ENCODER_DECODERS, hf.AutoModelForSeq2SeqLM)
    | dict.fromkeys(ENCODERS, hf.AutoModelForMaskedLM)
)
"""Class that opens each folder."""
TOLERANCE = 1e-5
"""Largest difference of ours from theirs in float64, as a fraction of the largest logit: some of theirs is
computed in float32."""
LARGEST = 2_000_000
"""Parameters of the largest model that is made."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A folder to begin with, and what is changed in its config.json."""

    name: str
    base: int
    changes: Settings

    def __str__(self) -> str:
        shown = (f"{k}={'(removed)' if v is REMOVED else v}" for k, v in self.changes.items())
        return f"{self.name} with {BASES[self.name][self.base]}: {', '.join(shown)}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a case."""

    kind: str
    """``equal`` logits, ``refused`` here, ``missing`` where that is for want of a field, ``void`` where their
    library refuses it, or ``wrong``."""
    moved: bool = False
    """Their logits are not those of the folder to begin with."""
    redrawn: bool = False
    """The tensors of the folder did not go with it, and new ones were made."""
    problem: str = ""
    """What is wrong."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A folder to begin with."""

    config: Settings
    fields: list[str]
    """Names of fields that can change the output."""
    weights: bytes
    logits_BTV: Tensor


@functools.cache
def begin(name: str, base: int, folder: Path) -> Start:
    """Make a folder to begin with."""
    given = BASES[name][base]
    model = make_model(name, **{key: value for key, value in given.items() if value is not REMOVED})
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if given.get(key) is not REMOVED}
    (folder / "config.json").write_text(json.dumps(config))
    family = family_of(model.config.model_type)
    names = {*declared(model.config), *model.config.attribute_map, *family.fields, *family.aliases}
    names |= {*ROTARY} if hasattr(model.config, "rope_parameters") else set()
    logits_BTV = theirs(folder, name)
    assert logits_BTV is not None
    return Start(
        config=config,
        fields=sorted(key for key in names if reason(key) in (None, *OUTPUT)),
        weights=(folder / "model.safetensors").read_bytes(),
        logits_BTV=logits_BTV,
    )


def family_of(model_type: str) -> type[Checkpoint]:
    """Our table for their class."""
    return next(family for family in families() if model_type in family.model_types)


def declared(config: hf.PretrainedConfig) -> list[str]:
    """The fields that their library writes for a class, without those of the library itself."""
    fields = {key for key in config.to_dict() if not key.startswith("_")}
    return sorted(fields - {*LIBRARY, *REWRITTEN})


def reason(key: str) -> str | None:
    """Why a field cannot change the output, or None where it is on no list."""
    return next((why for why, pattern in NO_EFFECT.items() if re.fullmatch(pattern, key)), None)


def try_case(case: Case, folder: Path) -> Outcome:
    """Change config.json of a folder, and compare; with new tensors where it does not go with the old."""
    start = begin(case.name, case.base, folder)
    config = {k: v for k, v in (start.config | case.changes).items() if v is not REMOVED}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(start.weights)
    expected, redrawn = theirs(folder, case.name), False
    if expected is None and redraw_folder(folder, case.name, config):
        expected, redrawn = theirs(folder, case.name), True
    if expected is None:
        return Outcome(kind="void")
    before = start.logits_BTV
    moved = redrawn or before.shape != expected.shape or error(before, expected) > 2 * TOLERANCE
    try:
        found = ours(folder, CLASSES[case.name], torch.float64)
    except ValueError as refusal:
        names = {*config, *case.changes, *(k for v in config.values() if isinstance(v, dict) for k in v)}
        named = "tensors " in str(refusal) or any(re.search(rf"\b{n}\b", str(refusal)) for n in names)
        problem = "" if named else f"{case}: refused without the name of a field: {refusal}"
        kind = "missing" if REMOVED in case.changes.values() else "refused"
        return Outcome(kind=kind if named else "wrong", problem=problem)
    if found.shape != expected.shape or error(found, expected) > TOLERANCE:
        return Outcome(kind="wrong", problem=f"{case}: ignored, or followed otherwise")
    return Outcome(kind="equal", moved=moved, redrawn=redrawn)


@torch.no_grad()
def theirs(folder: Path, name: str) -> Tensor | None:
    """Their logits in float64, or None where they refuse the folder or miss a tensor."""
    try:
        model, info = CLASSES[name].from_pretrained(
            folder, output_loading_info=True, dtype=torch.float64, **EAGER
        )
        if any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
            return None
        for key, buffer in model.named_buffers():
            if key.endswith("inv_freq"):  # angles are of float32 on both sides
                buffer.data = buffer.data.float()
        with KeepFloat64():
            logits = model.eval()(**inputs(CLASSES[name])).logits
    except Exception:  # whatever a value brings about
        return None
    return logits if logits.isfinite().all() else None


def redraw_folder(folder: Path, name: str, config: Settings) -> bool:
    """Write new tensors for a config.json into its folder. Return False where their library refuses it."""
    try:
        read = hf.AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = CLASSES[name].from_config(read, **EAGER)
        if sum(p.numel() for p in model.parameters()) > LARGEST:
            return False
        torch.manual_seed(0)
        draw_weights(CLASSES[name].from_config(read, **EAGER)).save_pretrained(folder)
    except Exception:  # whatever a value brings about
        return False
    (folder / "config.json").write_text(json.dumps(config))  # which the library has completed
    return True


def inputs(kind: Any) -> dict[str, Tensor]:
    """Tokens for their model."""
    generator = torch.Generator().manual_seed(0)
    tokens_BT, target_BT = torch.randint(8, 290, (2, 2, 22), generator=generator)
    seq2seq = kind is hf.AutoModelForSeq2SeqLM
    return {"input_ids": tokens_BT} | ({"decoder_input_ids": target_BT} if seq2seq else {})


@torch.no_grad()
def ours(folder: Path, kind: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Our logits for the same tokens. Raises ValueError where the folder is refused."""
    given = inputs(kind)
    tokens_BT, source = given["input_ids"], {}
    if "decoder_input_ids" in given:
        tokens_BT, source = given["decoder_input_ids"], {"source_BS": tokens_BT}
    return load_folder(folder, dtype=dtype).eval()(tokens_BT, **source).logits_BTV


def random_case(name: str, count: int, rng: random.Random, folder: Path) -> Case:
    """Return a case in which ``count`` fields are changed, each to a value that goes with those before it."""
    base = rng.randrange(len(BASES[name]))
    start, changes = begin(name, base, folder / str(base)), {}
    for key in [*rng.sample(start.fields, count), *rng.sample(FOREIGN, rng.random() < 0.2)]:
        values = other_values(key, start.config.get(key), start.config | changes)
        changes[key] = rng.choice([*values, REMOVED])
    return Case(name=name, base=base, changes=changes)


def changes_of_fields(name: str, base: int, folder: Path) -> dict[str, list[Settings]]:
    """Return the changes to try for each field: in the first folder of all fields, and of those of other
    families; in later ones of those that can change the output."""
    start = begin(name, base, folder)
    tried = {key: other_values(key, start.config.get(key), start.config) for key in start.fields}
    changes = {key: [{key: value} for value in [*values, REMOVED]] for key, values in tried.items()}
    if base == 0:
        for key in {*declared(hf.AutoConfig.from_pretrained(folder)), *FOREIGN} - {*tried}:
            value = start.config.get(key)
            changes[key] = [{key: other} for other in other_values(key, value, start.config)[:2]]
    return {key: [*each, *FITTING.get(key, [])] for key, each in changes.items()}


Outcomes = dict[str, list[Outcome]]
"""Outcomes of the changes of each field."""


def try_all(name: str, folder: Path, most: Sequence[int]) -> Outcomes:
    """Change every field of a class, one by one, to at most so many values in its first folder, in its
    second, ..."""
    outcomes: Outcomes = {}
    for base, count in zip(range(len(BASES[name])), most, strict=False):
        room = folder / str(base)
        for key, changes in changes_of_fields(name, base, room).items():
            cases = [Case(name=name, base=base, changes=each) for each in changes[:count]]
            outcomes.setdefault(key, []).extend(try_case(case, room) for case in cases)
    return outcomes


FEW = 2
"""Changes of a field that are tried alone where it has many: each class takes others."""


def try_some(name: str, folder: Path) -> Outcomes:
    """Change every field of a class in its first folder: those that can change the output alone and, where
    they have few values, to the others and to none together; those that cannot, together."""
    turn, start = FEW * [*CLASSES].index(name), begin(name, 0, folder)
    alone: list[tuple[str, Settings]] = []
    together: defaultdict[int, dict[str, Settings]] = defaultdict(dict)
    for key, changes in changes_of_fields(name, 0, folder).items():
        if key not in start.fields:
            together[0][key] = changes[0]
        elif len(changes) > FEW + 1:
            sized = isinstance(start.config.get(key), int)  # without their sizes, models are large
            many = [each for each in changes if not (sized and each[key] is REMOVED)]
            alone += [(key, many[(turn + i) % len(many)]) for i in range(FEW)]
        else:
            alone.append((key, changes[0]))
            for place, each in enumerate(changes[1:], 1):
                together[place][key] = each
    outcomes: Outcomes = {key: [] for key in (*together[0], *(key for key, _ in alone))}
    for key, changed in alone:
        outcomes[key].append(try_case(Case(name=name, base=0, changes=changed), folder))
    for place, group in sorted(together.items()):
        for key, outcome in try_together(name, group, folder, may_move=place > 0).items():
            outcomes[key].append(outcome)
    return outcomes


def try_together(
    name: str, group: dict[str, Settings], folder: Path, *, may_move: bool
) -> dict[str, Outcome]:
    """Change fields at once. Where the logits are not equal, or not those of the folder to begin with, change
    each half of the fields, so that in the end one alone is to blame."""
    merged: Settings = {key: value for changes in group.values() for key, value in changes.items()}
    outcome = try_case(Case(name=name, base=0, changes=merged), folder)
    if len(group) == 1:
        return dict.fromkeys(group, outcome)
    if outcome.kind == "equal" and (may_move or not outcome.moved):
        return dict.fromkeys(group, Outcome(kind="equal"))
    items = sorted(group.items())
    halves = dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])
    one, two = (try_together(name, half, folder, may_move=may_move) for half in halves)
    return one | two
