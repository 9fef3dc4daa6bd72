"""Removes secrets from what is written to disk, uploaded or printed."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.secret_patterns import (
    KNOWN_KEY,
    OURS,
    REDACTED,
    RULES,
    SECRET,
    SEPARATOR,
    TOKEN,
    URL_HOOK,
    URL_QUERY,
    URL_USER,
    looks_random,
    word_pattern,
)

_SECRET_NAME = re.compile(
    rf"{SECRET}|(?:^|[._-])(?:auth|authorization|cookies?|jwt|salt|(?:ssh|rsa|key)[_-]private)$|(?:^|\.)pass$",
    re.IGNORECASE,
)
_TOKEN_NAME = re.compile(TOKEN, re.IGNORECASE)
_ENVIRONMENT_NAME = re.compile(
    rf"{SECRET}|{TOKEN}|(?:^|_)(?:key|keys|key_id|pat|pass|pwd|auth|creds?|dsn|jwt|cookies?|salt|private)(?:$|_)",
    re.IGNORECASE,
)
"""Names of environment variables with secret values; here ``key`` always means a secret."""
_NO_SECRETS = ("PWD", "OLDPWD")
LONGEST_WORD = 24
"""Characters of a word of this project at most; longer values are not looked up in its files."""
SHORTEST = 8
"""Least length of a searched value of a variable: shorter ones also occur in other text."""
_HASH_NAME = re.compile(
    r"(?:^|[_.-])(?:commit|revision|sha|hash|digest|fingerprint)(?:$|[_.-])", re.IGNORECASE
)
_OVERRIDE = re.compile(rf"([\w.@/+~-]+)(=|:\s+{OURS})(.*)", re.DOTALL)
_FLAG = re.compile(
    rf"--?[\w-]*(?:{SECRET}|{TOKEN})[\w-]*|-u|--user|(?:proxy-)?authorization:?", re.IGNORECASE
)
"""A word of a list whose next word is a secret."""
# Possessive (``++``), so that long text takes linear time. In sweeps, Hydra writes "\\=" for "=".
_ASSIGNMENT = word_pattern(
    rf"""(?<![\w.-])(?=[\w.-]*?(?:{SECRET}|{TOKEN}))([\w.-]++)({SEPARATOR}){OURS}"""
    # A quote inside a value has more backslashes before it than the one that ends the value.
    r"""((?P<slashes>\\*+)(?P<quote>["'])(?:(?!(?<!\\)(?P=slashes)(?P=quote)).)*+(?P=slashes)(?P=quote)"""
    r"""|\\*"[^"]*"|\\*'[^']*'|\[[^\]]*+\]?|\{[^}]*+\}?|[|>][+-]?\s*\n[^\n]+|[^\s,;&}\]]+)""",
    re.IGNORECASE,
)
_HEX_KEY = word_pattern(r"(?:(?<![\w.-])([\w.-]++)=)?(?<![\w/@])[0-9a-fA-F]{40}(?!\w)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.+Z-]+")
"""Time stamp of a record."""


def redact(tree: Any, name: str = "") -> Any:
    """A copy of ``tree`` with ``"<redacted>"`` in place of everything that looks like a secret.

    For files, uploads and error messages. It guesses from names and forms too; ``without_known_secrets``, for
    printed text, does not.

    Secrets are: values under names that contain api_key, access_key, secret, password, passphrase,
    credential or token (not "tokens", not "tokenizer", and numbers under a "token" name stay: FLOPs per token
    are no secret); the same in ``name=value`` strings, such as overrides; values after the name of a header,
    a scheme of authentication or an option of a command (``RULES``); tokens of a known shape, such as hf_
    and sk-; words that change between cases and digits as keys do; 40 hex digits, unless by their name they
    are a commit, a revision or a hash; user and password in a URL; and the values of environment variables
    with such names, however they are quoted (``_Variables`` says where). The argument is not changed.

    Args:
        tree: mappings and sequences of anything; they become plain dicts and lists.
        name: the dotted name of ``tree``.
    """
    return _redact(tree, name, _variables())


def _redact(tree: Any, name: str, variables: _Variables) -> Any:
    """Do what ``redact`` does."""
    if _is_secret(name, tree):
        return REDACTED
    if isinstance(tree, str):
        return _redact_text(tree, name, variables)
    if isinstance(tree, Mapping):
        named = tree.get("name", tree.get("key"))  # {name: API_KEY, value: ...}
        return {
            _without(variables.keys, key) if isinstance(key, str) else key: (
                _redact(value, f"{name}.{named if key == 'value' else key}", variables)
            )
            for key, value in tree.items()
        }
    if isinstance(tree, Sequence) and not isinstance(tree, bytes):
        before = ["", *tree]
        return [
            REDACTED if isinstance(flag, str) and _FLAG.fullmatch(flag) else _redact(value, name, variables)
            for flag, value in zip(before, tree, strict=False)
        ]
    return tree


def _redact_text(text: str, name: str, variables: _Variables) -> str:
    override = _OVERRIDE.fullmatch(text)
    if override and _is_secret(override[1], _number_or_text(override[3])):
        return f"{override[1]}{override[2]}{REDACTED}"  # to the end: the value may contain spaces and commas
    is_name = name.endswith("_target_") or _TIME.fullmatch(text)
    text = _without(variables.keys if is_name else variables.text, text)
    if re.search(r"\s", text):
        text = variables.sentences.sub(REDACTED, text)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    text = _ASSIGNMENT.sub(_redact_assignment, text)
    return text if _HASH_NAME.search(name) else _HEX_KEY.sub(_redact_hex, text)


def _is_secret(name: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return False
    if _SECRET_NAME.search(name):
        return True
    return bool(_TOKEN_NAME.search(name)) and isinstance(value, str)


def without_known_secrets(text: str) -> str:
    """Return text without values of secret variables, tokens of a known shape, and secrets of URLs.

    For printed text, such as that of a model: unlike ``redact`` it keeps values under secret names, and
    strings of 40 hex digits.
    """
    return _without(_variables().text, text)


def _without(values: re.Pattern[str], text: str) -> str:
    """Do what ``without_known_secrets`` does; ``values`` is the pattern of the environment's secrets."""
    text = KNOWN_KEY.sub(REDACTED, values.sub(REDACTED, text))
    for pattern in (URL_USER, URL_QUERY, URL_HOOK):
        text = pattern.sub(rf"\1{REDACTED}", text)
    return text


def refuse_secret(key: str, value: str) -> None:
    """Raise ConfigError if the name of a file or a folder, visible to other users, looks like a secret."""
    if redact(value) != value:
        raise ConfigError(
            f"{key} looks like a secret, and names a file that other users can see: choose another name"
        )


@dataclass(frozen=True, kw_only=True)
class _Variables:
    """Patterns of the values that this process's environment has under secret names."""

    keys: re.Pattern[str]
    """Values that look random; searched everywhere."""
    text: re.Pattern[str]
    """These, and values that could be words, as whole words; searched in values and printed text."""
    sentences: re.Pattern[str]
    """Values that are words of this project, such as "complete"; searched in values that contain a space,
    since others may be names and enumerations that are read again."""


def _variables() -> _Variables:
    """Return the patterns of the environment."""
    values = [value for name, value in os.environ.items() if _is_secret_variable(name)]
    stripped = [value.strip() for value in values if os.sep not in value or not os.path.exists(value)]
    return _patterns(tuple(value for value in stripped if len(value) >= SHORTEST))


@functools.lru_cache(maxsize=8)
def _patterns(values: tuple[str, ...]) -> _Variables:
    plain = [value for value in values if re.fullmatch(r"[\w.-]+", value)]
    ours = [value for value in plain if len(value) <= LONGEST_WORD and _is_of_project(value)]
    words = [value for value in plain if value in ours or not looks_random(value)]
    random = _spelled(value for value in values if value not in words)
    others = [rf"(?<!\w){re.escape(value)}(?!\w)" for value in words if value not in ours]
    return _Variables(
        keys=_any_of(random),
        text=_any_of([*random, *others]),
        sentences=_any_of([rf"(?<!\w){re.escape(value)}(?!\w)" for value in ours]),
    )


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return word_pattern("|".join(patterns) or r"(?!)")


def _is_of_project(value: str) -> bool:
    """Return True for a word that the code or a YAML file of this project contains: it is public."""
    root, word = Path(__file__).parents[2], re.compile(rf"(?<![\w-]){re.escape(value)}(?![\w-])")
    folders = [root / name for name in ("architectures", "experiments", "analysis", "slurm", "conf")]
    files = (path for folder in folders for kind in ("*.py", "*.yaml") for path in folder.rglob(kind))
    return any(word.search(path.read_text(encoding="utf-8", errors="replace")) for path in files)


def _spelled(values: Iterable[str]) -> list[str]:
    """Return patterns of values, also as JSON, YAML, Python, shells and URLs have them, or across lines."""
    spellings = set()
    for value in values:
        ascii_only = json.dumps(value)[1:-1]
        yaml = re.sub(r"\\u00([0-9a-f]{2})", lambda code: f"\\x{code[1].upper()}", ascii_only)
        quoted = {ascii_only, yaml, json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
        raw = value.encode("utf-8", "surrogateescape")  # a variable need not be valid UTF-8
        escaped = {urllib.parse.quote(raw), urllib.parse.quote(raw, ""), urllib.parse.quote_plus(raw)}
        spellings |= {value, shlex.quote(value)} | quoted | escaped
    longest_first = sorted(spellings, key=lambda text: (-len(text), text))
    return [r"\s+".join(re.escape(word) for word in text.split()) for text in longest_first]


@functools.lru_cache(maxsize=1024)
def _is_secret_variable(name: str) -> bool:
    return name not in _NO_SECRETS and _ENVIRONMENT_NAME.search(name) is not None


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
