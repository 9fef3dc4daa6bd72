"""The configuration: its sections as typed dataclasses, its YAML files, and the start of Hydra."""

from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
"""The folder of YAML files."""
