"""A model that is divided from the start has the weights of one process, bit for bit. Processes are real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments import commands
from tests.experiments.training.parallel import initial_weights
from tests.experiments.training.parallel.together import ended, found_together, start_together

GIVEN = ("scale.targets=null", "backbone.d_model=32", "backbone.d_ff=64", "backbone.attention.num_kv_heads=4")
FSDP, DDP = ("parallel=fsdp",), ("parallel=ddp",)
LAYOUTS = {
    **{f"{name}-fsdp": (f"backbone={name}", *FSDP) for name in commands.BACKBONES},
    "decoder-ddp": ("backbone=decoder", *DDP),
    "decoder-tensor": ("backbone=decoder", "parallel=tensor", *GIVEN),
    "canon-tensor": ("backbone=decoder", "parallel=tensor", *GIVEN, "backbone.canon=ABCD"),
    "hybrid-fsdp": ("backbone=hybrid", *FSDP),
    "moe-ddp-expert": ("backbone=moe", *DDP, "parallel.expert=2"),
    "moe-fsdp-expert": ("backbone=moe", *FSDP, "parallel.expert=2"),
    "tied": ("backbone=decoder", *FSDP, "backbone.tie_embeddings=true"),
    "tied-ddp": ("backbone=decoder", *DDP, "backbone.tie_embeddings=true"),
    "mup": ("backbone=decoder", *FSDP, "optimizer.mup_base_width=16"),
    "dplr": ("backbone=s4_dplr", *FSDP, "backbone.C_length=32"),
    "classes": ("backbone=encoder", *FSDP, "objective=sequence_classification", "task=sentences"),
}
"""Names of models that are built, and the words that divide them."""
BIG = ("backbone=decoder", *FSDP, "scale.targets=null", "backbone.d_model=512", "backbone.num_layers=8")


def words(*more: str) -> tuple[str, ...]:
    task = () if any(word.startswith("task=") for word in more) else commands.RECALL
    return (*commands.TINY, *task, *more)


def check(size: int, desk: Path, layouts: dict[str, tuple[str, ...]]) -> None:
    cases = {name: commands.settings(*words(*more)) for name, more in layouts.items()}
    found = found_together(
        size, desk, lambda: {name: initial_weights.check(settings) for name, settings in cases.items()}
    )
    for name, result in found.items():
        assert result["different"] == [], name
        assert result["other attributes"] == [], name
        assert result["same names"], name
        assert result["same kernels"], name
        assert (result["divided"] == 0) == (name in ("decoder-ddp", "tied-ddp")), name


@pytest.mark.full
def test_two_processes_keep_their_parts_of_the_same_weights(tmp_path: Path) -> None:
    check(2, tmp_path, LAYOUTS)


@pytest.mark.full
def test_four_processes_keep_their_parts_of_the_same_weights(tmp_path: Path) -> None:
    more = {"tensor-4": ("backbone=decoder", *FSDP, "parallel.tensor=4", *GIVEN)}
    names = ("moe-fsdp", "mamba-fsdp", "encoder_decoder-fsdp", "hybrid-fsdp", "s4-fsdp", "decoder-tensor",
             "moe-ddp-expert", "moe-fsdp-expert", "tied")  # fmt: skip
    check(4, tmp_path, more | {name: LAYOUTS[name] for name in names})


@pytest.mark.full
def test_no_process_holds_the_whole_model_while_it_is_built(tmp_path: Path) -> None:
    file, case = tmp_path / "found.json", ",".join(words(*BIG))
    # What a first build imports is there before the second.
    first = ",".join(words(*LAYOUTS["tied"]))
    found = ended(start_together(2, str(file), first, case, module=initial_weights.__name__), 600)
    assert [code for code, _, _ in found] == [0, 0], found
    result = json.loads(file.read_text())[case]
    parameters = 8 * 12 * 512**2  # a feed-forward with a gate has two thirds of the width
    assert result["different"] == []
    assert result["mebibytes"] < 0.75 * 4 * parameters / 2**20


@pytest.mark.full
def test_writing_through_a_view_is_found(tmp_path: Path) -> None:
    """It would be lost: a part is not a view of the whole."""
    found = found_together(2, tmp_path, initial_weights.write_through_a_view)
    assert "writes into a parameter through what __getitem__ returns" in found["error"]
