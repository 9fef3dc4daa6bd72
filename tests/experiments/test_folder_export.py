"""A Hugging Face folder, read and written again: the same files, the same tensors, the same training."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

from archbench.architectures.pretrained.checkpoint import families
from archbench.experiments.export import export
from tests.architectures.pretrained.folders import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    make_folder,
    make_tokenizer,
    write_json,
)
from tests.experiments import commands
from tests.experiments.folder_round_trips import (
    ALL,
    DIFFUSION,
    UNREAD,
    WEIGHTS,
    changed_files,
    changed_tensors,
    make_any,
    opened,
    tuned_losses,
)
from tests.tiers import fast_only

KEPT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.fast
def test_every_supported_family_makes_the_round_trip() -> None:
    """A family that is added must be added to the folders of these tests."""
    kinds = {kind for family in families() for kind in family.model_types}
    assert kinds == {model_type(name) for name in ALL}


def model_type(name: str) -> str:
    """The kind of model of a folder."""
    if name in DIFFUSION:
        return {"llada": "llada", "dream": "Dream"}[name]
    settings = getattr(hf, f"{(DECODERS | ENCODER_DECODERS | ENCODERS)[name][0]}Config")
    return str(settings.model_type)


IN_FLOAT32 = [(name, "float32") for name in ("qwen2", *UNREAD)]
"""In the other precision: a family, and those whose tensors change."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    fast_only(
        [*IN_FLOAT32, *((name, "bfloat16") for name in ALL)],
        [("qwen2", "float32"), ("qwen2", "bfloat16")],
        unpack=True,
    ),
)
def test_a_folder_is_written_as_it_was(name: str, dtype: str, tmp_path: Path) -> None:
    """Byte for byte, but for rows of a table that no token reads."""
    folder, written = make_any(name, tmp_path / "theirs", DTYPES[dtype]), tmp_path / "ours"
    changed = changed_files(folder, written)
    assert changed == ({WEIGHTS} if name in UNREAD else set())
    assert not changed_tensors(name, folder, written)
    if changed:
        tokens = torch.randint(8, 290, (2, 11))
        inputs = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if name in ENCODER_DECODERS else {})
        with torch.no_grad():
            one, two = (opened(f)(**inputs).logits.float() for f in (folder, written))
        assert torch.equal(one, two)


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_three_steps_of_fine_tuning_are_theirs(name: str, tmp_path: Path) -> None:
    ours, theirs = tuned_losses(name, tmp_path / "theirs")
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[2] != ours[0]


def test_ids_that_no_class_knows_are_kept(tmp_path: Path) -> None:
    folder, written = make_folder("qwen2", tmp_path / "theirs"), tmp_path / "ours"
    write_json(folder / "config.json", sep_token_id=7)
    changed_files(folder, written)
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, written))
    assert after == before
    assert after["sep_token_id"] == 7


@pytest.mark.full
def test_a_run_that_began_from_a_folder_keeps_what_it_needs_to_generate(tmp_path: Path) -> None:
    folder = make_folder("qwen2", tmp_path / "theirs", max_new_tokens=9)
    write_json(folder / "config.json", vocab_size=300)
    corpus = tmp_path / "text"
    corpus.mkdir()
    for number in range(200):
        (corpus / f"{number}.txt").write_text(" ".join(f"word{(number * k) % 97}" for k in range(2, 40)))
    run = commands.train(
        f"init_from={folder}",
        "task=text",
        "task.sequence_length=32",
        "task.source=files",
        f"task.paths=[{corpus}/*.txt]",
        f"task.cache_dir={tmp_path / 'cache'}",
        "task.tokenizer.kind=folder",
        f"task.tokenizer.path={folder}",
        *[word for word in commands.TINY if not word.startswith("scale")],
        f"runs={tmp_path / 'runs'}",
    )
    written = tmp_path / "ours"
    export(commands.compose(f"run={run}", f"to={written}", root="export"))
    for file in KEPT:
        assert (folder / file).read_bytes() == (written / file).read_bytes(), file
    configs = [json.loads((f / "config.json").read_text()) for f in (folder, written)]
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "model_type", "vocab_size"):
        assert configs[0][key] == configs[1][key]
    assert (
        make_tokenizer("gpt")("the cat").input_ids
        == hf.AutoTokenizer.from_pretrained(written)("the cat").input_ids
    )
