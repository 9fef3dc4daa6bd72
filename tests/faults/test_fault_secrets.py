"""F39: canaries of every kind through every file and stream."""

from __future__ import annotations

import json
import os
import random
import string
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra.core.global_hydra import GlobalHydra

from archbench.analysis.compare import CompareConfig
from archbench.experiments.check import CheckConfig
from archbench.experiments.config.hydra_app import start
from archbench.experiments.config.options import typed_words
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.train import train
from tests.experiments import commands
from tests.experiments.tracking.wandb_server import serving
from tests.faults.children import RECORDING
from tests.slurm.jobs import cluster_file

VARIABLES = (
    "OPENAI_KEY", "GITHUB_PAT", "DB_PWD", "PGPASS", "SSH_KEY", "MY_PASSPHRASE", "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "SENTRY_DSN", "REGISTRY_AUTH", "SMTP_PASSWORD",
    "SERVICE_CREDENTIALS", "SIGNING_KEY", "DEPLOY_SECRET", "ENCRYPTION_KEYS", "REDIS_PASS", "CI_JOB_TOKEN",
    "MINIO_CREDS",
)  # fmt: skip
WORDS = string.ascii_letters + string.digits
PREFIXES = (
    "sk-", "sk-proj-", "ghp_", "gho_", "github_pat_", "glpat-", "AKIA", "ASIA", "xoxb-", "xoxp-", "hf_",
    "AIza", "npm_", "pypi-", "sk_live_", "whsec_", "shpat_", "ya29.", "sk-ant-", "xapp-",
)  # fmt: skip


def word(draw: random.Random, prefix: str = "") -> str:
    letters = string.ascii_uppercase + string.digits if prefix in ("AKIA", "ASIA") else WORDS
    return prefix + "7A" + "".join(draw.choices(letters, k=28))


def canaries(each: int = 5) -> tuple[dict[str, str], list[str]]:
    """Return values of variables, and tokens by their shape: ``each`` of every kind."""
    draw = random.Random(22)
    variables = {f"{name}_{i}" if i else name: word(draw) for name in VARIABLES for i in range(each)}
    return variables, [word(draw, prefix) for prefix in PREFIXES for _ in range(each)]


def test_f39_no_canary_passes_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    variables, tokens = canaries()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    secrets = [*variables.values(), *tokens]
    for form in ("{}", "a {} b", "note=x,{}", "['{}']", "https://x.org/?a={}"):
        text = "\n".join(form.format(secret) for secret in secrets)
        left = json.dumps(redact({"note": text, "list": [text]}))
        assert not [secret for secret in secrets if secret in left], form


def contents(path: Path) -> bytes:
    """Return the bytes of a file; of Parquet, which compresses, the frame as text too."""
    data = path.read_bytes()
    return data + pd.read_parquet(path).to_csv().encode() if path.suffix == ".parquet" else data


