"""Writes a trained model as a folder that the Hugging Face library loads.

    python -m experiments.export run=runs/single/decoder-text-nano-1a2b3c4d/s0 to=exported
    python -m experiments.export run=FOLDER to=exported shard_bytes=2_000_000_000

The weights and settings are written, and the tokenizer where the run has learned
one. A model that no class of that library can express is refused by the settings
in the way.
"""

from __future__ import annotations

import sys

from experiments.config.hydra_app import literal, start

if __name__ == "__main__":  # before the imports below: see experiments.config.hydra_app
    sys.argv[1:] = literal(sys.argv[1:])
    start("experiments.export.export", "export")
    sys.exit()

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from architectures.pretrained import read_folder_config, save_folder
from experiments.config.structured import typed
from experiments.data.tokenizer import TextTokenizer
from experiments.data.vocabulary import Vocabulary
from experiments.run.load_model import load_model
from experiments.runtime.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Settings of ``experiments.export``."""

    run: str
    """Folder of a run or of Hugging Face."""
    to: str
    """Folder to write, which must not exist yet."""
    shard_bytes: int | None = None
    """Splits the weights into files of at most this size; null writes one."""
    model_type: str | None = None
    """``model_type`` there, where several classes compute the same; null takes the first."""

    def __post_init__(self) -> None:
        if self.shard_bytes is not None and self.shard_bytes < 1:
            raise ValueError(f"shard_bytes={self.shard_bytes} must be positive, or null")


def export(cfg: DictConfig) -> None:
    tree = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(tree, dict)
    config = typed(ExportConfig, {str(key): value for key, value in tree.items()}, "")
    folder = Path(config.to)
    if folder.exists():
        raise ConfigError(f"to={folder} exists: name a folder that does not exist yet")
    saved = load_model(Path(config.run), torch.device("cpu"))
    ids = token_ids(saved.task.vocabulary)
    if saved.model.capabilities.encoder_decoder and "pad_token_id" in ids:
        ids["decoder_start_token_id"] = ids["pad_token_id"]  # as in the objectives that write a target
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved, so that the folder is there with all its files or not at all.
    with tempfile.TemporaryDirectory(prefix=".export.", dir=folder.parent) as temporary:
        whole = Path(temporary) / folder.name
        try:
            save_folder(
                saved.model,
                whole,
                shard_bytes=config.shard_bytes,
                model_type=config.model_type,
                token_ids=ids,
            )
        except ValueError as error:
            raise ConfigError(f"{saved.description}: {error}") from None
        if saved.task.tokenizer is not None:
            write_tokenizer(saved.task.tokenizer, whole)
        whole.rename(folder)
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    blueprint = read_folder_config(folder)
    print(f"{folder}: {kind}, vocabulary {blueprint.vocab_size}, made for {blueprint.max_length} tokens")


def token_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The special tokens for config.json, as far as the vocabulary has them."""
    found = {}
    for name in ("pad", "bos", "eos"):
        try:
            found[f"{name}_token_id"] = getattr(vocabulary, name)
        except DataError:  # a folder's tokenizer need not have all of them
            continue
    return found


def write_tokenizer(tokenizer: TextTokenizer, folder: Path) -> None:
    """tokenizer.json and, beside it, what tells that library how to read it; nothing for plain bytes."""
    tokenizer.save(folder)
    if not (folder / "tokenizer.json").exists():
        return
    names = {added["id"]: added["content"] for added in _added(folder)}
    special = {
        key.removesuffix("_id"): names[i] for key, i in token_ids(tokenizer.vocabulary).items() if i in names
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _added(folder: Path) -> list[dict[str, object]]:
    return json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
