"""Text from Hugging Face folders, by ``archbench generate`` and by their own library."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from archbench.experiments.generate import generate
from tests.architectures.pretrained.folders import EAGER
from tests.experiments import commands

ALONE = ("xlstm",)
"""Kinds of models whose class in their library takes no mask, so that it reads padding as tokens, and has a
cache that beam search cannot reorder, and refuses it."""


def ours(folder: Path, *words: str) -> list[str]:
    """The texts that ``archbench generate`` prints."""
    cfg = commands.composed_with("generate", {"run": str(folder)}, *words, "device=cpu")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        generate(cfg)
    parts = re.split(r"(?:^|\n)--- \d+ of \d+ ---\n", printed.getvalue()[:-1])
    return parts if len(parts) == 1 else parts[1:]


@torch.no_grad()
def theirs(folder: Path, prompts: list[str], *, skip: bool = False, **settings: Any) -> list[str]:
    """The texts that their library generates in one batch, if it can; ``skip`` leaves the prompt out."""
    config = hf.AutoConfig.from_pretrained(folder)
    if config.model_type in ALONE and len(prompts) > 1:
        return [theirs(folder, [prompt], skip=skip, **settings)[0] for prompt in prompts]
    tokenizer, seq2seq = hf.AutoTokenizer.from_pretrained(folder), config.is_encoder_decoder
    kind = hf.AutoModelForSeq2SeqLM if seq2seq else hf.AutoModelForCausalLM
    model = kind.from_pretrained(folder, **EAGER).eval()
    inputs = tokenizer(prompts, padding=True, return_tensors="pt", return_token_type_ids=False)
    settings = {"do_sample": False, "max_new_tokens": 16} | settings
    if "stop_strings" in settings:
        settings["tokenizer"] = tokenizer
    found = model.generate(**inputs, **settings)
    return tokenizer.batch_decode(
        found[:, inputs.input_ids.shape[1] :] if skip else found, skip_special_tokens=True
    )


def quoted(prompts: list[str]) -> str:
    return "prompt=[" + ",".join(f"'{prompt}'" for prompt in prompts) + "]"


@torch.no_grad()
def chats(folder: Path, messages: list[dict[str, str]], **settings: Any) -> str:
    """The reply of a model to a conversation, through the chat template of its folder."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForCausalLM.from_pretrained(folder, **EAGER).eval()
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    found = model.generate(**inputs, do_sample=False, **settings)
    return str(tokenizer.decode(found[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))
