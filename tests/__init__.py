"""Tests, in the tree of what they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
SOURCE = ROOT / "src"
"""The folder from which the project is imported."""
CONF = ROOT / "conf"
