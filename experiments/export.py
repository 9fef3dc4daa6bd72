"""Write a trained model as a folder that the Hugging Face library loads.

    archbench export run=runs/single/decoder-text-nano-1a2b3c4d/s0 to=exported
    archbench export run=FOLDER to=exported shard_bytes=2_000_000_000

Weights and settings are written, and the tokenizer if the run has trained one. For a Hugging Face folder, or
a run that was initialized from one, config.json, precision, tokenizer, chat template and
generation_config.json are copied. A model that no class of that library can express is rejected; the message
names the settings.
"""

from __future__ import annotations

import sys

from archbench.experiments.config.hydra_app import start
from archbench.experiments.config.hydra_overrides import literal

if __name__ == "__main__":  # before the imports below: see archbench.experiments.config.hydra_app
    start("archbench.experiments.export.export", "export", words=literal(sys.argv[1:]))
    sys.exit()

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.processors import TemplateProcessing

from archbench.architectures.backbone import Capabilities
from archbench.architectures.checkpoint_folders import CheckpointFolders, HFConfig, checkpoint_folders
from archbench.experiments.config.sections import plain_tree
from archbench.experiments.config.structured import typed
from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.run.load_model import LoadedModel, load_model
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Settings of ``experiments.export``."""

    run: str
    """Folder of a run, of one of its checkpoints (``RUN/checkpoints/step-N``), or of Hugging Face."""
    to: str
    """Folder to write, which must not exist yet."""
    shard_bytes: int | None = None
    """Maximum size of a file of weights; null writes one file."""
    model_type: str | None = None
    """``model_type`` in the library, if multiple classes compute the same; null uses the first."""

    def __post_init__(self) -> None:
        if self.shard_bytes is not None and self.shard_bytes < 1:
            raise ValueError(f"shard_bytes={self.shard_bytes} must be positive, or null")


def export(cfg: DictConfig) -> None:
    config = typed(ExportConfig, plain_tree(cfg), "")
    folder = Path(config.to)
    if folder.exists():
        raise ConfigError(f"to={folder} exists: name a folder that does not exist yet")
    try:
        folders = checkpoint_folders()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    source = Path(config.run)
    saved = load_model(source, torch.device("cpu"))
    original = None if saved.run is not None else folders.read_config_json(source)
    try:
        _write(folders, config, saved, original, folder)
    except OSError as error:
        raise CheckpointError(
            f"to={folder}: cannot be written: {error}; make room, or choose another folder"
        ) from error
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    blueprint = folders.read_folder_config(folder)
    print(
        f"{folder}: {architecture}, vocabulary {blueprint.vocab_size}, for {blueprint.max_length} tokens; "
        f"from {saved.description}"
    )


def _write(
    folders: CheckpointFolders,
    config: ExportConfig,
    saved: LoadedModel,
    original: HFConfig | None,
    folder: Path,
) -> None:
    """Write to a temporary folder that is then moved: the folder has all its files or does not exist."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export.", dir=folder.parent) as temporary:
        written = Path(temporary) / folder.name
        try:
            folders.save_folder(
                saved.model,
                written,
                shard_bytes=config.shard_bytes,
                model_type=config.model_type,
                token_ids=token_ids(saved),
                original=original,
                dtypes=None if original is None else folders.stored_dtypes(Path(config.run)),
            )
        except ValueError as error:
            raise ConfigError(f"{saved.description}: {error}") from None
        if saved.task.tokenizer is not None:
            write_tokenizer(saved.task.tokenizer, written, saved.model.capabilities)
        written.rename(folder)


def token_ids(saved: LoadedModel) -> dict[str, Any]:
    """Return the special tokens for config.json: those of the tokenizer's folder, or of our vocabulary."""
    if isinstance(saved.task.tokenizer, FolderTokenizer) and not saved.task.tokenizer.is_run:
        return saved.task.tokenizer.settings
    ids = special_ids(saved.task.vocabulary)
    if saved.model.capabilities.encoder_decoder and "pad_token_id" in ids:
        ids["decoder_start_token_id"] = ids["pad_token_id"]  # as in the objectives that generate a target
    return ids


def special_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the special tokens of a vocabulary by their key in config.json."""
    ids = {}
    for name in ("pad", "bos", "eos"):
        try:
            ids[f"{name}_token_id"] = getattr(vocabulary, name)
        except DataError:  # a folder's tokenizer need not have all of them
            continue
    return ids


def write_tokenizer(tokenizer: TextTokenizer, folder: Path, capabilities: Capabilities) -> None:
    """Copy the files of a tokenizer from a folder, or write ours with the settings that the library needs.

    Our tokenizer adds the special tokens that the model was trained with. Bytes need no files.
    """
    if isinstance(tokenizer, FolderTokenizer):
        tokenizer.copy_files(folder)
        if not tokenizer.is_run or (folder / "tokenizer_config.json").exists():
            return
    else:
        tokenizer.save(folder)
    file = folder / "tokenizer.json"
    if not file.exists():
        return
    ids = special_ids(tokenizer.vocabulary)
    written = HFTokenizer.from_file(str(file))
    names = {key: written.id_to_token(i) for key, i in ids.items()}
    bos, eos = names["bos_token_id"], names["eos_token_id"]
    before, after = [] if capabilities.encoder_decoder else [bos], [] if capabilities.causal else [eos]
    written.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B", *after],
        special_tokens=[(bos, ids["bos_token_id"]), (eos, ids["eos_token_id"])],
    )
    written.save(str(file))
    special = {key.removesuffix("_id"): name for key, name in names.items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
