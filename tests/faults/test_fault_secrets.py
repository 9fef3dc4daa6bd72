"""F39: canaries of every kind through every file and stream."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest

from experiments.runtime.secrets import redact
from tests.experiments import commands

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


@pytest.fixture
def canaries() -> tuple[dict[str, str], list[str]]:
    """A hundred values of variables, and a hundred tokens by their shape."""
    draw = random.Random(22)
    variables = {f"{name}_{i}" if i else name: word(draw) for name in VARIABLES for i in range(5)}
    return variables, [word(draw, prefix) for prefix in PREFIXES for _ in range(5)]


def test_f39_no_canary_passes_the_policy(
    canaries: tuple[dict[str, str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, tokens = canaries
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    secrets = [*variables.values(), *tokens]
    for form in ("{}", "a {} b", "note=x,{}", "['{}']", "https://x.org/?a={}"):
        text = "\n".join(form.format(secret) for secret in secrets)
        left = json.dumps(redact({"note": text, "list": [text]}))
        assert not [secret for secret in secrets if secret in left], form


@pytest.mark.full
def test_f39_two_hundred_canaries_are_in_no_file_and_no_stream(
    tmp_path: Path, canaries: tuple[dict[str, str], list[str]], record: Any
) -> None:
    variables, tokens = canaries
    secrets = [*variables.values(), *tokens]
    runs = tmp_path / "runs"
    words = (
        *commands.TINY,
        *commands.RECALL,
        f"runs={runs}",
        "study.name=canaries",
        "tracking=wandb_offline",
        f"tracking.tags=[{','.join(repr(f'a {token}') for token in tokens)}]",
        *(f"+study.note{i}=${{oc.env:{name}}}" for i, name in enumerate(variables)),
    )
    outputs = []
    for more in (("seed=0",), ("optimizer.learning_rate=1e30",), ("task.num_symbols=0",)):
        ended = commands.run("train", *words, *more, DEBUG="1", **variables)
        outputs += [ended.stdout, ended.stderr]
    results = [json.loads(path.read_text()) for path in runs.glob("canaries/*/s*/result.json")]
    assert {"complete", "diverged"} <= {result["status"] for result in results}, outputs
    planned = commands.run("plan", *words, **variables)
    outputs += [planned.stdout, planned.stderr]
    analysis = commands.run("cli", "compare", "study=canaries", f"runs={runs}")
    outputs += [analysis.stdout, analysis.stderr]
    assert (runs / "canaries" / "analysis" / "compare.html").exists(), analysis.stderr
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert list(runs.rglob("*.wandb"))
    for path in files:
        data = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in data], path
    for text in outputs:
        assert not [secret for secret in secrets if secret in text], text[:2000]
    found = f"0 found in {len(files)} files and {len(outputs)} outputs"
    record("F39", "canaries in variables, tags and notes", len(secrets), found)
