"""The request of a command: prompts, and the settings of their continuation."""

from __future__ import annotations

from dataclasses import dataclass

from archbench.experiments.objectives.decoding.beam_search import BeamConfig
from archbench.experiments.objectives.decoding.sampling import Constraints, SamplingConfig
from archbench.experiments.objectives.decoding.stops import Stop
from archbench.experiments.run.load_model import LoadedModel

Prompts = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt and the settings it is continued with: the command's over the folder's."""

    saved: LoadedModel
    prompts: Prompts
    shows_prompt: bool
    """True where a text is printed behind its prompt, which it continues."""
    num_samples: int
    seed: int
    max_tokens: int
    sampling: SamplingConfig
    beam: BeamConfig
    constraints: Constraints
    stop: Stop

    def as_text(self, prompt: list[int], generated: list[int]) -> str:
        """Return the generated text, after its prompt where it continues that."""
        return self.saved.tokenizer.decode([*prompt, *generated] if self.shows_prompt else generated)
