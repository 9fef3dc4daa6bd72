"""Every YAML composes, reads, and lists all that can be set; the digest holds what decides a result."""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from archbench.architectures.backbone import Backbone
from archbench.experiments.config import CONF
from archbench.experiments.config.optimizer import SCHEDULES, OptimizerConfig
from archbench.experiments.config.schema import (
    BudgetConfig,
    DeviceConfig,
    ScaleConfig,
    TrackingConfig,
    TrainerConfig,
)
from archbench.experiments.config.sections import read_sections, with_target
from archbench.experiments.config.structured import component, load_class
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.settings import Settings, read_settings
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.tasks.task import Task
from tests.experiments import commands

GROUPS = ("backbone", "objective", "task", "scale", "budget", "optimizer", "device", "tracking")
YAMLS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
OBJECTIVES = [name for group, name in YAMLS if group == "objective"]
CONFIGS = {
    "scale": ScaleConfig,
    "budget": BudgetConfig,
    "device": DeviceConfig,
    "tracking": TrackingConfig,
}
PARTS = {"backbone": Backbone, "objective": Objective, "task": Task, "optimizer": OptimizerConfig}
KINDS = ("recall", "text", "text_source", "pairs", "sentences", "tags", "similarity")
"""Tasks of every kind there is: what an objective goes with is among them."""


def first_readable(*groups: tuple[str, str]) -> tuple[DictConfig, Settings] | None:
    """Return the first backbone, objective and task that go with these groups, None if there are none."""
    fixed = dict(groups)
    choices = {"backbone": commands.BACKBONES, "objective": [None, *OBJECTIVES], "task": KINDS}
    tried = [[fixed[group]] if group in fixed else options for group, options in choices.items()]
    for backbone, objective, task in itertools.product(*tried):  # type: ignore[call-overload]
        if objective and not commands.may_meet(backbone, objective, task):
            continue
        words = [f"{group}={name}" for group, name in fixed.items()]
        words += [f"backbone={backbone}", f"task={task}", *([f"objective={objective}"] if objective else [])]
        try:
            cfg = commands.compose(*words)
            return cfg, read_settings(read_sections(cfg))
        except ConfigError:
            continue
    return None


@pytest.mark.fast
@pytest.mark.parametrize(("group", "name"), YAMLS)
def test_every_yaml_composes_and_lists_every_setting(group: str, name: str) -> None:
    """Each setting can be set on the command line without a plus sign."""
    if (group, name) == ("device", "cuda") and not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="use device=cpu"):
            commands.settings("device=cuda")
        cfg = commands.compose("device=cuda")
    elif (group, name) == ("scale", "given"):
        cfg = commands.compose("scale=given", "backbone.d_model=64")
        assert read_settings(read_sections(cfg)).backbone.width == 64
    elif group == "optimizer":
        scale = ["scale=125m"] * (name == "gpt3")  # its rates are those of published scales
        cfg = commands.compose(f"{group}={name}", *scale)
        found = read_settings(read_sections(cfg))
        target = f"{type(found.optimizer).__module__}.{type(found.optimizer).__name__}"
        assert {"_target_": target, **dataclasses.asdict(found.optimizer)} == found.resolved[group]
    elif group in PARTS:
        readable = first_readable((group, name))
        assert readable is not None, f"{group}={name} goes with nothing"
        cfg, found = readable
        target = found.resolved[group]["_target_"].rpartition(".")[2]
        # The class itself, or the form that an objective takes for the backbone.
        assert target in [cls.__name__ for cls in getattr(found, f"{group}_class").__mro__]
    else:
        cfg = commands.compose(f"{group}={name}")
        found = read_settings(read_sections(cfg))
        config = dataclasses.asdict(getattr(found, group))
        assert config == found.resolved[group]
    tree: Any = OmegaConf.to_container(cfg[group], resolve=False)
    tree = with_target(tree) if group == "scale" else tree
    fields = CONFIGS.get(group)
    if fields is None:
        part = load_class(tree.pop("_target_"), PARTS[group], group)  # type: ignore[type-abstract]
        fields = getattr(part, "Config", part)
    # Two other ways to say tokens and batch_size, which take their places.
    other = {"tokens_per_parameter", "batch_tokens"} if group == "budget" else set()
    assert list_keys(tree) == list_fields(fields) | other


