"""Files written one tensor at a time have the bytes that the library gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.training.parallel import gathered_file
from experiments.training.parallel.gathered_file import NAMES, GatheredFile


def tensors() -> dict[str, torch.Tensor]:
    """Every type, empty and scalar tensors, names that JSON escapes, rows that are not in order."""
    drawn = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    each = {str(dtype): drawn.to(dtype) for dtype in NAMES}
    return {
        **each,
        "step": torch.tensor(7.0),
        "none": torch.empty(0, 4),
        'a "b" ü': drawn[:2],
        "0.t": drawn.T,
    }


def test_the_bytes_are_the_librarys(tmp_path: Path) -> None:
    GatheredFile(tensors()).write(tmp_path / "ours")
    save_file(
        {name: x.clone(memory_format=torch.contiguous_format) for name, x in tensors().items()},
        tmp_path / "theirs",
    )
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    for name, tensor in load_file(tmp_path / "ours").items():
        assert torch.equal(tensor, tensors()[name]), name


def test_what_is_left_after_a_failure_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other processes gather all tensors: the one that could not write them must take part."""
    gathered = []
    monkeypatch.setattr(gathered_file, "full_tensor", lambda tensor: gathered.append(1) or tensor)
    file = GatheredFile(tensors())
    with pytest.raises(OSError, match="Is a directory"):
        file.write(tmp_path)
    assert not gathered
    file.finish()
    assert len(gathered) == len(tensors())
    file.finish()
    assert len(gathered) == len(tensors())
