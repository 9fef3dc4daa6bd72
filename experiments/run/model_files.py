"""A trained model on disk: its specification, its tensors, and loading them into a module.

It is the folder of a run (model.json and checkpoints), one of its checkpoints
(``RUN/checkpoints/step-N``), or a folder of the Hugging Face library (config.json
and safetensors). Nothing else of either is needed here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.architectures.checkpoint_folders import checkpoint_folders
from archbench.experiments.config.structured import load_class, typed
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, nearest_folder
from archbench.experiments.runtime.json_state import read_json, read_mark
from archbench.experiments.tasks.task import Task
from archbench.experiments.tracking.provenance import changed_code
from archbench.experiments.tracking.run_files import checksum, is_intact
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.checkpoints.stored_state import (
    in_shards,
    read_tensors,
    stored_tensors,
    unique_tensors,
    weight_files,
    whole_tensors,
)

if TYPE_CHECKING:
    from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
    from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer

RECORD = "model.json"
"""File next to the checkpoints of a run, with all that is needed to build the module again."""
PARENT = "parent.json"
"""File of a run that was continued from another (``continue_from``), whose checkpoint was copied."""


class ModelRecord(TypedDict):
    """model.json."""

    name: str
    backbone: dict[str, Any]
    vocab_size: int
    max_length: int
    tokenizer: str | None
    checksum: str


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Specification of a model: all that is needed to build the module."""

    name: str
    """Backbone name of runs that start from it: the YAML of its backbone, or the name of the folder."""
    backbone_class: type[Backbone]
    config: BackboneConfig
    """Configuration of the backbone, with every width resolved."""
    vocab_size: int
    max_length: int
    tokenizer: str | None
    """Fingerprint of the tokenizer whose ids it uses; None if unknown, or without a tokenizer."""

    @classmethod
    def of(cls, model: Backbone, name: str, tokenizer: TextTokenizer | None) -> ModelSpec:
        """Return the specification of a model, and of the tokenizer it is trained with."""
        return cls(
            name=name,
            backbone_class=type(model),
            config=model.config,
            vocab_size=model.vocab_size,
            max_length=model.max_length,
            tokenizer=None if tokenizer is None else tokenizer.fingerprint,
        )

    def check(self, task: Task, path: Path) -> None:
        """Check that a task has the token ids that the model was trained on. Raises ConfigError."""
        unknown = self.tokenizer is None or task.tokenizer is None
        same = unknown or task.tokenizer.fingerprint == self.tokenizer  # type: ignore[union-attr]
        if not same or self.vocab_size != task.vocabulary.size:
            raise ConfigError(
                f"{path}: this model knows a vocabulary of {self.vocab_size} tokens, the task another, of "
                f"{task.vocabulary.size}: use the same tokenizer, where the folder has a tokenizer.json by "
                f"task.tokenizer.kind=folder task.tokenizer.path={path}"
            )

    def section(self) -> dict[str, Any]:
        """Return the ``backbone`` section of a configuration that describes the model."""
        target = f"{self.backbone_class.__module__}.{self.backbone_class.__qualname__}"
        return {"_target_": target, **dataclasses.asdict(self.config)}

    def write(self, folder: Path) -> None:
        """Write model.json."""
        sizes = {"vocab_size": self.vocab_size, "max_length": self.max_length}
        tree = {"name": self.name, "backbone": self.section(), **sizes, "tokenizer": self.tokenizer}
        write_json(folder / RECORD, {**tree, "checksum": checksum(tree)})


def model_folder(path: Path) -> Path:
    """Return the folder of a model that a path names: that of the run where it names a checkpoint."""
    named = path.parent.name == "checkpoints" and re.fullmatch(r"step-\d+", path.name)
    return path.parents[1] if named else path


def warn_of_changed_code(folder: Path, modules: Iterable[str]) -> None:
    """Warn where the code that uses a model is not the code that it was trained with."""
    if changed := changed_code(RunFolder(folder), modules):
        sys.stderr.write(
            f"warning: {folder}: the code of {', '.join(changed)} has changed since this run was trained: "
            "its model may compute something else now\n"
        )


