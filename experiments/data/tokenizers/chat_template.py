"""Chat templates of Hugging Face folders: from messages to the text that the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archbench.experiments.data.tokenizers.folder_vocabulary import read_json, special_names
from archbench.experiments.data.tokenizers.template_sandbox import render
from archbench.experiments.runtime.errors import ConfigError, DataError

TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"


def render_messages(folder: Path, messages: Sequence[Any]) -> str:
    """Render a conversation, up to the next turn of the model, with the template of a folder.

    The template runs in a sandbox, with the variables that the ``transformers`` library defines.

    Raises:
        ConfigError: the messages are no list of roles and contents, or the template rejects them.
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
    variables = {
        "messages": [dict(message) for message in messages], "add_generation_prompt": True, "tools": None,
        "documents": None, **names, **({"additional_special_tokens": extra} if extra else {}),
    }  # fmt: skip
    try:
        return render(template, variables)
    except (TypeError, ValueError) as error:  # a message is not JSON, or the template fails
        raise ConfigError(f"messages: the chat template of {folder} refuses them: {error}") from None


def read_template(folder: Path) -> str:
    """Return the chat template of a folder. Raises DataError where it has none."""
    if (folder / TEMPLATE).is_file():
        try:
            return (folder / TEMPLATE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{folder / TEMPLATE}: cannot be read ({error})") from None
    template = read_json(folder / SETTINGS).get("chat_template")
    if isinstance(template, list):  # multiple by name
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise DataError(
            f"{folder}: it has no chat template ({TEMPLATE}): give prompt=TEXT instead of messages"
        )
    return template
