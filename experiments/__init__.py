"""The harness: configurations, tasks, objectives, training, evaluation and the commands that run them."""

from pathlib import Path

# Commands that moved keep their old name for one release: experiments.gate is found in deprecated/gate.py.
__path__.append(str(Path(__file__).parent / "deprecated"))
