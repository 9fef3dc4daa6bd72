"""F28 and F29: nothing in a hostile file runs, and secrets stay out of all that is written."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from archbench.experiments.config.sections import read_sections
from archbench.experiments.run.load_model import load_model
from archbench.experiments.run.settings import read_settings
from archbench.experiments.runtime.errors import CheckpointError, ConfigError
from archbench.experiments.runtime.secrets import REDACTED, redact
from archbench.experiments.tracking.run_files import checksum
from archbench.experiments.training.checkpoints import checkpoint
from tests.experiments import commands

CPU = torch.device("cpu")
WORDS = (*commands.TINY, *commands.RECALL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('run')}")


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """A copy of a run to do harm to."""
    copy = tmp_path / "s0"
    shutil.copytree(run, copy)
    return copy


class Song:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return Path.touch, (self.canary,)


TARGETS = [
    "os.system",
    "logging.os.system",
    "subprocess.run",
    "pathlib.Path.write_text",
    "builtins.exec",
    "torch.hub.load",
    "antigravity.fly",
    "transformers.AutoModel",
    "archbench.experiments.config.hydra_app.os.system",
    "archbench.architectures.backbones.decoder.torch",
    "archbench.experiments.run.run.run",
]


STORED = {
    ("config.yaml", "objective"): "archbench.experiments.objectives.language_modelling.causal_lm.CausalLM",
    ("config.yaml", "task"): "archbench.experiments.tasks.recall.mqar.Recall",
    ("model.json", "backbone"): "archbench.architectures.backbones.decoder.Decoder",
}
"""The class of each part, by the file that it is read from when a model is opened."""


@pytest.mark.parametrize(("file", "part"), STORED)
def test_f28_no_target_of_a_stored_configuration_is_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, part: str, record: Any
) -> None:
    imported: list[str] = []
    honest = __import__("importlib").import_module
    monkeypatch.setattr(
        "importlib.import_module", lambda name, *more: (imported.append(name), honest(name))[1]
    )
    text = (folder / file).read_text()
    for target in TARGETS:
        hostile = text.replace(STORED[file, part], target)
        if file == "model.json":  # who plants it can compute the checksum
            tree = json.loads(hostile)
            hostile = json.dumps({**tree, "checksum": checksum(tree)})
        (folder / file).write_text(hostile)
        assert target in (folder / file).read_text()
        with pytest.raises(ConfigError, match=re.escape(f"{part}._target_={target}")):
            load_model(folder, CPU)
    assert all(name.startswith("archbench.") for name in imported), imported
    record(
        "F28",
        f"hostile {part}._target_ in a stored {file}",
        len(TARGETS),
        "refused, nothing imported or called",
    )


def test_a_backbone_of_ones_own_folder_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from archbench.architectures.backbones.decoder import Decoder as Mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert commands.settings("backbone._target_=mine.Mine").backbone_class.__name__ == "Decoder"


def test_f28_pickles_are_not_read(folder: Path, tmp_path: Path, record: Any) -> None:
    canary = tmp_path / "canary"
    data = pickle.dumps({"weight": Song(canary)})
    pickle.loads(data)
    assert canary.exists(), "the canary does not sing"
    canary.unlink()

    newest = commands.newest_checkpoint(folder)
    (newest / "model.safetensors").write_bytes(data)
    manifest = json.loads((newest / "MANIFEST.json").read_text())
    manifest["model.safetensors"] = {
        "bytes": len(data),
        "sha256": checkpoint._hash(newest / "model.safetensors"),
    }
    (newest / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        load_model(folder, CPU)

    hub = tmp_path / "hub"
    hub.mkdir()
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
    }
    remote = {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}, "trust_remote_code": True}
    (hub / "config.json").write_text(json.dumps(config | remote))
    (hub / "evil.py").write_text(f"from pathlib import Path\nPath({str(canary)!r}).touch()\n")
    for name in ("pytorch_model.bin", "model.safetensors"):
        (hub / name).write_bytes(data)
        with pytest.raises((ConfigError, CheckpointError)):
            load_model(hub, CPU)
    assert not canary.exists()
    record("F28", "pickle in place of tensors, remote code beside them", 3, "refused, canary never touched")


def test_f28_no_way_to_read_pickles_or_run_remote_code_is_used() -> None:
    forbidden = re.compile(
        r"torch\.load\(|import pickle|pickle\.\w|trust_remote_code"
        r"|\bexec\(|(?<!\.)\beval\(|yaml\.load\(|extractall"
    )
    for package in ("architectures", "experiments", "analysis"):
        for path in (commands.ROOT / package).rglob("*.py"):
            for line in path.read_text().splitlines():
                assert not forbidden.search(line), f"{path}: {line}"


@pytest.mark.parametrize("name", ["../x", "/x", "..", ".", "a/../../x", "a\\b", "~", "$HOME", "x\n", ""])
@pytest.mark.parametrize("key", ["study.name", "names.task", "names.backbone", "names.scale"])
def test_f28_no_name_leads_out_of_the_runs_folder(name: str, key: str) -> None:
    cfg = commands.compose(*WORDS)
    OmegaConf.update(cfg, key, name)
    with pytest.raises(ConfigError, match=f"{key}="):
        read_settings(read_sections(cfg))


CANARIES = {
    "WANDB_API_KEY": "canary1" + "0123456789abcdef" * 2 + "x",
    "HF_TOKEN": "canary-two-in-the-environment",
    "MY_SECRET": "canary three with spaces",
}


def test_f29_secrets_are_in_nothing_that_is_written(tmp_path: Path, record: Any) -> None:
    """Environment, overrides, URLs and errors, of a run that ends well and of one that does not."""
    runs = tmp_path / "runs"
    words = (
        *WORDS,
        f"runs={runs}",
        "tracking=wandb_offline",
        "tracking.tags=['https://me:canary-four@example.org/x']",
        f"+study.values.note={CANARIES['HF_TOKEN']}",
    )
    outputs = []
    for more in (("-m", "seed=0"), ("optimizer.learning_rate=1e30",), ("+hub.token=canary-five",)):
        ended = commands.run("train", *more, *words, DEBUG="1", **CANARIES)
        outputs += [ended.stdout, ended.stderr]
    assert list(runs.rglob("*.wandb")), "nothing was tracked"
    assert {json.loads(p.read_text())["status"] for p in runs.rglob("result.json")} == {
        "complete",
        "diverged",
    }
    assert not list(runs.rglob("multirun.yaml"))
    secrets = [*CANARIES.values(), "canary-four", "canary-five"]
    files = [path for path in runs.rglob("*") if path.is_file()]
    for path in files:
        data = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in data], path
    for text in outputs:
        assert not [secret for secret in secrets if secret in text], text
    record(
        "F29",
        "secrets in environment, overrides, URLs",
        len(secrets),
        f"0 found in {len(files)} files and 6 outputs",
    )


def test_secrets_of_the_environment_go_wherever_they_stand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "correct horse")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "horse-battery")
    monkeypatch.setenv("SHORT_TOKEN", "true")
    monkeypatch.setenv("TOKEN_FILE", str(tmp_path))
    assert redact({"note": "a correct horse b"}) == {"note": f"a {REDACTED} b"}
    assert redact("horse-battery true") == "horse-battery true"
    assert redact(f"see {tmp_path}") == f"see {tmp_path}"
