"""What is said about words that Hydra does not take: one line, with the name or the value to type instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

import hydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config.folder import CONF
from experiments.config.legacy import renamed_key, renamed_option
from experiments.config.structured import whole_number_hint
from experiments.runtime.errors import ConfigError, nearest

SYNONYMS = {
    name: ours
    for ours, names in {
        "backbone": "model arch architecture model_name network",
        "backbone.attention.num_heads": "n_head n_heads num_heads nhead num_attention_heads heads",
        "backbone.block.dropout": "dropout resid_pdrop hidden_dropout_prob",
        "backbone.d_ff": "intermediate_size ffn_dim dim_feedforward n_inner",
        "backbone.d_model": "n_embd n_embed hidden_size dim embed_dim hidden_dim embedding_dim model_dim",
        "budget.batch_size": "batch_size bsz bs train_batch_size per_device_train_batch_size "
        "global_batch_size",
        "budget.micro_batch_size": "gradient_accumulation_steps grad_accum accumulate_grad_batches "
        "gradient_accumulation accum_steps",
        "budget.tokens": "epochs num_epochs max_epochs num_train_epochs n_epochs max_steps steps num_steps "
        "max_iters iters iterations total_steps train_steps num_training_steps tokens",
        "continue_from": "resume resume_from resume_from_checkpoint",
        "device": "gpus gpu cuda accelerator devices",
        "device.precision": "precision dtype bf16 fp16 amp mixed_precision torch_dtype",
        "init_from": "checkpoint ckpt ckpt_path pretrained load_from model_name_or_path from_pretrained",
        "objective": "loss loss_fn criterion",
        "optimizer": "optim opt",
        "optimizer.betas": "beta1 beta2 adam_beta1 adam_beta2 betas",
        "optimizer.clip_norm": "grad_clip max_grad_norm gradient_clip_val gradient_clipping clip_grad_norm",
        "optimizer.eps": "adam_epsilon epsilon",
        "optimizer.learning_rate": "lr learning_rate max_lr peak_lr base_lr",
        "optimizer.min_lr_ratio": "min_lr lr_min",
        "optimizer.schedule": "scheduler lr_scheduler lr_scheduler_type lr_schedule decay",
        "optimizer.warmup_fraction": "warmup warmup_steps warmup_ratio num_warmup_steps warmup_iters",
        "optimizer.weight_decay": "wd weight_decay",
        "runs": "output_dir out_dir outdir save_dir log_dir logdir workdir default_root_dir",
        "scale": "size model_size",
        "scale.depth": "n_layer n_layers num_layers num_hidden_layers depth layers",
        "seed": "random_seed manual_seed rng_seed seeds",
        "study.name": "name run_name experiment exp_name experiment_name",
        "task": "data dataset dataset_name corpus data_path",
        "task.sequence_length": "seq_len seqlen seq_length max_length max_len max_seq_len max_seq_length "
        "block_size context_length ctx_len n_ctx n_positions max_position_embeddings",
        "task.tokenizer.kind": "tokenizer tokenizer_name",
        "task.tokenizer.vocab_size": "vocab_size n_vocab",
        "tracking": "wandb logger report_to",
        "tracking.project": "project wandb_project project_name",
        "trainer.checkpoint_every": "save_every save_steps save_interval checkpoint_interval",
        "trainer.compile": "compile torch_compile",
        "trainer.evaluate_every": "eval_every eval_interval eval_steps val_check_interval evaluation_steps",
        "trainer.log_every": "log_interval logging_steps log_steps log_every_n_steps print_every",
    }.items()
    for name in names.split()
}  # fmt: skip
"""Usual names of other programs, and ours."""

MEANINGS = {
    "budget.tokens": "training tokens in all: steps x sequences x their length",
    "budget.micro_batch_size": "sequences of each forward pass; budget.batch_size stays as it is",
    "optimizer.betas": "both, as [0.9,0.95]",
    "optimizer.min_lr_ratio": "as a share of the peak",
    "optimizer.warmup_fraction": "as a share of the steps",
    "continue_from": "a run that was interrupted continues by the same command",
}
"""What our key holds, where it is not what the other program's does."""

EXTRAS = {
    ("hydra/sweeper", "optuna"): "optuna",
    ("hydra/launcher", "submitit_slurm"): "slurm",
    ("hydra/launcher", "submitit_local"): "slurm",
}
"""Options that a package of an extra brings."""

DEEPEST, LONGEST_NUMBER = 40, 400
"""Brackets inside brackets, and digits, above which a word is no setting but a mistake."""


