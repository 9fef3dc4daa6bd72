"""Lets these tests import what those of the harness share: ``commands`` and ``processes``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
