"""Removes secrets from what is written to disk or uploaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"
_SECRET = r"api[_-]?key|secret|passw(?:or)?d|credential"
_TOKEN = r"token(?!s|iz)"  # neither a count of tokens nor a tokenizer
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_TOKEN_NAME = re.compile(_TOKEN, re.IGNORECASE)
_HASH_NAME = re.compile(
    r"(?:^|[_.-])(?:commit|revision|sha|hash|digest|fingerprint)(?:$|[_.-])", re.IGNORECASE
)
_OVERRIDE = re.compile(r"([\w.@/+~-]+)=(.*)", re.DOTALL)
# Possessive (``++``), so that long text takes linear time.
_ASSIGNMENT = re.compile(
    rf"""(?<![\w.-])(?=[\w.-]*?(?:{_SECRET}|{_TOKEN}))([\w.-]++)"""
    r"""(["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&}\]]+)""",
    re.IGNORECASE,
)
_URL_USER = re.compile(r"(?<=://)[^/\s?#]+(?=@)")
_KNOWN_KEY = re.compile(r"\bhf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10,}|\bwandb_(?=[a-z_]*[A-Z0-9])\w{16,}")
_HEX_KEY = re.compile(r"(?:(?<![\w.-])([\w.-]++)=)?(?<![\w/@])[0-9a-fA-F]{40}(?!\w)")


def redact(tree: Any, name: str = "") -> Any:
    """A copy of ``tree`` with ``"<redacted>"`` in place of everything that looks like a secret.

    Secrets are: values under names that contain api_key, secret, password,
    credential or token (not "tokens", not "tokenizer", and numbers under a
    "token" name stay: FLOPs per token are no secret); the same in ``name=value``
    strings, such as overrides; keys of Hugging Face and W&B; 40 hex digits,
    unless the name says they are a commit, a revision or a hash; user and
    password in a URL; anywhere, the values of environment variables with such
    names. The argument is not changed.

    Args:
        tree: mappings and sequences of anything; they become plain dicts and lists.
        name: the dotted name that ``tree`` stands under.
    """
    if _is_secret(name, tree):
        return REDACTED
    if isinstance(tree, str):
        return _redact_text(tree, name)
    if isinstance(tree, Mapping):
        return {key: redact(value, f"{name}.{key}") for key, value in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, bytes):
        return [redact(value, name) for value in tree]
    return tree


def _is_secret(name: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return False
    if _SECRET_NAME.search(name):
        return True
    return bool(_TOKEN_NAME.search(name)) and isinstance(value, str)


def _redact_text(text: str, name: str) -> str:
    override = _OVERRIDE.fullmatch(text)
    if override and _is_secret(override[1], _number_or_text(override[2])):
        return f"{override[1]}={REDACTED}"  # to the end: the value may hold spaces and commas
    for secret in _environment_secrets():
        text = text.replace(secret, REDACTED)
    text = _URL_USER.sub(REDACTED, text)
    text = _ASSIGNMENT.sub(_redact_assignment, text)
    text = _KNOWN_KEY.sub(REDACTED, text)
    return text if _HASH_NAME.search(name) else _HEX_KEY.sub(_redact_hex, text)


def _environment_secrets() -> list[str]:
    """Values of this process's environment under secret names, wherever they turn up; not short words."""
    values = [v for k, v in os.environ.items() if _is_secret(k, _number_or_text(v)) and len(v) >= 8]
    return sorted((v for v in values if not os.path.exists(v)), key=len, reverse=True)


def _redact_assignment(match: re.Match[str]) -> str:
    secret = _is_secret(match[1], _number_or_text(match[3]))
    return f"{match[1]}{match[2]}{REDACTED}" if secret else match[0]


def _redact_hex(match: re.Match[str]) -> str:
    if match[1] and _HASH_NAME.search(match[1]):
        return match[0]
    return f"{match[1]}={REDACTED}" if match[1] else REDACTED


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