def refuse_unreadable(words: Sequence[str]) -> None:
    """Refuse words whose reading would exhaust Python's stack, or its longest number. Raises ConfigError."""
    for word in words:
        key, _, value = word.partition("=")
        plain = re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", "", value)
        depth = deepest = 0
        for letter in plain:
            depth += (letter in "[{(") - (letter in ")}]")
            deepest = max(deepest, depth)
        if deepest > DEEPEST:
            raise ConfigError(
                f"{key}: nested {deepest} brackets deep, no setting is; at most {DEEPEST} are read"
            )
        if re.search(rf"\d{{{LONGEST_NUMBER}}}", plain):
            raise ConfigError(f"{key}: a number of more than {LONGEST_NUMBER} digits is no setting")


def explain(error: Exception, config_name: str = "config") -> str:
    """Hydra's message in one line, with the nearest valid name where one was mistyped."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = "\n".join(str(e) for e in chain)
    if found := re.search(r"Could not find '([\w/]+)/([^']+)'", text):
        return _unknown_option(found[1], found[2], text)
    if found := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(found[1], config_name)
    if isinstance(error, OverrideParseException) and "=" in error.override:
        return _no_word(error)
    if isinstance(chain[-1], OmegaConfBaseException):  # names key, value and type
        said = str(chain[-1]).splitlines()[0]
        wrong = re.search(r"Value '([^']*)'.* converted to Integer", said)
        key = chain[-1].full_key or ""
        return f"{key}: {said}{whole_number_hint(key, wrong[1]) if wrong else ''}"
    return " ".join(line.strip() for line in str(error).strip().splitlines() if line.strip())


def _no_word(error: OverrideParseException) -> str:
    """Return what is wrong with a word that is none of Hydra's grammar, and how its value is quoted."""
    key, _, value = error.override.partition("=")
    reason = " ".join(line for line in str(error).splitlines() if not line.startswith("See ")).strip()
    said = f"{error.override}: cannot be read ({reason})"
    if not re.fullmatch(r"[\w./@+~-]+", key) or re.search(r"['\"\\]", value):
        return said
    return f"{said}; to give the value as text, quote it twice: '{key}=\"{value}\"'"


def _unknown_option(group: str, option: str, text: str) -> str:
    listed = text.split(f"options in '{group}':", 1)[-1].splitlines()
    options = [line.strip() for line in listed if re.fullmatch(r"\s*[\w.-]+\s*", line)]
    if (now := renamed_option(group, option)) is not None:
        return f"{group}={option} is now {group}={now}"
    if (extra := EXTRAS.get((group, option))) is not None:
        return f"{group}={option}: its package is not installed: pip install 'archbench[{extra}]'"
    return f"{group}={option}: there is no conf/{group}/{option}.yaml{nearest(option, options)}"


def _unknown_key(key: str, config_name: str) -> str:
    parent, _, leaf = key.rpartition(".")
    cfg = _composed(config_name)
    node = OmegaConf.select(cfg, parent) if parent else cfg
    beside = [str(name) for name in node] if isinstance(node, DictConfig) else []
    if (now := renamed_key(key, set(beside))) is not None:
        return f"{key} is now {now}"
    keys = set(_dotted(cfg))
    ours = SYNONYMS.get(leaf)
    if ours in keys:
        meaning = f" ({MEANINGS[ours]})" if ours in MEANINGS else ""
        return f"{key}: there is no such key; did you mean '{ours}'?{meaning}"
    same = sorted(other for other in keys if other.rpartition(".")[2] == leaf)
    if same:
        return f"{key}: there is no such key; did you mean {' or '.join(map(repr, same[:4]))}?"
    return f"{key}: there is no such key{nearest(leaf, beside)}"


def _composed(config_name: str) -> DictConfig:
    """Return the configuration without the overrides of single keys; empty where groups are wrong too."""
    groups = [word for word in sys.argv[1:] if re.fullmatch(r"[a-z_]+=[\w.-]+", word)]
    chosen = [word for word in groups if (CONF / word.partition("=")[0]).is_dir()]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            return hydra.compose(config_name, overrides=chosen)
        except HydraException:
            return OmegaConf.create()


def _dotted(cfg: DictConfig) -> Iterator[str]:
    """Yield the dotted key of every setting and section; references are not followed."""
    waiting = [("", OmegaConf.to_container(cfg, resolve=False))]
    while waiting:
        prefix, node = waiting.pop()
        for name, value in node.items() if isinstance(node, dict) else ():
            key = f"{prefix}{name!s}"
            yield key
            waiting.append((f"{key}.", value))
