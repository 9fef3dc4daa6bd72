"""What counts as a secret, and what must survive."""

from __future__ import annotations

import copy
import json
import shlex
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from archbench.experiments.runtime.secrets import REDACTED, redact, without_known_secrets

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
        "url": "https://example.org/a?b=c&keyword=d&tokens=5",
        "paths": ["C:/a@2x/b", "a:/b", "host:8080/a@b", "https://example.org/@user/page"],
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
        "/home/me/https:/me:canary@example.org/data",
        "s3:///me:canary@bucket",
        "https\\://me\\:canary@example.org",
        "https\\://example.org/x?token\\=canary&a\\=1",
        "hub.token\\=canary x",
        "https://example.org/x?a=b&sig=canary&c=d",
        "https://example.org/x?X-Amz-Signature=canary",
        "https://example.org/x?key=canary",
        f"python train.py note={HEX}",
        "Authorization: Bearer canary",
        "authorization: bearer canary",
        "Authorization=Basic bWU6canary==",
        "-H 'Authorization: Token canary' -X POST",
        "Authorization%3A%20Bearer%20canary",
        "Proxy-Authorization: Digest user=me, response=canary",
        "Authorization: AWS4-HMAC-SHA256 Credential=me, Signature=canary",
        "Basic bWU6Y2FuYXJ5canary==",
        "basic auth me:canary",
        "Bearer canary",
        "bearer: canary",
        "token c4canary",
        "api-token c4canary",
        "curl -u me:canary https://example.org",
        "curl -ume:canary",
        "curl --user 'me:canary'",
        "curl -b session=canary",
        "Cookie: id=canary; other=canary",
        "Set-Cookie: id=canary; Path=/",
        "PHPSESSID=canary",
        "--password canary",
        "--api-key 'canary'",
        "X-Api-Key: canary",
        "x-goog-api-key: canary",
        '{\\"token\\": \\"canary\\"}',
        '{"password": ["canary", "canary"]}',
        '{"auths": {"example.org": {"auth": "bWU6Y2canary=="}}}',
        "password: |\n  canary",
        "my password: correct canary battery",
        "Password is c4canary",
        "<password>canary</password>",
        "FOO_KEY=canary train.py",
        "DB_PASS='canary'",
        "machine api.wandb.ai login user password canary",
        "sshpass -p canary ssh host",
        "mysql -u root -pcanary",
        "wandb login c4canary",
        "postgresql://me:canary@host/db",
        "redis://:canary@host:6379/0",
        "Server=host;User Id=me;Password=canary;",
        "AccountName=me;AccountKey=canary==;EndpointSuffix=core",
        "jdbc:oracle:thin:me/canary@host:1521",
        "me:canary@host:8080",
        "https://hooks.slack.com/services/T0/B0/canary",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\ncanary",
        "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary\n-----END OPENSSH PRIVATE KEY-----",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYcanary1AbC9",
    ],
)
def test_secrets_inside_text_go(text: str) -> None:
    clean = redact([text])[0]
    assert REDACTED in clean
    assert "canary" not in clean
    assert "can@ry" not in clean
    assert HEX not in clean


