"""Chat templates of Hugging Face folders: from messages to the text that the model reads."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from experiments.data.tokenizers.folder_vocabulary import read_json, special_names
from experiments.runtime.errors import ConfigError, DataError

TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"

MISTAKES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""Exceptions that the expressions of a template may raise."""


def render_messages(folder: Path, messages: Sequence[Any]) -> str:
    """Return the text of a conversation whose next turn is the model's, by the template of a folder.

    The template runs in a sandbox, with the names that the ``transformers`` library gives it.

    Raises:
        ConfigError: the messages are no list of roles and contents, or the template refuses them.
        DataError: the folder has no chat template, or it cannot be read.
    """
    if not isinstance(messages, list | tuple):
        raise ConfigError(f"messages: {messages!r} must be a list: [{{role: user, content: Hi}}]")
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            raise ConfigError(
                f"messages: {message!r} must have a role and a content: {{role: user, content: Hi}}"
            )
    names = special_names(folder)
    extra = read_json(folder / SETTINGS).get("additional_special_tokens")
    template = read_template(folder)
    try:
        return (
            _environment()
            .from_string(template)
            .render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **names,
                **({"additional_special_tokens": extra} if extra else {}),
            )
        )
    except (TemplateError, *MISTAKES) as error:
        raise ConfigError(f"messages: the chat template of {folder} refuses them: {error}") from None


def read_template(folder: Path) -> str:
    """Return the chat template of a folder. Raises DataError where it has none."""
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text()
    found = read_json(folder / SETTINGS).get("chat_template")
    if isinstance(found, list):  # several by name
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    if not isinstance(found, str):
        raise DataError(
            f"{folder}: it has no chat template ({TEMPLATE}): give prompt=TEXT instead of messages"
        )
    return found


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals["namespace"] = _Namespace
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


class _Generation(Extension):
    """The block that marks what a model has written: ``{% generation %}``."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Variables of a template, none of which can reach the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a template cannot set {name!r}")


def _to_json(value: Any, **options: Any) -> str:
    """JSON with every character as it is: Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=options.pop("ensure_ascii", False), **options)


def _refuse(message: str) -> None:
    raise TemplateError(message)
