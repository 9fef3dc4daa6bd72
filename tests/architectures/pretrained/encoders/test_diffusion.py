"""LLaDA and Dream against Llama and Qwen2 of the Hugging Face library with every pair of tokens allowed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.pretrained import load_folder, save_folder
from tests.architectures.pretrained.parity import FLOAT64, KeepFloat64, error, redraw

SIZES = {
    "vocab_size": 61,
    "hidden_size": 36,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 41,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}
OTHERS = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
}


LLADA_MORE = {
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_with_affine": True,
    "multi_query_attention": None,
    "alibi": False,
    "scale_logits": False,
    "rms_norm_eps": 1e-5,
}
"""Keys of the published config.json that the folder of these tests leaves out."""
LLADA_WITHOUT_EFFECT = {
    "alibi_bias_max": 8.0,
    "attention_dropout": 0.0,
    "attention_layer_norm_with_affine": True,
    "embedding_dropout": 0.0,
    "eos_token_id": 2,
    "flash_attention": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "mask_token_id": 60,
    "max_sequence_length": 41,
    "mlp_ratio": 4,
    "pad_token_id": 0,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rope_full_precision": True,
    "use_cache": False,
    "vocab_size": 59,
}
"""Other keys of the published config.json: of training, of kernels, of generation, and beside others that
count (embedding_size, mlp_hidden_size)."""


def llada_name(name: str) -> str:
    """The name in a LLaDA folder of a tensor of Llama."""
    stem, _, part = name.rpartition(".")
    if stem in OTHERS:
        return f"{OTHERS[stem]}.{part}"
    _, _, number, inner = stem.split(".", 3)
    return f"model.transformer.blocks.{number}.{LAYER[inner]}.{part}"


def llada_folder(folder: Path, **settings: Any) -> hf.LlamaForCausalLM:
    """A folder as LLaDA's, and the Llama whose weights it has."""
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    config = hf.LlamaConfig(**{**SIZES, **theta, "rms_norm_eps": 1e-5, **settings})
    theirs = hf.LlamaForCausalLM._from_config(config, attn_implementation="eager").double().eval()
    redraw(theirs)
    tensors = {
        llada_name(name): tensor.clone()
        for name, tensor in theirs.state_dict().items()
        if not (config.tie_word_embeddings and name.startswith("lm_head"))
    }
    save_file(tensors, folder / "model.safetensors")
    written = {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "rope_theta": 500000.0,
        "d_model": 36,
        "n_heads": 6,
        "n_kv_heads": 3,
        "n_layers": 3,
        "mlp_hidden_size": 37,
        "max_sequence_length": 41,
        "vocab_size": config.vocab_size - 2,
        "embedding_size": config.vocab_size,
        "weight_tying": config.tie_word_embeddings,
        "include_bias": False,
        "mask_token_id": 60,
    }
    (folder / "config.json").write_text(json.dumps(written))
    return theirs


def dream_folder(folder: Path, **settings: Any) -> hf.Qwen2ForCausalLM:
    config = hf.Qwen2Config(**{**SIZES, **settings})
    theirs = hf.Qwen2ForCausalLM._from_config(config, attn_implementation="eager").double().eval()
    redraw(theirs)
    theirs.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    del written["layer_types"]
    written |= {"model_type": "Dream", "architectures": ["DreamModel"]}
    (folder / "config.json").write_text(json.dumps(written))
    return theirs


def changed(value: Any) -> Any:
    """Another value of a field."""
    if value is None:
        return 3
    if isinstance(value, bool):
        return not value
    return "other" if isinstance(value, str) else 2 * value + 1


@torch.no_grad()
def both_ways(theirs: Any, tokens_BT: torch.Tensor, valid_BT: torch.Tensor) -> torch.Tensor:
    """Their logits with every pair of real tokens allowed."""
    return unmasked(theirs, tokens_BT, valid_BT)


def unmasked(theirs: Any, tokens_BT: torch.Tensor, valid_BT: torch.Tensor) -> torch.Tensor:
    """Their logits with every pair of real tokens allowed, with gradients."""
    hidden_BS = torch.zeros(valid_BT.shape, dtype=torch.float64).masked_fill(~valid_BT, -1e300)
    mask = hidden_BS[:, None, None, :].expand(-1, 1, valid_BT.shape[1], -1)
    for name, buffer in theirs.named_buffers():
        if name.endswith("inv_freq"):
            buffer.data = buffer.data.float()
    with KeepFloat64():
        return theirs(input_ids=tokens_BT, attention_mask=mask).logits


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    tokens_BT = torch.randint(3, 61, (3, 19), generator=torch.Generator().manual_seed(0))
    return tokens_BT, torch.arange(19) < torch.tensor([[19], [18], [11]])


@pytest.mark.parametrize("tied", [False, True])
def test_llada_is_llama_without_its_mask(tied: bool, tmp_path: Path) -> None:
    theirs = llada_folder(tmp_path, tie_word_embeddings=tied)
    ours = load_folder(tmp_path, dtype=torch.float64).eval()
    assert type(ours) is MaskedDiffusion
    assert (ours.vocab_size, ours.max_length) == (61, 41)
    tokens_BT, valid_BT = sample()
    expected = both_ways(theirs, tokens_BT, valid_BT)
    found = ours(tokens_BT, valid_BT=valid_BT).logits_BTV.detach()
    assert error(found[valid_BT], expected[valid_BT]) < FLOAT64