def model_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path of a run names: that one, or the last of the run.

    An older one never takes the place of one that is damaged or lost.

    Raises:
        CheckpointError: it is not whole; the message names those that are.
    """
    folder = model_folder(path)
    checkpoints = folder / "checkpoints"
    chosen = path if folder != path else checkpoint.place(checkpoints, _last_step(folder))
    run = RunFolder(folder)
    recorded = run.result(anywhere=True) or run.provenance()
    key = None if recorded is None else recorded.key
    reason = (checkpoint.broken(chosen) or foreign(chosen, key)) if chosen.is_dir() else "it is missing"
    if reason is None:
        checkpoint.check_format(chosen)
        return chosen
    raise CheckpointError(f"{chosen}: {reason}: {retraining(chosen)}")


def retraining(lost: Path) -> str:
    """Return what can be done about the last checkpoint of a run where it is damaged or lost."""
    folder = model_folder(lost)
    older = [str(each) for each in checkpoint.committed(lost.parent) if checkpoint.broken(each) is None]
    if not older:
        return "no other is whole: restore it, or remove the run's folder to train it from the beginning"
    return (
        f"restore it; or remove {folder / 'result.json'}, if there is one, and give the run's command again, "
        f"which trains on from the one before; or name an older one: {', '.join(older)}"
    )


def rewriting(damaged: Path) -> str:
    """Return what can be done about a file that a run writes whenever it begins, and that is damaged."""
    return (
        f"restore it; or remove it and {damaged.with_name('result.json')}, if there is one, and give the "
        "run's command again, which writes it again"
    )


def foreign(path: Path, key: str | None) -> str | None:
    """Return a description of the run that saved a checkpoint of the run ``key``; None if it did itself.

    That of its parent does not count.
    """
    state = checkpoint.stored_state(path)
    if key is None or state is None or state["key"] == key:
        return None
    parent = read_mark(path.parents[1] / PARENT) or {}
    return None if parent.get("step") == checkpoint.step_of(path) else f"the run {state['key']} saved it"


def _last_step(folder: Path) -> int:
    """Return the step that a run reached, whether or not its checkpoint is there. Raises CheckpointError."""
    checkpoints, result = folder / "checkpoints", RunFolder(folder).result(anywhere=True)
    steps = [
        *map(checkpoint.step_of, checkpoint.committed(checkpoints)),
        *checkpoint.damaged_steps(checkpoints),
    ]
    if result is not None and result.saved_step is not None:
        steps.append(result.saved_step)
    if not steps:
        raise CheckpointError(f"{checkpoints}: no checkpoint was saved")
    return max(steps)


def is_run_folder(path: Path) -> bool:
    """Return True for the folder of a run, False for a Hugging Face one. Raises ConfigError for neither."""
    path = model_folder(path)
    if (path / RECORD).is_file():
        return True
    if (path / "config.json").is_file():
        return False
    if not path.is_dir():
        raise ConfigError(f"{path}: there is no such folder{nearest_folder(path)}")
    raise ConfigError(
        f"{path} is neither the folder of a run (with {RECORD}; its name is that of the seed, as s0) nor "
        "one of Hugging Face (with config.json)"
    )


def hugging_face(path: Path) -> Backbone:
    """Load the model of a Hugging Face folder, with its weights. Raises ConfigError."""
    try:
        return checkpoint_folders().load_folder(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error


def hugging_face_spec(path: Path) -> ModelSpec:
    """Return the specification of a Hugging Face folder. Raises ConfigError."""
    try:
        checked = checkpoint_folders().read_folder_config(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return ModelSpec(
        name=re.sub(r"[^\w.-]", "-", path.resolve().name).lstrip("."),
        backbone_class=checked.backbone_class,
        config=checked.config,
        vocab_size=checked.vocab_size,
        max_length=checked.max_length,
        tokenizer=folder_tokenizer(path).fingerprint if (path / "tokenizer.json").is_file() else None,
    )


def folder_tokenizer(path: Path) -> FolderTokenizer:
    """Load the tokenizer of a folder. Raises DataError where it has none."""
    # Most runs need no tokenizer of a folder, and some no text.
    from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
    from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig

    return FolderTokenizer(TokenizerConfig(kind="folder", path=str(path)), path)


def read_model_spec(path: Path) -> ModelSpec:
    """Return the specification of a folder's model. Raises ConfigError."""
    if not is_run_folder(path):
        return hugging_face_spec(path)
    file = model_folder(path) / RECORD
    remedy = rewriting(file)
    stored = read_json(file, ModelRecord, remedy)
    if stored is None:
        raise ConfigError(f"{file}: is missing: {remedy}")
    if not is_intact(stored):
        raise CheckpointError(f"{file}: has changed since it was written: {remedy}")
    try:
        section = dict(stored["backbone"])
        target = section.pop("_target_")
        cls: type[Backbone] = load_class(target, Backbone, "backbone")  # type: ignore[type-abstract]
        config = typed(cls.Config, section, "backbone")
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    return ModelSpec(
        name=stored["name"],
        backbone_class=cls,
        config=config,
        vocab_size=stored["vocab_size"],
        max_length=stored["max_length"],
        tokenizer=stored["tokenizer"],
    )


