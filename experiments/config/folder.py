"""The folder of YAML files."""

from __future__ import annotations

from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
