import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    DistilBertConfig,
    DistilBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.pretrained import load_folder, save_folder
from tests.architectures.pretrained.parity import (
    FLOAT32,
    FLOAT64,
    check_logits,
    check_read,
    check_write,
    error,
    open_theirs,
    redraw,
    save_theirs,
)

CONFIGS: dict[str, dict[str, Any]] = {
    "odd": {"hidden_size": 30, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 37},
    "untied": {
        "hidden_size": 21,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 44,
        "tie_word_embeddings": False,
        "type_vocab_size": 1,
    },
    "relu": {
        "hidden_size": 14,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 19,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-2,
        "type_vocab_size": 3,
    },
}
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, FLOAT32), (torch.float64, FLOAT64)])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cls", [BertForMaskedLM, RobertaForMaskedLM, XLMRobertaForMaskedLM])
@DTYPES
def test_reads_bert_and_roberta(
    cls: Any, name: str, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    theirs = cls(cls.config_class(vocab_size=61, max_position_embeddings=27, **CONFIGS[name]))
    ours = check_read(theirs, tmp_path / "theirs", dtype, 19, tolerance)
    assert ours.max_length == (27 if cls is BertForMaskedLM else 25)
    segments = CONFIGS[name].get("type_vocab_size", 2)
    tokens_BT, segments_BT = torch.randint(3, 61, (2, 23)), torch.randint(0, segments, (2, 23))
    with torch.no_grad():
        expected = theirs(input_ids=tokens_BT, token_type_ids=segments_BT).logits
        assert error(ours(tokens_BT, segments_BT=segments_BT).logits_BTV, expected) < tolerance


DISTILLED: dict[str, dict[str, Any]] = {
    "odd": {"dim": 30, "n_heads": 5, "n_layers": 3, "hidden_dim": 37},
    "untied": {"dim": 21, "n_heads": 3, "n_layers": 2, "activation": "relu", "tie_word_embeddings": False},
    "sinusoids": {"dim": 14, "n_heads": 1, "n_layers": 1, "sinusoidal_pos_embds": True},
}


@pytest.mark.parametrize("name", DISTILLED)
@DTYPES
def test_reads_and_writes_distilbert(name: str, dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    config = DistilBertConfig(vocab_size=61, max_position_embeddings=27, **DISTILLED[name])
    model = check_read(DistilBertForMaskedLM(config), tmp_path / "theirs", dtype, 19, tolerance)
    assert model.max_length == 27
    check_write(model, DistilBertForMaskedLM, tmp_path / "ours", 27, tolerance)
    assert isinstance(model, Encoder)
    other_norms = replace(model.config, norm_eps=1e-5)
    with pytest.raises(ValueError, match=r"DistilBert: norm_eps=1e-05 \(not 1e-12\)"):
        save_folder(Encoder(other_norms, vocab_size=61, max_length=27), tmp_path / "other")


@pytest.mark.parametrize("cls", [BertForMaskedLM, RobertaForMaskedLM])
def test_fills_every_position_of_the_table(cls: Any, tmp_path: Path) -> None:
    theirs = cls(cls.config_class(vocab_size=61, max_position_embeddings=27, **CONFIGS["odd"]))
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs")).eval()
    check_logits(ours, theirs, ours.max_length, FLOAT32)


def test_passes_over_the_pooler_and_the_next_sentence_classifier(tmp_path: Path) -> None:
    theirs = BertForPreTraining(BertConfig(vocab_size=61, **CONFIGS["odd"]))
    ours = load_folder(save_theirs(theirs, tmp_path / "theirs")).eval()
    tokens_BT = torch.randint(0, 61, (2, 17))
    with torch.no_grad():
        expected = theirs(input_ids=tokens_BT).prediction_logits
        assert error(ours(tokens_BT).logits_BTV, expected) < FLOAT32


def test_reads_the_names_of_the_first_checkpoints(tmp_path: Path) -> None:
    """Norms with gamma and beta, the head repeated, and a table of position numbers."""
    theirs = BertForMaskedLM(BertConfig(vocab_size=61, **CONFIGS["odd"]))
    folder = save_theirs(theirs, tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(512)[None]
    assert old.keys() - tensors.keys()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    check_logits(load_folder(folder).eval(), theirs, 13, FLOAT32)


def ours(**changes: Any) -> Encoder:
    settings = {
        "d_model": 33,
        "num_layers": 2,
        "attention": AttentionConfig(num_heads=3, bias=True, out_bias=True),
        "block": BlockConfig(norm="layernorm", placement="post"),
        "embedding": EmbeddingConfig(norm=True, num_segments=2),
        "head": HeadConfig(bias=True),
        **changes,
    }
    return Encoder(EncoderConfig(**settings), vocab_size=59, max_length=23)


WRITTEN: list[dict[str, Any]] = [
    {},
    {"tie_embeddings": True, "d_ff": 41, "num_layers": 3, "norm_eps": 1e-12},
    {
        "feedforward": FeedForwardConfig(activation="gelu", gated=False, bias=True),
        "embedding": EmbeddingConfig(norm=True, num_segments=1),
        "unpad": True,
    },
]


@pytest.mark.parametrize("changes", WRITTEN)
def test_writes_bert(changes: dict[str, Any], tmp_path: Path) -> None:
    check_write(ours(**changes).double(), BertForMaskedLM, tmp_path / "ours", 17, FLOAT64)


@pytest.mark.parametrize("changes", WRITTEN)
def test_writes_roberta_when_asked(changes: dict[str, Any], tmp_path: Path) -> None:
    model = ours(**changes).double().eval()
    redraw(model)
    save_folder(model, tmp_path / "ours", model_type="roberta")
    theirs = open_theirs(RobertaForMaskedLM, tmp_path / "ours", torch.float64)
    check_logits(model, theirs, model.max_length, FLOAT64)
    again = load_folder(tmp_path / "ours", dtype=torch.float64)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())


def test_roberta_with_another_padding_token_is_refused(tmp_path: Path) -> None:
    """Its positions begin after the id of padding, whatever that is."""
    with pytest.raises(ValueError, match="pad_token_id=0 is not supported, only 1"):
        save_folder(ours(), tmp_path / "ours", model_type="roberta", token_ids={"pad_token_id": 0})
    theirs = RobertaForMaskedLM(RobertaConfig(vocab_size=61, pad_token_id=0, **CONFIGS["odd"]))
    with pytest.raises(ValueError, match="pad_token_id=0 is not supported, only 1"):
        load_folder(save_theirs(theirs, tmp_path / "theirs"))


def test_names_the_settings_that_bert_lacks(tmp_path: Path) -> None:
    model = ours(block=BlockConfig(norm="layernorm"), embedding=EmbeddingConfig(norm=True))
    expected = r"block\.placement=pre \(not post\), embedding\.num_segments=0 \(not 1\)"
    with pytest.raises(ValueError, match=expected):
        save_folder(model, tmp_path / "ours", model_type="bert")
    assert not (tmp_path / "ours").exists()


def test_names_the_position_embeddings_that_are_not_supported(tmp_path: Path) -> None:
    folder = save_theirs(BertForMaskedLM(BertConfig(vocab_size=61, **CONFIGS["odd"])), tmp_path / "theirs")
    hf = json.loads((folder / "config.json").read_text()) | {"position_embedding_type": "relative_key"}
    (folder / "config.json").write_text(json.dumps(hf))
    with pytest.raises(ValueError, match="position_embedding_type='relative_key' is not supported"):
        load_folder(folder)


def test_an_encoder_is_written_as_xlm_roberta_where_that_is_asked_for(tmp_path: Path) -> None:
    theirs = XLMRobertaForMaskedLM(
        XLMRobertaConfig(vocab_size=61, max_position_embeddings=27, **CONFIGS["odd"])
    )
    model = load_folder(save_theirs(theirs, tmp_path / "theirs")).eval()
    save_folder(model, tmp_path / "ours", model_type="xlm-roberta")
    opened = open_theirs(XLMRobertaForMaskedLM, tmp_path / "ours", torch.float32)
    check_logits(model, opened, 17, FLOAT32)
