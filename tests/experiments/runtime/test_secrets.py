"""What counts as a secret, and what must survive."""

from __future__ import annotations

import copy
import time

import pytest
from omegaconf import OmegaConf

from experiments.runtime.secrets import REDACTED, redact

HEX = "0123456789abcdef0123456789abcdef01234567"
HF = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"


@pytest.mark.parametrize(
    "name",
    ["api_key", "WANDB_API_KEY", "apiKey", "token", "hf_token", "client_secret", "password", "credentials"],
)
def test_values_of_secret_names_go(name: str) -> None:
    assert redact({"a": {name: "abc"}}) == {"a": {name: REDACTED}}


def test_everything_below_a_secret_name_goes() -> None:
    tree = {"credentials": {"user": "u", "pin": 1234}, "token": {"value": "abc"}, "password": 1234}
    assert redact(tree) == {"credentials": REDACTED, "token": {"value": REDACTED}, "password": REDACTED}


def test_what_is_no_secret_stays() -> None:
    tree = {
        "tokens": "4096",
        "tokenizer": "gpt2",
        "tokens_per_step": 4096,
        "flops_per_token": 1.5e9,
        "derived": {"flops_per_token": {"linear": 10, "attention": 2.5}},
        "token": None,
        "use_token": True,
        "git_commit": HEX,
        "revision": HEX,
        "overrides": ["task=recall", "tokens=10", f"revision={HEX}", "seed=0,1,2"],
        "path": f"/models/snapshots/{HEX}/config.json",
        "digest": HEX + HEX,
        "url": "https://example.org/a?b=c",
        "name": "hf_transformers and wandb_offline",
        "rate": 3e-4,
        "none": None,
    }
    assert redact(tree) == tree


@pytest.mark.parametrize("secret", [HEX, HF, "wandb_v1_" + "aB3_" * 19])
def test_values_shaped_like_keys_go_under_any_name(secret: str) -> None:
    tree = {"note": secret, "list": [secret], "deep": [{"b": f"before {secret}, after"}]}
    assert redact(tree) == {
        "note": REDACTED,
        "list": [REDACTED],
        "deep": [{"b": f"before {REDACTED}, after"}],
    }


@pytest.mark.parametrize(
    "text",
    [
        "tracking.api_key=canary",
        "+hub.token=canary",
        "hub.token=a, b canary",
        'password="a b canary"',
        "python train.py task=recall hub.token=canary seed=1",
        "python train.py 'hub.password=canary' seed=1",
        "hub={user:me,api_key:canary}",
        '{"api_key": "canary", "x": 1}',
        "https://example.org/?access_token=canary&x=1",
        "https://me:canary@example.org/data",
        "proxy=http://me:can@ry@example.org",
        f"python train.py note={HEX}",
    ],
)
def test_secrets_inside_text_go(text: str) -> None:
    clean = redact([text])[0]
    assert REDACTED in clean
    assert "canary" not in clean
    assert "can@ry" not in clean
    assert HEX not in clean


def test_the_rest_of_a_command_line_stays() -> None:
    clean = redact("train.py hub.token=abc seed=1 flops_per_token=3e9")
    assert clean == f"train.py hub.token={REDACTED} seed=1 flops_per_token=3e9"


def test_the_argument_is_not_changed() -> None:
    tree = {"a": [{"token": "abc"}, "b"], "c": ("x", 1)}
    before = copy.deepcopy(tree)
    redact(tree)
    assert tree == before


def test_hydra_configs_are_read_like_dicts() -> None:
    assert redact(OmegaConf.create({"a": [{"token": "abc"}]})) == {"a": [{"token": REDACTED}]}


def test_long_text_takes_linear_time() -> None:
    start = time.perf_counter()
    for part in ("a", "a.", "token", "token=", "://", 'token="', "hf_", "wandb_", "secret: "):
        redact(part * 20_000)
    assert time.perf_counter() - start < 5  # quadratic time would take minutes
