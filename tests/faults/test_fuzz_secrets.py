"""F55: random secrets, in random notations and places, are in nothing that is written."""

from __future__ import annotations

import json
import random
import shlex
import string
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from archbench.experiments.runtime.secrets import redact
from tests.experiments import commands
from tests.faults.children import seeds
from tests.faults.test_fault_secrets import PREFIXES, VARIABLES, contents, word

EACH = 100
"""Cases for each seed."""
TAG = 66
"""Characters of a tag of W&B, and its quotes."""
NAMES = (
    "api_key",
    "hub.token",
    "DB_PASSWORD",
    "client_secret",
    "credentials",
    "sshPassphrase",
    "a.b.access_key",
)
FORMS: tuple[str, ...] = (
    "{name}={secret}", "{name}: {secret}", "--{name} {secret}", "--{name}={secret}", "{name} -> {secret}",
    "Authorization: Bearer {secret}", "authorization=Basic {secret}", "Bearer {secret}",
    "X-Api-Key: {secret}", "Cookie: id={secret}; path=/", "curl -u me:{secret} https://example.org",
    "wandb login {secret}", "https://me:{secret}@example.org/x?a=b", "https://example.org/x?a=b&token={secret}&c=d",
    "postgresql://me:{secret}@host/db", "password is {secret}", "<password>{secret}</password>",
    "export MY_KEY={secret}", "token {secret}", "sshpass -p {secret} ssh host",
)  # fmt: skip
"""Texts in which a word is a secret by what stands before it."""
AROUND = (
    "{}",
    "a {} b",
    "x={}",
    "[{}]",
    "({})",
    "first line\n{}\nlast line",
    "note: '{}'",
    'say "{}"',
    "{};",
    "{}, c",
)


def random_secret(rng: random.Random) -> tuple[str, str, str | None]:
    """Return a secret, a text in which it is recognised, and the variable with this value, or None."""
    kind = rng.choice(("prefix", "variable", "form", "form"))
    if kind == "prefix":
        secret = word(rng, rng.choice(PREFIXES))
        return secret, secret, None
    secret = word(rng) if rng.random() < 0.7 else "7A" + "".join(rng.choices(string.ascii_letters, k=8))
    if kind == "variable":
        return secret, secret, rng.choice(VARIABLES)
    return secret, rng.choice(FORMS).format(name=rng.choice(NAMES), secret=secret), None


def spelled(rng: random.Random, text: str) -> str:
    """Return a text between others, in up to two notations, one in another."""
    notations: tuple[Callable[[str], str], ...] = (
        str, repr, json.dumps, shlex.quote, lambda each: json.dumps({"note": each, "x": 1}),
        lambda each: yaml.safe_dump({"note": each, "x": [1]}, width=10**6), lambda each: str([each, 1]),
    )  # fmt: skip
    text = rng.choice(AROUND).format(text)
    for _ in range(rng.randint(0, 2)):
        text = rng.choice(notations)(text)
    return text


def planted(rng: random.Random, text: str) -> Any:
    """Return a tree with a text at a random place: a value, an item, or a part of a key."""
    tree: Any = text
    for _ in range(rng.randint(0, 4)):
        key = rng.choice(("note", "tags", "study.values", "a", "name"))
        tree = rng.choice(({key: tree, "x": 1}, [tree], ["x", tree, 2], {key: [tree]}))
    return tree


@pytest.mark.full
@seeds(3, recorded=60)
def test_f55_no_secret_passes_the_policy(seed: int, monkeypatch: pytest.MonkeyPatch, record: Any) -> None:
    for case in range(EACH):
        rng = random.Random(1000 * seed + case)
        secret, text, variable = random_secret(rng)
        with monkeypatch.context() as patch:
            if variable:
                patch.setenv(variable, secret)
            tree = planted(rng, spelled(rng, text))
            left = json.dumps(redact(tree), ensure_ascii=False)
        assert secret not in left, f"seed {seed}, case {case}: {tree!r} leaves {left}"
    record("F55", "random secrets in random notations and places", EACH, "none left")


@pytest.mark.full
@seeds(1, recorded=20)
def test_f55_no_secret_of_a_command_is_in_a_file(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, record: Any
) -> None:
    rng, secrets, texts, used = random.Random(seed), list[str](), list[str](), set[str]()
    while len(texts) < 12:
        secret, text, variable = random_secret(rng)
        if variable in used:  # a variable has one value
            continue
        if variable:
            monkeypatch.setenv(variable, secret)
            used.add(variable)
        secrets.append(secret)
        texts.append(text.replace("\\", "").replace("'", "").replace("\n", " "))
    quoted = [f"'a {text}'" for text in texts]
    tags = [text for text in quoted if len(text) <= TAG]
    words = (
        *commands.TINY, *commands.RECALL, f"runs={tmp_path}", "budget.tokens=256", "budget.batch_size=4",
        "tracking=tensorboard", f"tracking.tags=[{','.join(tags)}]",
        f"+study.values={{{','.join(f'note{i}: {text}' for i, text in enumerate(quoted[:6]))}}}",
        *(f"+study.values.more{i}={text}" for i, text in enumerate(quoted[6:])),
    )  # fmt: skip
    monkeypatch.setattr("sys.argv", ["train", *words])
    folder = commands.train(*words)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert folder / "provenance.json" in files
    printed = capfd.readouterr()
    for secret, text in zip(secrets, texts, strict=True):
        for form in {secret, urllib.parse.quote(secret)}:
            left = [path.name for path in files if form.encode() in contents(path)]
            assert not left, f"seed {seed}: {text!r} is in {left}"
            assert form not in printed.out + printed.err, f"seed {seed}: {text!r} is printed"
    record("F55", "random secrets in the words of a command", 12, "in no file and no output")
