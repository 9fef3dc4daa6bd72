"""Regular expressions of secrets in text, each with what remains of a match.

All take linear time: quantifiers are possessive or bounded.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable

REDACTED = "<redacted>"
_NO_WORD_BEFORE = re.compile(r"\(\?<!(?:\\w|\[\\w[^]]*\])\)")
_ESCAPE = r"(?<=\\[bfnrtv])|(?<=\\u[0-9A-Fa-f]{4})|(?<=\\x[0-9A-Fa-f]{2})|(?<=%[0-9A-Fa-f]{2})"


def word_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    r"""Compile a pattern with words that also begin after an escape, as in ``"\ncat"`` of JSON."""
    return re.compile(_NO_WORD_BEFORE.sub(lambda match: f"(?:{match[0]}|{_ESCAPE})", pattern), flags)


KEY_OWNERS = (
    "api|access|account|anthropic|application|auth|aws|client|consumer|deploy|encryption|github|hf|host|license"
    "|master|openai|private|rsa|service|session|shared|signing|ssh|storage|subscription|wandb|webhook"
)
SECRET = (
    rf"(?:{KEY_OWNERS})[_-]?key|secret|pass(?:w(?:or)?d|phrase|code)|pgpass|credential|api[_-]?auth"
    r"|shared[_-]?access[_-]?signature|sess(?:ion)?[_-]?(?:id|cookie)|connect\.sid"
    r"|(?<![a-z0-9])(?:pwd|pat)(?![a-z0-9])"
)
"""Part of the name of a secret."""
TOKEN = r"token(?!s|iz)"  # neither a count of tokens nor a tokenizer
SEPARATOR = r"\\*[\"']?\s*+\\?(?:[=:]=?>?|->|%3[AaDd])(?:\s|%20)*+"
"""Between a name and a value, in the notations of shells, JSON, YAML, URLs, and JSON in JSON."""
OURS = r"(?!there\sis\s|must\s|has\sno\s|is\s|cannot\s|did\s|<redacted>)"
"""Begins a value, and not one of our messages on a key."""
SHAPES = (
    r"hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10,}|api_org_[A-Za-z0-9]{10,}",  # Hugging Face
    r"hf_(?:oauth|jwt)_(?=[\w-]*[A-Z0-9])[\w-]{8,}",
    r"wandb_(?=[a-z_]*[A-Z0-9])\w{16,}",
    r"sk-(?=[\w-]*[0-9A-Z])[\w-]{12,}",  # OpenAI, Anthropic
    r"gh[opusr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|gl(?:pat|dt|rt|cbt|ptt|soat|ft)-[\w-]{10,}",
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{8,}",  # AWS
    r"xox[abceoprs]-[\w-]{8,}|xoxe\.[\w.-]{8,}|xapp-[\w-]{8,}",  # Slack
    r"AIza[\w-]{20,}|ya29\.[\w-]{10,}|GOCSPX-[\w-]{10,}|1//0[\w-]{20,}",  # Google
    r"(?:npm|dop_v1|doo_v1|dor_v1|shpat|shpss|shpca|lin_api|dckr_pat|glsa|sntrys|figd|ntn|r8|gsk|PMAK|ATATT3x)"
    r"[_-]?(?=[\w-]*[0-9A-Z])[\w-]{16,}",
    r"pypi-[\w-]{16,}|dapi[0-9a-f]{32}|nvapi-[\w-]{16,}|pplx-\w{16,}|xai-\w{16,}|hv[sb]\.[\w-]{16,}",
    r"[rsp]k_(?:live|test)_\w{10,}|whsec_\w{10,}|SG\.[\w-]{10,}\.[\w-]{10,}|key-[0-9a-f]{32}|SK[0-9a-f]{32}",
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]+)?|eyJ[\w-]{40,}={0,2}",  # JSON web tokens
    r"\d{8,10}:AA[\w-]{30,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}|NRAK-[A-Z0-9]{16,}|HRKU-[\w-]{16,}",
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
)
"""Tokens with a known prefix, as listed by secret scanners."""
KNOWN_KEY = word_pattern(rf"(?<![\w-])(?:{'|'.join(SHAPES)})", re.DOTALL)
URL_USER = re.compile(r"(?<=\w\w)(\\?:/+)[^/\s?#]+(?=@)")
"""User and password of a URL, also of one that was a path, ``https:/me:password@host``."""
URL_QUERY = re.compile(
    rf"([?&](?=[\w.-]{{0,60}}(?:{SECRET}|{TOKEN})|(?:[\w.-]{{0,60}}[_-])?(?:key|sig|signature|auth|code|pw)\\?=)"
    r"[\w.-]{1,80}\\?=)[^&\s#]+",
    re.IGNORECASE,
)
"""Secret value in the query of a URL."""
URL_HOOK = re.compile(
    r"(\b(?:hooks\.slack\.com/(?:services|workflows)|(?:discord|discordapp)\.com/api/webhooks"
    r"|api\.telegram\.org/bot)/?)[^\s\"'?]+",
    re.IGNORECASE,
)
"""Path of a webhook, which is its password."""


def looks_random(value: str, least: int = 6) -> bool:
    """Return True for a word that is no word of a language: digits in letters, mixed case, symbols, or long.

    Args:
        value: the word.
        least: its least length.
    """
    if value.startswith("<") or len(value) < least:
        return False
    has_letters_and_digits = re.search(r"[A-Za-z]", value) and re.search(r"\d", value)
    mixed = re.search(r"[a-z][A-Z]|[A-Z]{2}[a-z]|[+/=!$%^&*~#@]|^[A-Z]{6,}$", value)
    return bool(has_letters_and_digits or mixed) or len(value) >= 20


def is_dense(value: str) -> bool:
    """Return True for 24 or more characters that change between cases and digits as those of a key do."""
    kinds = ["".join(map(str, (c.islower(), c.isupper(), c.isdigit()))) for c in value if c.isalnum()]
    if len(kinds) < 24 or len(set(kinds)) < 3:
        return False
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    return changes >= (0.45 if "-" in value or "_" in value else 0.3) * len(value)


def _scheme(match: re.Match[str]) -> str:
    word, value = match[2].lower(), match[3]
    least = 4 if word.startswith("pass") or word in ("bearer", "pwd") else 6
    is_name = re.fullmatch(r"(?i)tokens?|auth\w*|realm|is|was|has|must|missing|invalid", value)
    secret = looks_random(value, least) or (word == "basic" and re.fullmatch(r"[^:]+:[^:]+", value))
    secret = secret or (word in ("bearer", "apikey") and not is_name and not value.startswith("<"))
    return f"{match[1]}{REDACTED}" if secret else match[0]


def _dense(match: re.Match[str]) -> str:
    return REDACTED if is_dense(match[0]) and not _is_path(match[0]) else match[0]


def _is_path(text: str) -> bool:
    """Return True for a path that is there, or in a folder that is. Keys in base64 have slashes too."""
    parent = os.path.dirname(text).strip("/")
    return "/" in text and (os.path.exists(text) or (parent != "" and os.path.isdir(os.path.dirname(text))))


def _weak(match: re.Match[str]) -> str:
    return f"{match[1]}{REDACTED}" if looks_random(match[2], 4) else match[0]


_REST_OF_VALUE = r"(?:\\*\"[^\"]*+\"?|\\*'[^']*+'?|[^\n\"']++)"
_WORD = r"[^\s\"'`,;(){}\[\]]++"
_QUOTED = rf"(?:\"[^\"\n]*+\"|'[^'\n]*+'|{_WORD})"
_I = re.IGNORECASE
RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (  # headers, to the end of the line
        word_pattern(
            rf"""(?<![\w-])((?:proxy[_-]?)?authorization|(?:set-)?cookie2?|x-[a-z-]{{0,40}}?(?:key|token|auth
            |secret|signature|password)[a-z-]{{0,40}})({SEPARATOR}){OURS}{_REST_OF_VALUE}""",
            _I | re.VERBOSE,
        ),
        rf"\1\2{REDACTED}",
    ),
    (
        word_pattern(rf"((?<![\w-])[\w.-]{{0,40}}pass(?:word|phrase|code):\s+){OURS}[^\n\"',;]+", _I),
        rf"\1{REDACTED}",
    ),
    (  # scheme words of a header without its name, and passwords in a sentence
        word_pattern(
            rf"""(?<![\w.-])([\w.-]{{0,40}}?(bearer|basic|token|api[_ -]?key|negotiate|ntlm|hmac|hawk|oauth2?
            |jwt|ssws|login|secret|pass(?:w(?:or)?d|phrase|code)?|pwd)(?:\s*:)?(?:[\s\u200b-\u200f\u2060\ufeff]++|%20|(?<=:))
            (?:auth(?:entication)?\s+)?            (?:is\s+|was\s+)?[\"'`]?)({_WORD})""",
            _I | re.VERBOSE,
        ),
        _scheme,
    ),
    (  # of HTTP digest authentication
        word_pattern(r"((?<!\w)digest\s[^\n]{0,400}?\bresponse=\\*[\"']?)\w+", _I),
        rf"\1{REDACTED}",
    ),
    (
        word_pattern(r"((?<!\w)login\s+\S+\s+(?:account\s+\S+\s+)?password\s+)\S+", _I),
        rf"\1{REDACTED}",
    ),  # netrc
    (  # curl -u me:password
        word_pattern(
            r"(?<![\w-])((?:-u|-U|--user|--proxy-user)(?:\s*=\s*|\s*)[\"']?)[^\s\"':=%-][^\s\"':=%]*+[:%][^\s\"']+"
        ),
        rf"\1{REDACTED}",
    ),
    (word_pattern(r"(?<![\w-])(-b\s+[\"']?[\w.-]{1,60}=)[^\s\"']+"), rf"\1{REDACTED}"),  # a cookie of curl
    (
        word_pattern(
            r"((?<!\w)(?:sshpass|mysql\w*|mariadb|redis-cli|docker\s+login|smbclient|ldap\w+)\b[^\n]{0,200}?\s-[pawP]\s*)"
            r"(?![\w]*-)[^\s\"']+"
        ),
        rf"\1{REDACTED}",
    ),
    (  # --password VALUE
        word_pattern(
            rf"(?<![\w-])(--?(?=[\w.-]{{0,60}}?(?:{SECRET}|{TOKEN}|cookie))[\w.-]{{1,80}}\s+)(?!-){_QUOTED}",
            _I,
        ),
        rf"\1{REDACTED}",
    ),
    (  # <password>VALUE</password>
        word_pattern(rf"(<(?=[\w.:-]{{0,60}}?(?:{SECRET}|{TOKEN}))[\w.:-]{{1,80}}>)[^<]+", _I),
        rf"\1{REDACTED}",
    ),
    (
        word_pattern(
            r"((?<![\w.-])(?:api|access|private|secret|account) key(?: id)?\s*[=:]\s*)(?!set\s[A-Z_]+\b)\S+",
            _I,
        ),
        rf"\1{REDACTED}",
    ),
    (  # FOO_KEY=VALUE in a shell
        word_pattern(
            r"((?<![\w.-])(?:[A-Z0-9]{1,40}_)*+(?:KEY|KEYS|KEY_ID|PASS|PAT|AUTH|CREDS?|DSN|PW|SIG|JWT|SALT"
            r"|COOKIES?|SSH_PRIVATE)=)(?!VALUE\b)(?:\"[^\"]*+\"|'[^']*+'|\S+)"
        ),
        rf"\1{REDACTED}",
    ),
    (
        word_pattern(
            rf"((?<![\w.-])(?:pw|pass|auths?|sig|signature|dsn|s?sid|creds?|pin|otp){SEPARATOR}\\*[\"']?)({_WORD})",
            _I,
        ),
        _weak,
    ),
    (word_pattern(r"((?<!\w)jdbc:[\w:]{1,40}:)[^\s/@:]+/[^\s@]+(?=@)", _I), rf"\1{REDACTED}"),
    (
        word_pattern(r"(?<![\w/.@:-])[\w.+-]{1,60}:[^\s/@:\"']{1,200}(?=@[\w.-])"),
        REDACTED,
    ),  # me:password@host
    (word_pattern(r"(?<![\w+/=.-])[A-Za-z0-9+/_-]{24,400}={0,2}(?![\w+/.-])"), _dense),
)
"""Patterns in a text of the user, and what replaces a match."""