def list_fields(config: type, prefix: str = "") -> set[str]:
    """The fields of a dataclass and of those within."""
    names = set()
    for field in dataclasses.fields(config):
        names.add(prefix + field.name)
        made = None if field.default_factory is dataclasses.MISSING else field.default_factory()
        if dataclasses.is_dataclass(made):
            names |= list_fields(type(made), f"{prefix}{field.name}.")
    return names


def list_keys(tree: dict[str, Any], prefix: str = "") -> set[str]:
    names = {prefix + key for key in tree}
    for key, value in tree.items():
        if isinstance(value, dict):
            names |= list_keys(value, f"{prefix}{key}.")
    return names


def test_the_trainer_section_has_the_defaults_of_its_dataclass() -> None:
    assert commands.settings().resolved["trainer"] == dataclasses.asdict(TrainerConfig())


def test_every_key_of_the_default_run_can_be_overridden() -> None:
    resolved = commands.settings().resolved
    pairs = [(f"{group}.{k}", v) for group in ("budget", "trainer") for k, v in resolved[group].items()]
    words = [f"{key}={'null' if value is None else value}" for key, value in pairs]
    assert commands.settings(*words).resolved == resolved


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+backbone.dropout=0.1"], r"backbone\.dropout: DecoderConfig has no such key"),
        (["backbone.feedforwards=dense"], r"must be a list: write backbone\.feedforwards=\[dense\]"),
    ],
)
def test_a_wrong_setting_names_its_key(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        commands.settings("backbone=decoder", *words)


def test_a_backbone_brings_its_objective_and_yours_wins() -> None:
    assert commands.settings("backbone=encoder").names.objective == "masked_lm"
    assert commands.settings("backbone=decoder").names.objective == "causal_lm"
    yours = commands.settings("backbone=encoder", "objective=masked_diffusion")
    assert yours.names.objective == "masked_diffusion"


@pytest.mark.parametrize(
    "words",
    [
        ("seed=7",),
        ("runs=/elsewhere",),
        ("tracking=wandb_offline",),
        ("tracking.tags=[a]",),
        ("device.threads=3",),
        ("budget.micro_batch_size=2",),
        ("trainer.checkpoint_every=1", "trainer.keep_checkpoints=9", "trainer.log_every=1"),
        ("task.cache_dir=/elsewhere",),
        ("study.name=other",),
    ],
)
def test_the_digest_ignores_what_does_not_decide_the_result(words: tuple[str, ...]) -> None:
    assert commands.settings("device=cpu", *words).digest == commands.settings("device=cpu").digest


@pytest.mark.fast
def test_the_digest_changes_with_all_that_decides_the_result() -> None:
    changes = [
        (),
        ("optimizer.learning_rate=1e-4",),
        ("optimizer.schedule=wsd",),
        ("optimizer.schedule=wsd", "optimizer.decay_end_fractions=[0.5,1.0]"),
        ("budget.tokens=5000",),
        ("budget.batch_size=8",),
        ("scale.targets.flops=50000",),
        ("scale.depth=3",),
        ("backbone=moe",),
        ("backbone.attention.num_heads=8",),
        ("backbone.tie_embeddings=true",),
        ("task=recall",),
        ("task.sequence_length=64",),
        ("task.tokenizer.normalization=[lowercase]",),
        ("backbone=encoder",),
        ("backbone=encoder", "objective=masked_diffusion"),
        ("device.precision=bf16",),
        ("trainer.test_examples=16",),
        ("trainer.validation_examples=16",),
    ]
    digests = [commands.settings("device=cpu", *words).digest for words in changes]
    assert len(set(digests)) == len(changes)
    assert all(re.fullmatch(r"[0-9a-f]{8}", digest) for digest in digests)


def test_the_run_folder_follows_from_the_settings(tmp_path: Path) -> None:
    words = ("backbone=mamba", "task=recall", "seed=3", "study.name=mine", f"runs={tmp_path}")
    found = commands.settings(*words)
    assert found.cell == "mamba-recall-nano"
    assert found.key == f"mamba-recall-nano-{found.digest}-s3"
    assert found.folder == tmp_path / "mine" / f"mamba-recall-nano-{found.digest}" / "s3"


def test_every_run_key_fits_wandb() -> None:
    groups = [[name for kind, name in YAMLS if kind == group] for group in ("backbone", "task", "scale")]
    assert len("-".join([*(max(names, key=len) for names in groups), "0" * 8, "s100000"])) <= 64


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        commands.settings().seed = 1  # type: ignore[misc]


def test_an_option_that_is_added_and_off_does_not_change_the_digest() -> None:
    found = commands.settings("device=cpu", "backbone=hybrid")

    def digest(value: Any) -> str:
        section = found.resolved["backbone"]
        section = {**section, "added": value, "mamba": {**section["mamba"], "added": value}}
        return dataclasses.replace(found, resolved={**found.resolved, "backbone": section}).digest

    assert found.digest == digest(None) == digest(False)
    assert len({found.digest, *map(digest, (True, 0, 0.0, [], "false"))}) == 6


def test_settings_of_mixers_that_no_layer_has_are_not_in_the_digest() -> None:
    words = ("device=cpu", "backbone=hybrid")
    assert commands.settings(*words, "backbone.gla.decay_rank=8").digest == commands.settings(*words).digest
    assert commands.settings(*words, "backbone.mamba.d_state=8").digest != commands.settings(*words).digest


def test_the_digest_does_not_know_in_which_module_a_class_lives() -> None:
    found = commands.settings("device=cpu")
    moved = {**found.resolved["backbone"], "_target_": "elsewhere.decoder.Decoder"}
    assert dataclasses.replace(found, resolved={**found.resolved, "backbone": moved}).digest == found.digest
    other = {**moved, "_target_": "elsewhere.decoder.Encoder"}
    assert dataclasses.replace(found, resolved={**found.resolved, "backbone": other}).digest != found.digest


@pytest.mark.parametrize("name", ["cosine", "linear", "constant", "wsd", "one_minus_sqrt"])
def test_a_schedule_is_chosen_as_a_group_or_by_its_key(name: str) -> None:
    found = [commands.settings(word) for word in (f"schedule={name}", f"optimizer.schedule={name}")]
    assert [settings.optimizer.schedule for settings in found] == [name, name]
    assert found[0].digest == found[1].digest
    assert (found[0].digest == commands.settings().digest) == (name == "cosine")


def test_every_schedule_has_a_yaml() -> None:
    names = {path.stem for path in (CONF / "schedule").glob("*.yaml")}
    assert names == {path.stem for path in SCHEDULES.glob("[a-z]*.py")}


def test_the_optimizer_is_the_one_of_the_yaml() -> None:
    found = {name: commands.settings(f"optimizer={name}") for name in ("adamw", "muon", "nadam", "sgd")}
    assert {name: type(settings.optimizer).__name__ for name, settings in found.items()} == {
        "adamw": "AdamW",
        "muon": "Muon",
        "nadam": "NAdam",
        "sgd": "SGD",
    }
    assert len({settings.digest for settings in found.values()}) == 4
    nameless = commands.compose()
    del nameless.optimizer["_target_"]
    with pytest.raises(ConfigError, match="optimizer: the YAML has no _target_"):
        read_sections(nameless)
    tree = {"names": {"backbone": "mine"}, "backbone": {"num_layers": 2}}
    with pytest.raises(ConfigError, match=r"backbone/mine\.yaml has no _target_: add a line"):
        component(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    with pytest.raises(ConfigError, match="momentum"):
        commands.settings("+optimizer.momentum=0.9")
