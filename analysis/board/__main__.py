"""Write the results board: the scores of all tracks, studies and submissions as pages without a server.

    archbench export board [out=board]

Reads the frames in docs/results/ and docs/submissions/, those of tracks, and the claims in docs/findings/.
``make docs`` writes the same pages into the documentation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archbench.analysis.board.pages import Board, alone, downloads, pages, read_board
from archbench.analysis.files import write
from archbench.experiments.config.options import run_command


@dataclass(frozen=True, kw_only=True)
class BoardConfig:
    """Where frames are read, and where the pages go."""

    docs: str = "docs"
    """The folder of ``results/``, ``submissions/`` and ``findings/``."""
    out: str = "board"
    """The folder of the pages."""


def prepare(config: BoardConfig) -> tuple[Path, Board]:
    """Return the folder of the pages and the board. Raises DataError."""
    return Path(config.out), read_board(Path(config.docs))


def publish(out: Path, board: Board) -> None:
    """Write the pages."""
    for name, content in downloads(board).items():
        write(out / name, content)
    for page in pages(board):
        write(out / f"{page.path}.html", alone(page))
    print(f"wrote {out / 'index.html'}: {len(board.models)} models, {len(board.workloads)} workloads")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 for a frame that cannot be used."""
    return run_command(__doc__, BoardConfig, arguments, prepare, lambda prepared: publish(*prepared))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
