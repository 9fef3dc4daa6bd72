"""Hugging Face folders that are written again, and fine-tuned, here and by their own library."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from archbench.architectures.backbone import Backbone
from archbench.architectures.pretrained import load_folder
from archbench.experiments.export import export
from tests.architectures.pretrained.encoders.test_diffusion import dream_folder, llada_folder, unmasked
from tests.architectures.pretrained.folders import (
    DECODERS,
    EAGER,
    ENCODER_DECODERS,
    ENCODERS,
    VOCABULARY,
    make_folder,
    make_tokenizer,
)
from tests.architectures.pretrained.parity import KeepFloat64
from tests.experiments import commands

DIFFUSION = {"llada": (llada_folder, "llama"), "dream": (dream_folder, "gpt")}
"""Folders whose class is not in their library: those of Llama and Qwen2, read without a causal mask."""
ALL = [*DECODERS, *ENCODER_DECODERS, *ENCODERS, *DIFFUSION]
WEIGHTS = "model.safetensors"
UNREAD = {"bart": 2, "mbart": 2, "roberta": 2, "xlm_roberta": 2}
"""First rows of tables of positions that only padding reads, if anything; they are written as zeros."""


def opened(folder: Path) -> Any:
    """The model of a folder, by their library."""
    config = hf.AutoConfig.from_pretrained(folder)
    kind = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
    if config.architectures[0].endswith("ForMaskedLM"):
        kind = hf.AutoModelForMaskedLM
    return kind.from_pretrained(folder, **EAGER).eval()


def make_any(name: str, folder: Path, dtype: torch.dtype) -> Path:
    """A folder of any family, in a precision."""
    if name not in DIFFUSION:
        make_folder(name, folder, **({} if name in ENCODERS else {"max_new_tokens": 9}))
        if dtype != torch.float32:
            opened(folder).to(dtype).save_pretrained(folder)
        return folder
    make, tokenizer = DIFFUSION[name]
    folder.mkdir()
    make(folder, vocab_size=VOCABULARY)
    tensors = {key: tensor.to(dtype) for key, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())  # written as their library would
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    make_tokenizer(tokenizer).save_pretrained(folder)
    return folder


def changed_files(folder: Path, written: Path) -> set[str]:
    """Write a folder again, and return the names of files that are not the same byte for byte."""
    export(commands.composed_with("export", {"run": str(folder), "to": str(written)}))
    before, after = ({file.name: file.read_bytes() for file in f.iterdir()} for f in (folder, written))
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def changed_tensors(name: str, folder: Path, written: Path) -> set[str]:
    """Return the names of tensors that differ in what a token reads."""
    before, after = (load_file(f / WEIGHTS) for f in (folder, written))
    assert after.keys() == before.keys()
    changed = set()
    for key, tensor in before.items():
        table = "embed_positions" in key or "position_embeddings" in key
        first = UNREAD.get(name, 0) if table else 0
        assert after[key].dtype == tensor.dtype
        if not torch.equal(after[key][first:], tensor[first:]):
            changed.add(key)
    return changed


def both_models(name: str, folder: Path) -> tuple[Backbone, Any]:
    """Make a folder, and return its model in float64 without dropout: ours, and that of their library."""
    if name in DIFFUSION:
        folder.mkdir()
        theirs = DIFFUSION[name][0](folder)
    else:
        theirs = opened(make_folder(name, folder)).double()
    theirs.config.use_cache = False  # that of xLSTM is written in place, which gradients do not allow
    for key, buffer in theirs.named_buffers():
        if key.endswith("inv_freq"):  # of float32 on both sides
            buffer.data = buffer.data.float()
    return load_folder(folder, dtype=torch.float64).eval(), theirs


def tuned_losses(name: str, folder: Path) -> tuple[list[float], list[float]]:
    """Make a folder, and return the losses of three steps of AdamW: ours, and those of their library.

    In float64: the first step of AdamW divides each gradient by its size, noise as well.
    """
    ours, theirs = both_models(name, folder)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(8, min(290, ours.vocab_size), (3, 12), generator=generator)
    target_BT, seq2seq = tokens_BT.flip(1), name in ENCODER_DECODERS

    def our_logits() -> Tensor:
        return ours(target_BT, **({"source_BS": tokens_BT} if seq2seq else {})).logits_BTV

    def their_logits() -> Tensor:
        if name in DIFFUSION:
            logits_BTV = unmasked(theirs, target_BT, torch.ones_like(target_BT, dtype=torch.bool))
            before_BTV = torch.cat([logits_BTV[:, :1], logits_BTV[:, :-1]], dim=1)
            return before_BTV if name == "dream" else logits_BTV
        inputs = {"decoder_input_ids": target_BT} if seq2seq else {}
        with KeepFloat64():
            return theirs(input_ids=tokens_BT if seq2seq else target_BT, **inputs).logits

    return fine_tuned(ours, our_logits, target_BT), fine_tuned(theirs, their_logits, target_BT)


def fine_tuned(model: nn.Module, logits: Callable[[], Tensor], target_BT: Tensor) -> list[float]:
    """The losses of three steps."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits()[:, :-1].flatten(0, 1), target_BT[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trip_row(name: str, room: Path) -> list[str]:
    """Return a family, what is equal after a round trip in each precision, and the difference of losses."""
    cells = [name]
    for dtype in (torch.float32, torch.bfloat16):
        folder, written = room / f"{name} {dtype}", room / f"{name} {dtype} again"
        make_any(name, folder, dtype)
        files = changed_files(folder, written)
        alike = files <= {WEIGHTS} and not changed_tensors(name, folder, written)
        cells.append("differs" if not alike else "but for unread rows" if files else "=")
    ours, theirs = tuned_losses(name, room / f"{name} tuned")
    furthest = max(abs(one / two - 1) for one, two in zip(ours, theirs, strict=True))
    return [*cells, f"{furthest:.0e}"]