def program(folder: Path, name: str, body: str) -> None:
    """Put a program into a folder that stands before the others."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.full
def test_f39_canaries_of_every_kind_are_in_no_file_and_no_stream(tmp_path: Path, record: Any) -> None:
    """Of training under each tracker, and of every command that reads what it leaves."""
    variables, tokens = canaries(each=5 if RECORDING else 1)
    secrets = [*variables.values(), *tokens]
    runs, slurm = tmp_path / "runs", tmp_path / "programs"
    study = ("study=canaries", f"runs={runs}")
    given = (
        *commands.TINY,
        *commands.RECALL,
        "budget.tokens=1280",
        f"runs={runs}",
        "study.name=canaries",
        *(f"+study.values.note{i}=${{oc.env:{name}}}" for i, name in enumerate(variables)),
    )
    words = (*given, f"tracking.tags=[{','.join(repr(f'a {token}') for token in tokens)}]")
    for name in ("sbatch", "squeue", "scontrol", "sacct"):
        program(slurm, name, "echo 41" if name == "sbatch" else "true")
    program(slurm, "srun", 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"')
    cluster = cluster_file(tmp_path, "cpu")
    path = {"PATH": f"{slurm}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    outputs: list[str] = []

    def call(module: str, *more: str, code: int | None = 0, **environment: str) -> str:
        ended = commands.run(module, *more, **(variables | path | environment))
        outputs.extend((ended.stdout, ended.stderr))
        assert code is None or ended.returncode == code, (more[:1], ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr or "DEBUG" in environment, ended.stderr
        return ended.stdout

    call("train", *words, "tracking=wandb_offline", "seed=0", DEBUG="1")
    call("train", *words, "tracking=wandb_offline", "optimizer.learning_rate=1e30", code=4, DEBUG="1")
    call("train", *words, "tracking=wandb_offline", "task.num_symbols=0", code=2, DEBUG="1")
    call("train", *words, "tracking=tensorboard", "seed=1")
    with serving() as server:
        online = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": variables["WANDB_API_KEY"] + "0" * 10}
        call("train", *words, "tracking=wandb", "seed=2", **online)
        call("train", *given, "tracking=wandb", f"tracking.entity={tokens[0]}", "seed=3", **online)
        call("cli", "wandb", "dashboard", *study, code=None, **online)
        sent = b"".join(server.bodies)
    secrets.append(online["WANDB_API_KEY"])
    results = [json.loads(path.read_text()) for path in runs.glob("canaries/*/s*/result.json")]
    assert [result["status"] for result in results].count("complete") == 4
    assert {"diverged", "refused"} <= {result["status"] for result in results}
    ended = next(path.parent for path in runs.glob("canaries/*/s0/model.json"))
    call("plan", *words)
    call("train", *words, "--cfg", "job", "--resolve")
    call("cli", "compare", f"study={tokens[0]}", code=2)
    call("cli", "check", f"study={variables['OPENAI_KEY']}", code=2)
    call("cli", "compare", *study)
    call("cli", "check", *study, code=None)
    call("cli", "doctor", code=None)
    call("cli", "wandb", "sync", *study, "mode=offline")
    call("cli", "wandb", "dashboard", *study, "--dry-run")
    call("cli", "evaluate", f"run={ended}", f"output={runs}/evaluated.json")
    call("cli", "export", f"run={ended}", f"to={runs}/exported", code=None)
    call(
        "cli", "slurm", "submit", *words, f"cluster={cluster}", "seed=7", code=2
    )  # tokens in an argument are refused
    call("cli", "slurm", "submit", *given, f"cluster={cluster}", "seed=7", "submit=true")
    call("cli", "slurm", "status", *study, code=None)
    job = {"SLURM_JOB_ID": "41", "SLURM_RESTART_COUNT": "0"}
    code = "import sys; from archbench.slurm.work import main; sys.exit(main(sys.argv[1:]))"
    worked = subprocess.run(
        [sys.executable, "-m", "tests.run_code", code, *words, "seed=8", "budget.tokens=0"],
        cwd=commands.ROOT, env=os.environ | variables | path | job, capture_output=True, text=True,
    )  # fmt: skip
    assert "exit code 2" in worked.stdout, worked.stderr
    outputs += [worked.stdout, worked.stderr]

    assert (runs / "canaries" / "analysis" / "compare.html").exists()
    for pattern in ("*.wandb", "events.out.*", "runs.json", "*.parquet", "*.csv", "workspace.json"):
        assert list(runs.rglob(pattern)), f"nothing wrote {pattern}"
    files = [path for path in runs.rglob("*") if path.is_file()]
    for file in files:
        data = contents(file)
        assert not [secret for secret in secrets if secret.encode() in data], file
    for text in outputs:
        assert not [secret for secret in secrets if secret in text], text[:2000]
    assert b"decoder" in sent
    assert not [secret for secret in secrets if secret.encode() in sent]
    found = f"0 found in {len(files)} files, {len(outputs)} outputs and what W&B was sent"
    record("F39", "canaries in variables, tags and notes", len(variables) + len(tokens), found)


def test_f39_a_sweep_that_is_refused_leaves_no_command_line(tmp_path: Path) -> None:
    """Hydra writes one, with every word as it was typed, before anything is looked at."""
    words = (*commands.TINY, "~optimizer", "seed=0,1", "tracking.tags=[ghp_a1B2a1B2a1B2a1B2a1B2]")
    ended = commands.run("plan", "-m", *words, f"runs={tmp_path}/runs")
    assert ended.returncode == 2, ended.stderr
    assert "ghp_" not in ended.stdout + ended.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("key", ["study.name", "names.task", "runs"])
def test_f39_a_secret_names_no_folder(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_JOB_TOKEN", "7Aq9zLw2Rt5Ux8Vb1Nc4Ms6Kd3Jf")
    for secret in ("7Aq9zLw2Rt5Ux8Vb1Nc4Ms6Kd3Jf", "ghp_" + "a1B2" * 9):
        with pytest.raises(ConfigError, match=f"{key} looks like a secret") as refused:
            commands.settings(f"{key}={secret}")
        assert secret not in str(refused.value)


URLS = ("https://me:CANARY@example.org/x", "https://example.org/x?token=CANARY&a=1")
PATHS = {
    "init_from": [],
    "continue_from": [],
    "runs": [],
    "task.tokenizer.path": ["task.tokenizer.kind=folder"],
    "task.dataset": ["task.source=hub"],
    "task.paths": ["task.source=files"],
    "task.cache_dir": [],
    "study.stored": [],
    "study.tuned": [],
}
"""Keys that take a path or an address, with the words beside which they are read."""


@pytest.mark.parametrize("mode", [[], ["-m"]], ids=["run", "sweep"])
@pytest.mark.parametrize("key", PATHS)
def test_f39_a_secret_of_a_url_is_nowhere_though_a_path_has_folded_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    mode: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("DEBUG", "1")  # with the traceback
    for url in URLS:
        value = f"['{url}']" if key == "task.paths" else f"'{url}'"
        words = [*mode, *commands.TINY, "task=text", *PATHS[key], f"{key}={value}"]
        monkeypatch.setattr(sys, "argv", ["train", *words, *(["seed=0,1"] if mode else [])])
        GlobalHydra.instance().clear()
        with suppress(SystemExit):  # where there is no frame, study.stored= holds no run
            start(train)
    printed = capsys.readouterr()
    assert key == "study.stored" or "error: " in printed.err
    assert "CANARY" not in printed.out + printed.err
    for path in tmp_path.rglob("*"):
        assert "CANARY" not in path.name
        assert path.is_dir() or b"CANARY" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (CompareConfig, "runs"),
        (CompareConfig, "out"),
        (CheckConfig, "runs"),
    ],
)
def test_f39_a_secret_names_no_folder_of_other_commands(read: type, words: str) -> None:
    for secret in ("ghp_" + "a1B2" * 9, *URLS):
        with pytest.raises(ConfigError, match=f"{words} looks like a secret") as refused:
            typed_words(read, [f"{words}={secret}"])
        assert secret not in str(refused.value)
