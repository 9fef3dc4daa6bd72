"""The type of config.json of a Hugging Face folder."""

from __future__ import annotations

from typing import Any

HFConfig = dict[str, Any]
"""Content of config.json. Each architecture of ``transformers`` defines its own keys, so that values have no
common type: the family of a checkpoint checks those that it reads."""
