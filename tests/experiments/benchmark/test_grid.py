"""Which cells ``experiments.benchmark`` measures, and what it refuses."""

from __future__ import annotations

import pytest

from archbench.experiments.benchmark.__main__ import read
from archbench.experiments.benchmark.grid import BYTES, Benchmark
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

TINY = (
    "scale.targets.non_embedding=20000",
    "contexts=[12]",
    "batch_size=3",
    "decode_tokens=13",
    "device=cpu",
)


def chosen(*words: str) -> Benchmark:
    return read(commands.compose(*TINY, *words, root="benchmark"))


def test_cells_are_modes_by_batches_by_contexts() -> None:
    cells = list(chosen("contexts=[12,20]").cells())
    assert [(cell.mode, cell.batch_size, cell.context) for cell in cells] == [
        ("train", 3, 12), ("train", 3, 20),
        ("prefill", 1, 12), ("prefill", 1, 20), ("prefill", 3, 12), ("prefill", 3, 20),
        ("decode", 1, 12), ("decode", 1, 20), ("decode", 3, 12), ("decode", 3, 20),
    ]  # fmt: skip
    assert {(cell.vocab_size, cell.max_length, cell.source_length) for cell in cells} == {(BYTES, 33, 0)}


def test_batches_of_one_are_measured_once() -> None:
    assert [cell.batch_size for cell in chosen("batch_size=1").cells()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("mamba", ["train", "prefill", "decode"]),
        ("encoder_decoder", ["train", "prefill", "decode"]),
        ("encoder", ["train", "sample"]),
        ("masked_diffusion", ["train", "sample"]),
        ("block_diffusion", ["train", "sample"]),
    ],
)
def test_everything_a_backbone_can_do_is_measured(name: str, modes: list[str]) -> None:
    assert chosen(f"backbone={name}").modes == modes


def test_training_takes_equal_tokens_at_every_length() -> None:
    cells = chosen("mode=[train,decode]", "contexts=[12,24,48]", "tokens_per_step=48").cells()
    sizes = {(cell.mode, cell.batch_size, cell.context) for cell in cells}
    assert {size for size in sizes if size[0] == "train"} == {
        ("train", 4, 12), ("train", 2, 24), ("train", 1, 48),
    }  # fmt: skip
    assert {size[1] for size in sizes if size[0] == "decode"} == {1, 3}


def test_the_largest_batch_is_sought_beside_the_given_ones() -> None:
    cells = list(chosen("mode=[train,prefill]", "memory_limit=0.5").cells())
    assert [(cell.mode, cell.batch_size, cell.memory_limit) for cell in cells] == [
        ("train", 3, None), ("train", 1, 2**29), ("prefill", 1, None), ("prefill", 3, None),
        ("prefill", 1, 2**29),
    ]  # fmt: skip
    filled = chosen("backbone=masked_diffusion", "mode=[train,sample]", "memory_limit=0.5").cells()
    assert [cell.mode for cell in filled if cell.memory_limit] == ["train"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mode=[trian]",), "mode='trian'; did you mean 'train'?"),
        (("mode=[]",), "mode=[] measures nothing"),
        (("contexts=[]",), "contexts=[] must be lengths"),
        (("contexts=[12,0]",), "contexts=[12, 0] must be lengths"),
        (("batch_size=0",), "batch_size=0 must be at least 1"),
        (("seconds=-1",), "seconds=-1.0 must not be negative"),
        (
            ("backbone=encoder", "mode=[train,decode]"),
            "mode=['decode']: backbone=encoder keeps no decoding state; set mode=[train,sample]",
        ),
        (
            ("mode=[sample]",),
            "backbone=decoder with CausalLM fills in no blanks; set mode=[train,prefill,decode]",
        ),
        (("backbone=masked_diffusion", "objective=causal_lm", "mode=[sample]"), "set mode=[train]"),
        (("steps=[4]",), "steps=[4] is of mode sample, not measured: leave it null"),
        (("backbone=masked_diffusion", "steps=[4,0]"), "steps=[4, 0] must be numbers of at least 1"),
        (("mode=[decode]", "tokens_per_step=24"), "tokens_per_step=24 is of mode train, not measured"),
        (("tokens_per_step=25",), "tokens_per_step=25 is no multiple of 12"),
        (("tokens_per_step=0",), "tokens_per_step=0 must be at least 1"),
        (("memory_limit=0",), "memory_limit=0.0 must be positive"),
        (
            ("backbone=masked_diffusion", "mode=[sample]", "memory_limit=1"),
            "memory_limit=1.0 is of mode train or prefill or decode, not measured",
        ),
        (
            ("backbone=masked_diffusion", "vocab_size=4"),
            "vocab_size=4: special tokens and one to write are 5",
        ),
        (("backbone=block_diffusion", "backbone.block_length=8"), "must be the same"),
        (("backbone=mamba", "source_length=9"), "source_length=9: Mamba reads no source"),
        (("backbone=gpt2", "contexts=[1020]"), "the model has 1024 positions and would need 1033"),
        (("scale.targets=null",), "backbone.d_model and scale.targets are both null"),
        (("backbone.d_model=30",), "backbone: "),
        (("device.threads=0",), "device: threads=0"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