@pytest.mark.parametrize("escape", ["\\n", "\\t", "\\\\n", "\\u2028", "\\x0b", "%20", "%0A"])
@pytest.mark.parametrize(
    "text",
    [
        "Cookie: id=canary",
        "sshpass -p canary ssh",
        "FOO_KEY=canary",
        "bearer canary",
        HF,
        HEX,
        "hunterhunter",
    ],
)
def test_secrets_after_an_escape_go(escape: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hunterhunter")
    clean = redact([f"first{escape}{text}{escape}last"])[0]
    assert clean.startswith(f"first{escape}")
    assert not [secret for secret in ("canary", HF, HEX, "hunterhunter") if secret in clean]


def test_the_path_of_a_folder_stays_and_a_key_with_slashes_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remedy names what to delete."""
    monkeypatch.chdir(tmp_path)
    (folder := Path("DATA/C1/B2/d3f8a9b4c4f5e6d8")).mkdir(parents=True)
    text = f"{folder}/train.bin: changed; delete {folder} and run again"
    assert redact(text) == text
    assert redact("the key /K7/MDENGbPxRfiCYEXAMPLEKEYx1y2 is it") == f"the key {REDACTED} is it"


def test_secrets_beside_their_names_go() -> None:
    assert redact(["--password", "canary", "x"]) == ["--password", REDACTED, "x"]
    assert redact({"name": "API_KEY", "value": "canary"}) == {"name": "API_KEY", "value": REDACTED}
    assert redact({"Cookie": "canary", "Authorization": "canary"}) == {
        "Cookie": REDACTED,
        "Authorization": REDACTED,
    }


@pytest.mark.parametrize(
    "text",
    [
        "the token file is damaged",
        "basic transformer block with token classification",
        "tracking.api_key: there is no such key; did you mean 'tracking.mode'?",
        "override /backbone@_here_: decoder",
        "DeepSeek-R1-Distill-Qwen-32B-GPTQ-Int4",
        "models--meta-llama--Llama-3-8B-Instruct",
        "/home/User1/Projects/ArchBench/runs/studyX/abc",
        "AMD EPYC 7B13 64-Core Processor",
        "single-decoder-recall-nano-a1b2c3d4-s0: digest a1b2c3d4",
        "cookie cutter, login node, first pass: 3 s, sort_key=layer1, token <pad>, -b 32",
    ],
)
def test_text_without_secrets_stays(text: str) -> None:
    assert redact([text]) == [text]


@pytest.mark.parametrize("value", ["complete", "learning_rate", "experiments", "reference", "bfloat16"])
def test_a_secret_that_is_a_word_of_the_project_leaves_keys_names_and_enumerations(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", value)
    tree = {value: 1, "status": value, "_target_": f"experiments.{value}.A", "path": f"/a/{value}/b"}
    assert redact(tree) == tree
    assert redact({"message": f"my word is {value}."}) == {"message": f"my word is {REDACTED}."}


def test_a_secret_that_is_another_word_leaves_keys_classes_times_and_hashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_TOKEN", "hunterhunter")
    monkeypatch.setenv("DB_PASSWORD", "2026-11-29")
    monkeypatch.setenv("SITE_KEY", "deadbeef")
    tree = {
        "hunterhunter": 1,
        "_target_": "hunterhunter.Model",
        "at": "2026-11-29T01:02:03+00:00",
        "sum": "aadeadbeefaa",
    }
    assert redact(tree) == tree
    assert redact(["hunterhunter", "a hunterhunter"]) == [REDACTED, f"a {REDACTED}"]


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


@pytest.mark.parametrize("value", ['p"a\\ss w:ö&rd+12', "it's one of mine", "line one\nline two"])
@pytest.mark.parametrize(
    "spell", [str, repr, json.dumps, shlex.quote, urllib.parse.quote_plus, lambda value: yaml.dump([value])]
)
def test_the_value_of_a_variable_goes_however_it_is_quoted(
    value: str, spell: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", value)
    text = f"before {spell(value)} after"
    for clean in (redact([text])[0], without_known_secrets(text)):
        assert clean.startswith("before ")
        assert clean.endswith(" after")
        assert REDACTED in clean
        assert not [word for word in ('p"a', "rd+12", "rd%2B12", "mine", "line") if word in clean], clean


def test_secrets_that_are_keys_go() -> None:
    assert redact({HF: 1, "token": None}) == {REDACTED: 1, "token": None}


def test_long_text_takes_linear_time() -> None:
    start = time.process_time()
    for part in (
        "a",
        "a.",
        "token",
        "token=",
        "://",
        "ab:/",
        "?a",
        "?a-",
        "&key",
        'token="',
        "hf_",
        "wandb_",
        "secret: ",
        "-u a:",
        "A_",
        "mysql -p ",
        "<a",
        "x-a",
        "-----BEGIN ",
        "aB1/",
        "password: ",
        "password=[",
        "bearer ",
        "cookie: ",
        "\\\\",
        "eyJ",
    ):
        redact(part * 3_000)
    assert time.process_time() - start < 10  # quadratic time would take longer


@pytest.mark.parametrize("name", ["pass", "SESSION_JWT", "COOKIE", "SSH_PRIVATE", "ENCRYPTION_SALT"])
def test_more_names_of_secrets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact({name: "hunter"}) == {name: REDACTED}
    if name.isupper():
        assert redact(f"{name}=hunter") == f"{name}={REDACTED}"
        monkeypatch.setenv(name, "q8Zt-3kLw_9")
        assert redact("it is q8Zt-3kLw_9") == f"it is {REDACTED}"


@pytest.mark.parametrize(
    "text",
    [
        "hf_oauth_AbCdEfGhSecret7",
        "ApiKey secretword",
        'Digest username="u", realm="r", response="secret29fae4"',
        "Bearer\u200b secretword",
        json.dumps('{"password": "two \\"secret", "password": "a secret"}'),
        json.dumps(json.dumps('{"password": "two \\"secret", "password": "a secret"}')),
        r"{\'password\': \'two secret\', \'password\': \'a secret\'}",
    ],
)
def test_more_forms_of_secrets(text: str) -> None:
    left = redact(text)
    assert "secret" not in left.lower(), left
    assert REDACTED in left


def test_quotes_without_an_end_take_linear_time() -> None:
    begin = time.perf_counter()
    redact('password=\\"' * 3000)
    assert time.perf_counter() - begin < 2


def test_a_secret_need_not_be_valid_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = b"\xff\xfe12345678".decode("utf-8", "surrogateescape")
    monkeypatch.setenv("FOO_TOKEN", secret)
    assert redact(f"with {secret} in it") == f"with {REDACTED} in it"
