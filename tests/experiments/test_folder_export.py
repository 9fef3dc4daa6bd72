"""A Hugging Face folder, read and written again: the same files, the same tensors, the same training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from architectures.backbone import Backbone
from architectures.pretrained import load_folder
from experiments.export import export
from tests.architectures.pretrained.folders import (
    DECODERS,
    EAGER,
    ENCODER_DECODERS,
    ENCODERS,
    make_folder,
    make_tokenizer,
    write_json,
)
from tests.architectures.pretrained.parity import KeepFloat64
from tests.experiments import commands
from tests.tiers import fast_only

ALL = [*DECODERS, *ENCODER_DECODERS, *ENCODERS]
KEPT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
UNREAD = {"bart": 2, "mbart": 2, "roberta": 2, "xlm_roberta": 2}
"""Rows of tables of positions that only padding reads, if anything; they are written as zeros."""


def opened(folder: Path) -> Any:
    config = hf.AutoConfig.from_pretrained(folder)
    kind = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
    if config.architectures[0].endswith("ForMaskedLM"):
        kind = hf.AutoModelForMaskedLM
    return kind.from_pretrained(folder, **EAGER).eval()


@pytest.mark.parametrize("name", fast_only(ALL, ["qwen2"]))
def test_a_folder_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    written_as_it_was(name, "float32", tmp_path)


@pytest.mark.parametrize("name", fast_only(ALL, ["qwen2"]))
def test_a_folder_in_bfloat16_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    written_as_it_was(name, "bfloat16", tmp_path)


def written_as_it_was(name: str, dtype: str, tmp_path: Path) -> None:
    generation = {} if name in ENCODERS else {"max_new_tokens": 9}
    folder, written = make_folder(name, tmp_path / "theirs", **generation), tmp_path / "ours"
    if dtype == "bfloat16":
        opened(folder).to(torch.bfloat16).save_pretrained(folder)
    write_json(folder / "config.json", sep_token_id=7)
    export(commands.compose(f"run={folder}", f"to={written}", root="export"))
    for file in KEPT:
        if (folder / file).exists():
            assert (folder / file).read_bytes() == (written / file).read_bytes(), file
    before, after = (load_file(f / "model.safetensors") for f in (folder, written))
    configs = [json.loads((f / "config.json").read_text()) for f in (folder, written)]
    assert {str(t.dtype) for t in after.values()} == {str(t.dtype) for t in before.values()}
    ids = {key: value for key, value in configs[0].items() if key.endswith("_token_id")}
    assert {key: configs[1].get(key) for key in ids} == ids
    assert configs[0] == configs[1]
    assert after.keys() == before.keys()
    for key, tensor in before.items():
        table = "embed_positions" in key or "position_embeddings" in key
        first = UNREAD.get(name, 0) if table else 0
        assert torch.equal(after[key][first:], tensor[first:]), key
    tokens = torch.randint(8, 290, (2, 11))
    inputs = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if name in ENCODER_DECODERS else {})
    with torch.no_grad():
        one, two = (opened(f)(**inputs).logits.float() for f in (folder, written))
    assert torch.equal(one, two)


def fine_tuned(model: Any, name: str, tokens: torch.Tensor) -> list[float]:
    """The losses of three steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    ours, target, losses = isinstance(model, Backbone), tokens.flip(1), []
    for _ in range(3):
        optimizer.zero_grad()
        source = {"source_BS" if ours else "input_ids": tokens} if name in ENCODER_DECODERS else {}
        if ours:
            logits = model(target, **source).logits_BTV
        else:
            key = "decoder_input_ids" if source else "input_ids"
            with KeepFloat64():
                logits = model(**{key: target}, **source).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_three_steps_of_fine_tuning_are_theirs(name: str, tmp_path: Path) -> None:
    """In float64: the first step of AdamW divides each gradient by its size, noise as well."""
    folder = make_folder(name, tmp_path / "theirs")
    models = [load_folder(folder, dtype=torch.float64).eval(), opened(folder).double()]  # without dropout
    models[1].config.use_cache = False  # that of xLSTM is written in place, which gradients do not allow
    for key, buffer in models[1].named_buffers():
        if key.endswith("inv_freq"):  # of float32 on both sides
            buffer.data = buffer.data.float()
    torch.manual_seed(0)
    tokens = torch.randint(8, 290, (3, 12))
    losses: list[list[float]] = [[], []]
    for number, model in enumerate(models):
        losses[number] = fine_tuned(model, name, tokens)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][2] != losses[0][0]


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
