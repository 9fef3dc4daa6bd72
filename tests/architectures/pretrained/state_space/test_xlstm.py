"""Parity of xLSTM with the Hugging Face library, both ways and in generation."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.mixers.mlstm import MLSTM, MLSTMConfig
from archbench.architectures.pretrained import load_folder, save_folder
from archbench.architectures.pretrained.export import export_config
from tests.architectures.pretrained.folders import make_model, write_json
from tests.architectures.pretrained.parity import (
    FLOAT32,
    FLOAT64,
    check_generate,
    check_logits,
    check_read,
    open_theirs,
    redraw,
)

LENGTH = 83
"""More than a chunk of ours, and no multiple of one of theirs."""
CASES: dict[str, dict[str, Any]] = {
    "usual": {},
    "other caps": {"gate_soft_cap": 2.0, "output_logit_soft_cap": 5.0},
    "other sizes": {"num_heads": 2, "qk_dim_factor": 2.0, "v_dim_factor": 1.0, "eps": 0.1, "norm_eps": 1e-3},
}
replace: Callable[..., Any] = dataclasses.replace  # also of the sections of mixers

OURS = HybridConfig(
    d_model=16,
    d_ff=22,
    num_layers=3,
    layers=["mlstm"],
    mlstm=MLSTMConfig(num_heads=4, expand_k=4.0, expand_v=8.0, gate_cap=7.0),
    head=HeadConfig(softcap=11.0),
)


@pytest.mark.parametrize("name", CASES)
def test_reads_and_generates_as_theirs(name: str, tmp_path: Path) -> None:
    theirs = make_model("xlstm", **CASES[name])
    ours = check_read(theirs, tmp_path, torch.float32, LENGTH, FLOAT32)
    check_generate(ours, theirs, length=7, new=16)


@pytest.mark.parametrize("name", CASES)
def test_reads_in_float64(name: str, tmp_path: Path) -> None:
    check_read(make_model("xlstm", **CASES[name]), tmp_path, torch.float64, LENGTH, FLOAT64)


@pytest.mark.parametrize("d_ff", [22, 37])
def test_writes_and_reads_back(d_ff: int, tmp_path: Path) -> None:
    ours = Hybrid(replace(OURS, d_ff=d_ff), vocab_size=59, max_length=43).eval()
    redraw(ours)
    for block in ours.blocks:
        block.mixer.input_gate.bias.data.add_(10.0)  # begins where almost nothing is stored
    save_folder(ours, tmp_path / "ours", shard_bytes=3000)
    theirs = open_theirs(hf.AutoModelForCausalLM, tmp_path / "ours", torch.float32)
    assert type(theirs) is hf.xLSTMForCausalLM
    check_logits(ours, theirs, 29, FLOAT32)
    check_generate(ours, theirs, length=5, new=14)
    back = load_folder(tmp_path / "ours").state_dict()
    assert back.keys() == ours.state_dict().keys()
    assert all(torch.equal(back[key], value) for key, value in ours.state_dict().items())


def test_gates_begin_as_theirs(tmp_path: Path) -> None:
    """Biases of the gates: -10, and 3 to 6 over the heads."""
    theirs = hf.xLSTMForCausalLM(make_model("xlstm").config).backbone.blocks[0].mlstm_layer
    ours = MLSTM(16, replace(OURS.mlstm, num_heads=4))
    ours.initialise(1)
    for one, two in ((ours.input_gate, theirs.igate_preact), (ours.forget_gate, theirs.fgate_preact)):
        assert torch.equal(one.bias, two.bias)
        assert not one.weight.any()
        assert not two.weight.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bias": True}, "use_bias=True is not supported, only False"),
        ({"weight_mode": "fused"}, "weight_mode='fused' is not supported, only 'single'"),
        ({"inference_state_dtype": "bfloat16"}, "inference_state_dtype='bfloat16' is not supported"),
        ({"num_blocks": 7}, "num_blocks=7 and num_hidden_layers=2 must be equal"),
        ({"num_heads": 3}, "qk_dim_factor=1.0 gives 64 channels, which must be a multiple of num_heads=3"),
        ({"num_heads": 0}, "num_heads=0 must be at least 1"),
        ({"qk_dim_factor": "1"}, "qk_dim_factor='1' must be a positive number"),
        ({"gate_soft_cap": -1.0}, "gate_soft_cap=-1.0 must be positive, or null"),
        ({"ffn_round_up_to_multiple_of": 0}, "ffn_round_up_to_multiple_of=0 must be positive"),
        ({"num_blocks": 10**5, "num_hidden_layers": 10**5}, "it has 100000 layers"),
    ],
)
def test_settings_without_counterpart_are_named(change: Any, message: str, tmp_path: Path) -> None:
    make_model("xlstm").save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", **change)
    with pytest.raises(ValueError, match=message):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(OURS, layers=["mlstm", "mamba"]), "XLSTM: layers of mamba, mlstm, only mlstm"),
        (replace(OURS, mlstm=replace(OURS.mlstm, gate_cap=None)), "XLSTM: mlstm.gate_cap=null, there is"),
        (replace(OURS, head=HeadConfig()), "XLSTM: head.softcap=null, there is always one"),
        (replace(OURS, tie_embeddings=True), "XLSTM: tie_embeddings=True"),
        (replace(OURS, feedforwards=["none"]), r"XLSTM: .*feedforwards=\[none"),
    ],
)
def test_what_it_does_not_express_is_named(config: HybridConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export_config(Hybrid(config, vocab_size=59, max_length=43), model_type="xlstm")
