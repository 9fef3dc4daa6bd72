"""Removes secrets from what is written to disk, uploaded or printed."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import shlex
import sys
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO, cast

from experiments.runtime.errors import ConfigError

REDACTED = "<redacted>"
_SECRET = (
    r"(?:api|access|private|ssh|aws|openai|signing|encryption)[_-]?key|secret|pass(?:w(?:or)?d|phrase)|pgpass"
    r"|credential|(?<![a-z0-9])(?:pwd|pat)(?![a-z0-9])"
)
_TOKEN = r"token(?!s|iz)"  # neither a count of tokens nor a tokenizer
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_TOKEN_NAME = re.compile(_TOKEN, re.IGNORECASE)
_ENVIRONMENT_NAME = re.compile(
    rf"{_SECRET}|{_TOKEN}|(?:^|_)(?:key|keys|key_id|pat|pass|pwd|auth|creds?|dsn)(?:$|_)", re.IGNORECASE
)
"""Names of environment variables with secret values; here ``key`` always means a secret."""
_NO_SECRETS = ("PWD", "OLDPWD")
SHORTEST = 8
"""Least length of a searched value of a variable: shorter ones also occur in other text."""
_HASH_NAME = re.compile(
    r"(?:^|[_.-])(?:commit|revision|sha|hash|digest|fingerprint)(?:$|[_.-])", re.IGNORECASE
)
_OVERRIDE = re.compile(r"([\w.@/+~-]+)=(.*)", re.DOTALL)
# Possessive (``++``), so that long text takes linear time. In sweeps, Hydra writes "\\=" for "=".
_ASSIGNMENT = re.compile(
    rf"""(?<![\w.-])(?=[\w.-]*?(?:{_SECRET}|{_TOKEN}))([\w.-]++)"""
    r"""(["']?\s*\\?[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&}\]]+)""",
    re.IGNORECASE,
)
_URL_USER = re.compile(r"(?<=\w\w)(\\?:/+)[^/\s?#]+(?=@)")
"""User and password of a URL, also of one that was a path, ``https:/me:password@host``."""
_URL_QUERY = re.compile(
    rf"([?&](?=[\w.-]{{0,60}}(?:{_SECRET}|{_TOKEN})|(?:[\w.-]{{0,60}}[_-])?(?:key|sig|signature|auth)\\?=)"
    r"[\w.-]{1,80}\\?=)[^&\s#]+",
    re.IGNORECASE,
)
"""Secret value in the query of a URL."""
_SHAPES = (
    r"hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10,}",  # Hugging Face
    r"wandb_(?=[a-z_]*[A-Z0-9])\w{16,}",
    r"sk-(?=[\w-]*[0-9A-Z])[\w-]{12,}",  # OpenAI, Anthropic
    r"gh[opusr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}",  # GitHub, GitLab
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{8,}",  # AWS
    r"xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{8,}",  # Slack
    r"AIza[\w-]{20,}|ya29\.[\w-]{10,}",  # Google
    r"(?:npm|dop_v1|doo_v1|shpat|lin_api)_\w{10,}|pypi-[\w-]{16,}|dapi[0-9a-f]{32}",
    r"[rs]k_(?:live|test)_\w{10,}|whsec_\w{10,}|SG\.[\w-]{10,}\.[\w-]{10,}",  # Stripe, SendGrid
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]+)?",  # JSON web tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
"""Patterns of tokens with a known prefix, as listed by secret scanners."""
_KNOWN_KEY = re.compile(rf"(?<![\w-])(?:{'|'.join(_SHAPES)})", re.DOTALL)
_HEX_KEY = re.compile(r"(?:(?<![\w.-])([\w.-]++)=)?(?<![\w/@])[0-9a-fA-F]{40}(?!\w)")


def redact(tree: Any, name: str = "") -> Any:
    """A copy of ``tree`` with ``"<redacted>"`` in place of everything that looks like a secret.

    For files, uploads and error messages. It guesses from names too; ``without_known_secrets``, for printed
    text, does not.

    Secrets are: values under names that contain api_key, access_key, secret, password, passphrase,
    credential or token (not "tokens", not "tokenizer", and numbers under a
    "token" name stay: FLOPs per token are no secret); the same in ``name=value``
    strings, such as overrides; tokens of a known shape, such as hf_ and sk-; 40 hex digits,
    unless by their name they are a commit, a revision or a hash; user and
    password in a URL; anywhere, the values of environment variables with such
    names, however they are quoted. The argument is not changed.

    Args:
        tree: mappings and sequences of anything; they become plain dicts and lists.
        name: the dotted name of ``tree``.
    """
    return _redact(tree, name, _secret_values())


