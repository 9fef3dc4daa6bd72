"""Adds canon layers to the blocks of a model; ``architectures/layers/canon.py`` defines their positions."""

from __future__ import annotations

from collections.abc import Sequence

from archbench.architectures.layers.block import Block, FeedForward, Mixer
from archbench.architectures.layers.canon import Canon
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer


def add_canon(blocks: Sequence[Block], letters: str | None, d_model: int, *, causal: bool) -> None:
    """Add canon layers at the positions of some letters; None for no layers.

    They are causal if the blocks are, and in recurrent mixers, which read in one direction.

    Raises:
        ValueError: no block has a position of a letter, or a mixer has no position B.
    """
    if letters is None:
        return
    for letter in letters:
        count = 0
        for block in blocks:
            for layer, widths in _layers_at(letter, block, d_model):
                one_sided = causal or isinstance(layer, RecurrentMixer)
                layer.canon.update({name: Canon(width, causal=one_sided) for name, width in widths.items()})
                count += len(widths)
        if count == 0:
            part = "feed-forward" if letter == "C" else "dense feed-forward"
            raise ValueError(f"canon={letters}: these layers have no {part}, leave out {letter}")
    for block in blocks:
        block.canons = {path: part for path, part in block.named_modules() if isinstance(part, Canon)}
        for path, canon in block.canons.items():
            canon.path = path


def _layers_at(
    letter: str, block: Block, d_model: int
) -> list[tuple[Block | Mixer | FeedForward, dict[str, int]]]:
    """Return the layers of a block that get canon layers at a position, and the channels of these by name."""
    if letter == "A":
        return [(block, {"A": d_model})]
    if letter == "B":
        return [(part, part.canon_widths) for part in block.mixer.modules() if isinstance(part, Mixer)]
    feedforward = block.feedforward
    if feedforward is None:
        return []
    return [(block, {"C": d_model}) if letter == "C" else (feedforward, feedforward.canon_widths)]