def test_dream_is_qwen2_without_its_mask_read_one_position_before(tmp_path: Path) -> None:
    theirs = dream_folder(tmp_path)
    ours = load_folder(tmp_path, dtype=torch.float64).eval()
    tokens_BT, valid_BT = sample()
    expected = both_ways(theirs, tokens_BT, valid_BT)
    expected = torch.cat([expected[:, :1], expected[:, :-1]], dim=1)
    found = ours(tokens_BT, valid_BT=valid_BT).logits_BTV.detach()
    assert error(found[valid_BT], expected[valid_BT]) < FLOAT64


@pytest.mark.parametrize("make", [llada_folder, dream_folder])
def test_what_was_read_is_written_back(make: Any, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    make(tmp_path / "theirs")
    ours = load_folder(tmp_path / "theirs", dtype=torch.float64)
    save_folder(ours, tmp_path / "ours")
    again = load_file(tmp_path / "ours" / "model.safetensors")
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], before[name]) for name in before)
    found = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert found["model_type"] == json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"]


def test_what_no_checkpoint_can_say_is_refused(tmp_path: Path) -> None:
    for settings, said in (
        ({"time_embedding": True}, "time_embedding"),
        ({"attention": AttentionConfig(num_heads=2, qk_norm="head")}, "qk_norm"),
    ):
        model = MaskedDiffusion(MaskedDiffusionConfig(d_model=16, **settings), vocab_size=20, max_length=8)
        with pytest.raises(ValueError, match=said):
            save_folder(model, tmp_path / "folder")
    causal = Decoder(DecoderConfig(d_model=16), vocab_size=20, max_length=8)
    save_folder(causal, tmp_path / "causal")
    assert type(load_folder(tmp_path / "causal")) is Decoder


@pytest.mark.parametrize(
    ("key", "value"), [("block_type", "sequential"), ("rope", False), ("include_bias", True), ("alibi", True)]
)
def test_other_kinds_of_llada_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    llada_folder(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=f"{key}={value!r} is not supported"):
        load_folder(tmp_path)


def load(folder: Path, config: dict[str, Any], key: str) -> Any:
    """Our model of a folder with these settings, or None where it is refused by the name of the key."""
    (folder / "config.json").write_text(json.dumps(config))
    try:
        return load_folder(folder, dtype=torch.float64).eval()
    except ValueError as refusal:
        assert f"{key}=" in str(refusal) or "tensors " in str(refusal), (key, refusal)  # noqa: PT017
        return None


def test_no_field_of_llada_is_ignored(tmp_path: Path) -> None:
    theirs = llada_folder(tmp_path)
    tokens_BT, valid_BT = sample()
    base = json.loads((tmp_path / "config.json").read_text()) | LLADA_MORE | LLADA_WITHOUT_EFFECT
    usual = both_ways(theirs, tokens_BT, valid_BT)
    followed = set()
    for key in base.keys() - {"model_type", "architectures"}:
        ours = load(tmp_path, base | {key: changed(base[key])}, key)
        if ours is None:
            continue
        expected = usual
        if key not in LLADA_WITHOUT_EFFECT:
            followed.add(key)
            settings = theirs.config.to_dict() | {key: changed(base[key])}
            if key == "rope_theta":
                settings["rope_parameters"] = {"rope_type": "default", key: changed(base[key])}
            other = hf.LlamaForCausalLM(hf.LlamaConfig(**settings)).double().eval()
            other.load_state_dict(theirs.state_dict())
            expected = both_ways(other, tokens_BT, valid_BT)
            assert error(expected[valid_BT], usual[valid_BT]) > 1e-4, key
        found = ours(tokens_BT, valid_BT=valid_BT).logits_BTV.detach()
        assert error(found[valid_BT], expected[valid_BT]) < FLOAT64, key
    assert followed == {"rms_norm_eps", "rope_theta"}


def test_no_field_of_dream_is_ignored(tmp_path: Path) -> None:
    """Each is followed as Qwen2 follows it without its mask, or refused."""
    dream_folder(tmp_path)
    tokens_BT, valid_BT = sample()
    base = json.loads((tmp_path / "config.json").read_text()) | {"use_mrope": False, "mask_token_id": 60}
    qwen2 = Path(shutil.copytree(tmp_path, tmp_path / "qwen2"))
    followed = set()
    for key in base.keys() - {"model_type", "architectures", "dtype", "transformers_version"}:
        settings = base | {key: changed(base[key]) if key != "rope_parameters" else {"rope_theta": 50.0}}
        ours = load(tmp_path, settings, key)
        if ours is None:
            continue
        (qwen2 / "config.json").write_text(json.dumps(settings | {"model_type": "qwen2"}))
        theirs = hf.Qwen2ForCausalLM.from_pretrained(qwen2, dtype=torch.float64, attn_implementation="eager")
        expected = both_ways(theirs.eval(), tokens_BT, valid_BT)
        expected = torch.cat([expected[:, :1], expected[:, :-1]], dim=1)
        found = ours(tokens_BT, valid_BT=valid_BT).logits_BTV.detach()
        assert error(found[valid_BT], expected[valid_BT]) < FLOAT64, key
        followed.add(key)
    assert followed >= {"rms_norm_eps", "rope_parameters"}
    assert not followed & {"use_sliding_window", "use_mrope", "hidden_act"}