def _redact(tree: Any, name: str, values: re.Pattern[str]) -> Any:
    """Do what ``redact`` does; ``values`` is the pattern of the environment's secrets."""
    if _is_secret(name, tree):
        return REDACTED
    if isinstance(tree, str):
        override = _OVERRIDE.fullmatch(tree)
        if override and _is_secret(override[1], _number_or_text(override[2])):
            return f"{override[1]}={REDACTED}"  # to the end: the value may contain spaces and commas
        text = _ASSIGNMENT.sub(_redact_assignment, _without(values, tree))
        return text if _HASH_NAME.search(name) else _HEX_KEY.sub(_redact_hex, text)
    if isinstance(tree, Mapping):
        return {
            _without(values, key) if isinstance(key, str) else key: _redact(value, f"{name}.{key}", values)
            for key, value in tree.items()
        }
    if isinstance(tree, Sequence) and not isinstance(tree, bytes):
        return [_redact(value, name, values) for value in tree]
    return tree


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
    return _without(_secret_values(), text)


def _without(values: re.Pattern[str], text: str) -> str:
    """Do what ``without_known_secrets`` does; ``values`` is the pattern of the environment's secrets."""
    text = _KNOWN_KEY.sub(REDACTED, values.sub(REDACTED, text))
    return _URL_QUERY.sub(rf"\1{REDACTED}", _URL_USER.sub(rf"\1{REDACTED}", text))


def refuse_secret(key: str, value: str) -> None:
    """Raise ConfigError if the name of a file or a folder, visible to other users, looks like a secret."""
    if redact(value) != value:
        raise ConfigError(
            f"{key} looks like a secret, and names a file that other users can see: choose another name"
        )


def _secret_values() -> re.Pattern[str]:
    """Return a pattern of the values that this process's environment has under secret names."""
    values = [value for name, value in os.environ.items() if _is_secret_variable(name)]
    stripped = [value.strip() for value in values if not os.path.exists(value)]
    return _spelled(tuple(value for value in stripped if len(value) >= SHORTEST))


@functools.lru_cache(maxsize=8)
def _spelled(values: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of values, also as JSON, YAML, Python, shells and URLs have them, or across lines."""
    spellings = set()
    for value in values:
        ascii_only = json.dumps(value)[1:-1]
        yaml = re.sub(r"\\u00([0-9a-f]{2})", lambda code: f"\\x{code[1].upper()}", ascii_only)
        quoted = {ascii_only, yaml, json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
        escaped = {urllib.parse.quote(value), urllib.parse.quote(value, ""), urllib.parse.quote_plus(value)}
        spellings |= {value, shlex.quote(value)} | quoted | escaped
    longest_first = sorted(spellings, key=lambda text: (-len(text), text))
    patterns = [r"\s+".join(re.escape(word) for word in text.split()) for text in longest_first]
    return re.compile("|".join(patterns) or r"(?!)")


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


def guard_streams() -> None:
    """Let what this process prints from now on pass the policy of secrets; called by every command.

    A reader that closes the pipe, such as ``head``, ends no command: what is printed after that is lost.

    Only values that are surely secrets are removed: those of secret variables of the environment, tokens of a
    known shape, and user, password and keys of URLs. A text that a model generated, or the hash of a commit,
    is printed as it is.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Guarded):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # its encoding may lack what is printed
            setattr(sys, name, cast(TextIO, _Guarded(stream)))


_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys(
    [*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
)
_STYLE = re.compile(r"(\r|\x1b\[[\d;?]*[A-HKhlm])")
"""The control sequences of Rich and progress bars: colours, and moves of the cursor."""


def printable(text: str) -> str:
    """Return text with control characters, but for line ends and tabs, as symbols that show them."""
    return text.translate(_CONTROLS)


class _Guarded:
    """A text stream that removes secrets from each piece that is written to it, and outlives its reader.

    On a terminal no piece controls more than colours and the cursor.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        length = len(text)
        try:
            text = without_known_secrets(text)
            if self._stream.isatty():
                pieces = _STYLE.split(text)
                text = "".join(piece if _STYLE.fullmatch(piece) else printable(piece) for piece in pieces)
            self._stream.write(text)
        except BrokenPipeError:
            self._lose()
        return length

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._lose()

    def _lose(self) -> None:
        """Send what follows, and what is still in the buffer, nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