def fingerprint(path: Path) -> str:
    """Return a hash of the model and its weights, 16 hexadecimal digits, independent of the folder's path."""
    if is_run_folder(path):
        files = [model_folder(path) / RECORD, *weight_files(model_checkpoint(path))]
    else:
        files = [path / "config.json", *sorted(path.glob("*.safetensors"))]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def load_folder_state(path: Path, model: Backbone, *, new_readout: bool) -> int | None:
    """Load a folder's tensors into a module, a run's from ``model_checkpoint``; all must fit.

    Shards are read into the module itself, without a second copy.

    Args:
        new_readout: as in ``load_state``.

    Returns:
        The step of the checkpoint; None for a Hugging Face folder.

    Raises:
        CheckpointError: they cannot be read.
        ConfigError: they do not fit.
    """
    if not is_run_folder(path):
        load_state(hugging_face(path).state_dict(), model, path, new_readout=new_readout)
        return None
    chosen = model_checkpoint(path)
    if not in_shards(chosen):
        load_state(whole_tensors(chosen, "model"), model, path, new_readout=new_readout)
        return checkpoint.step_of(chosen)
    fit = fitting(stored_tensors(chosen, "model"), model, path, new_readout=new_readout)
    own = model.state_dict()
    with torch._C.DisableTorchFunction():  # of a model that is being divided each part is read by itself
        read_tensors(chosen, "model", {name: own[name] for name in fit})
    return checkpoint.step_of(chosen)


def load_state(tensors: dict[str, Tensor], model: Backbone, source: Path, *, new_readout: bool) -> None:
    """Load tensors into a module; all must fit.

    Args:
        new_readout: leaves out a readout, of the tensors or of the module, that the other has not or has
            in another shape: the task it is for has changed.

    Raises:
        ConfigError: names tensors of another shape, missing and left over.
    """
    fit = fitting(tensors, model, source, new_readout=new_readout)
    model.load_state_dict({name: tensors[name] for name in fit}, strict=False)


def fitting(tensors: dict[str, Tensor], model: Backbone, source: Path, *, new_readout: bool) -> list[str]:
    """Return the names of the tensors that ``load_state`` loads, by their names and shapes only.

    Raises what it raises.
    """

    def spared(name: str) -> bool:
        return new_readout and name.startswith("readout.")

    own = model.state_dict()
    wrong = [n for n, t in tensors.items() if n in own and own[n].shape != t.shape]
    tied = set(own) - set(unique_tensors(model))
    missing = sorted(n for n in set(own) - set(tensors) - tied if not spared(n))
    extra = sorted(n for n in set(tensors) - set(own) if not spared(n))
    shapes = [f"{n} {tuple(tensors[n].shape)}, not {tuple(own[n].shape)}" for n in wrong if not spared(n)]
    misfits = {"of another shape": shapes, "missing": missing, "left over": extra}
    if any(misfits.values()):
        more = {
            what: f" and {len(names) - 3} more" if len(names) > 3 else "" for what, names in misfits.items()
        }
        lists = [f"{what}: {', '.join(names[:3])}{more[what]}" for what, names in misfits.items() if names]
        raise ConfigError(f"{source}: its tensors do not fit the model: {'; '.join(lists)}")
    return [name for name in tensors if name in own and name not in wrong]
