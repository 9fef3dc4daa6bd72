"""Presets of known models: the published parameter counts, exactly, and the published settings."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
import transformers
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import archbench.experiments.config.schema  # noqa: F401  # registers the sections that the YAML files extend
from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.pretrained import export_config
from archbench.experiments.config import CONF
from archbench.experiments.config.structured import load_class, typed
from tests.architectures.conformance import (
    check_decoding,
    check_no_leak,
    check_padding,
    check_sees_everything,
    enliven,
    random_inputs,
)
from tests.backbones import PRESETS

COUNTS = {
    "gpt2": 124_439_808,
    "llama2_7b": 6_738_415_616,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "mistral_7b": 7_241_732_096,
    "mixtral_8x7b": 46_702_792_704,
    "olmoe_1b_7b": 6_919_161_856,
    "deepseek_v3": 671_026_404_352,
    "bert_base": 109_514_298,
    "bert_large": 335_174_458,
    "modernbert_base": 149_655_232,
    "t5_base": 222_903_552,
    "t5_v1_1_xl": 2_849_757_184,
    "mamba_130m": 129_135_360,
    "mamba_370m": 371_516_416,
    "mamba_790m": 793_204_224,
    "mamba_1_4b": 1_372_178_432,
    "mamba_2_8b": 2_768_345_600,
    "mamba2_2_7b": 2_702_599_680,
    "jamba_v0_1": 51_570_323_328,
}

LLAMA = {"vocab_size": 32000, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
BERT = {
    **{"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu"},
    **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12},
}
T5 = {
    **{"vocab_size": 32128, "n_positions": 512, "d_kv": 64, "layer_norm_epsilon": 1e-6},
    **{"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
}

MAMBA = {
    **{"expand": 2, "conv_kernel": 4, "hidden_act": "silu", "layer_norm_epsilon": 1e-5},
    **{"use_bias": False, "use_conv_bias": True, "tie_word_embeddings": True},
}


def mamba(width: int, layers: int) -> tuple[str, dict[str, Any]]:
    own = {"hidden_size": width, "num_hidden_layers": layers, "vocab_size": 50280, "state_size": 16}
    return "MambaCheckpoint", {**MAMBA, **own, "time_step_rank": width // 16}


def sizes(width: int, layers: int, heads: int, d_ff: int) -> dict[str, int]:
    """Under the names that most classes of that library have for them."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return dict(zip(names, (width, layers, heads, d_ff), strict=True))


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2",
        {
            **{"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
            **{"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
            **{"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "tie_word_embeddings": True},
        },
    ),
    "llama2_7b": (
        "Llama",
        {**LLAMA, **sizes(4096, 32, 32, 11008), "max_position_embeddings": 4096, "num_key_value_heads": 32},
    ),
    "llama2_70b": (
        "Llama",
        {**LLAMA, **sizes(8192, 80, 64, 28672), "max_position_embeddings": 4096, "num_key_value_heads": 8},
    ),
    "llama3_8b": (
        "Llama",
        {
            **{**LLAMA, "vocab_size": 128256, "max_position_embeddings": 8192, "num_key_value_heads": 8},
            **sizes(4096, 32, 32, 14336),
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        },
    ),
    "mistral_7b": (
        "Mistral",
        {
            **{**LLAMA, "max_position_embeddings": 32768, "num_key_value_heads": 8, "sliding_window": 4096},
            **sizes(4096, 32, 32, 14336),
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
    "mixtral_8x7b": (
        "Mixtral",
        {
            **{**LLAMA, "max_position_embeddings": 32768, "num_key_value_heads": 8, "sliding_window": None},
            **{**sizes(4096, 32, 32, 14336), "num_local_experts": 8, "num_experts_per_tok": 2},
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        },
    ),
    "olmoe_1b_7b": (
        "Olmoe",
        {
            **{**LLAMA, "vocab_size": 50304, "max_position_embeddings": 4096, "num_key_value_heads": 16},
            **{**sizes(2048, 16, 16, 1024), "num_experts": 64, "num_experts_per_tok": 8},
            **{"norm_topk_prob": False, "attention_bias": False},
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **{**sizes(7168, 61, 128, 18432), "vocab_size": 129280, "max_position_embeddings": 163840},
            **{"moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1},
            **{"num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3},
            **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-6},
            **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
            **{"v_head_dim": 128, "attention_bias": False, "tie_word_embeddings": False},
        },
    ),
    "bert_base": ("Bert", {**BERT, **sizes(768, 12, 12, 3072)}),
    "bert_large": ("Bert", {**BERT, **sizes(1024, 24, 16, 4096)}),
    "modernbert_base": (
        "ModernBert",
        {
            **{**sizes(768, 22, 12, 1152), "vocab_size": 50368, "max_position_embeddings": 8192},
            **{"local_attention": 128, "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False},
            **{"mlp_bias": False, "decoder_bias": True, "hidden_activation": "gelu"},
        },
    ),
    "t5_base": (
        "T5",
        {
            **{**T5, "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
            **{"feed_forward_proj": "relu", "dropout_rate": 0.1, "tie_word_embeddings": True},
        },
    ),
    "t5_v1_1_xl": (
        "T5",
        {
            **{**T5, "d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32},
            **{"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        },
    ),
    "mamba_130m": mamba(768, 24),
    "mamba_370m": mamba(1024, 48),
    "mamba_790m": mamba(1536, 48),
    "mamba_1_4b": mamba(2048, 48),
    "mamba_2_8b": mamba(2560, 64),
    "mamba2_2_7b": (
        "Mamba2Checkpoint",
        {
            **{**MAMBA, "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50288},
            **{"num_heads": 80, "head_dim": 64, "state_size": 128, "n_groups": 1, "chunk_size": 256},
        },
    ),
    "jamba_v0_1": (
        "Jamba",
        {
            **{**sizes(4096, 32, 32, 14336), "vocab_size": 65536, "num_key_value_heads": 8},
            **{"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False},
            **{"max_position_embeddings": 262144, "attn_layer_period": 8, "attn_layer_offset": 4},
            **{"expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 16},
            **{"num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2},
            **{"mamba_dt_rank": 256, "mamba_conv_bias": True, "mamba_proj_bias": False},
        },
    ),
}
"""Family and configuration of the checkpoints these models were published as."""

CLASSES = {
    "GPT2": transformers.GPT2LMHeadModel,
    "Llama": transformers.LlamaForCausalLM,
    "Mistral": transformers.MistralForCausalLM,
    "Mixtral": transformers.MixtralForCausalLM,
    "Olmoe": transformers.OlmoeForCausalLM,
    "DeepseekV3": transformers.DeepseekV3ForCausalLM,
    "Bert": transformers.BertForMaskedLM,
    "ModernBert": transformers.ModernBertForMaskedLM,
    "T5": transformers.T5ForConditionalGeneration,
    "MambaCheckpoint": transformers.MambaForCausalLM,
    "Mamba2Checkpoint": transformers.Mamba2ForCausalLM,
    "Jamba": transformers.JambaForCausalLM,
}


@functools.cache
def preset(name: str) -> tuple[type[Backbone], BackboneConfig]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        section = compose("config", overrides=[f"backbone={name}"]).backbone
    values: Any = OmegaConf.to_container(section, resolve=True)
    cls = load_class(values.pop("_target_"), Backbone, "backbone")  # type: ignore[type-abstract]
    return cls, typed(cls.Config, values, "backbone")


@functools.cache
def on_meta(name: str) -> Backbone:
    """The whole model without memory. The vocabulary and the length are the preset's own."""
    cls, config = preset(name)
    with torch.device("meta"):
        return cls(config, vocab_size=1, max_length=1)


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def theirs(cls: type, config: Any) -> int:
    """Parameters of a model of that library."""
    with torch.device("meta"):
        return count(cls(config))


@pytest.mark.parametrize("name", PRESETS)
def test_counts_are_the_published_ones(name: str) -> None:
    parts = on_meta(name).parameters_by_part()
    assert parts.total == count(on_meta(name)) == COUNTS[name]
    header = (CONF / "backbone" / f"{name}.yaml").read_text().replace("\n# ", " ")
    assert f"{COUNTS[name]:,} parameters" in header


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_those_of_the_published_configuration(name: str) -> None:
    family, settings = PUBLISHED[name]
    cls = CLASSES[family]
    found = theirs(cls, cls.config_class(**settings))  # type: ignore[attr-defined]
    if settings.get("tie_word_embeddings") is False and family == "T5":
        found += settings["vocab_size"] * settings["d_model"]  # transformers 5 ties T5 whatever it is told
    assert found == COUNTS[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_the_published_ones(name: str) -> None:
    """Nothing is lost on the way to that library's configuration, and that is the published one."""
    family, settings = PUBLISHED[name]
    found, written = export_config(on_meta(name))
    assert found.__name__ == family
    assert {key: written[key] for key in settings} == settings


def test_deepseek_v3_counts_as_its_class_does() -> None:
    config = transformers.DeepseekV3Config()  # the defaults of the class are the published sizes
    assert (config.hidden_size, config.num_hidden_layers, config.n_routed_experts) == (7168, 61, 256)
    assert theirs(transformers.DeepseekV3ForCausalLM, config) == COUNTS["deepseek_v3"]
    parts = on_meta("deepseek_v3").parameters_by_part()
    expert = 3 * 7168 * 2048
    assert parts.inactive == 58 * (256 - 8) * expert
    assert parts.active == 37_552_282_624  # "37B activated", arXiv 2412.19437, section 1


def test_mixtures_activate_as_many_as_published() -> None:
    """12.9B of Mixtral (arXiv 2401.04088, section 1), 1.3B of OLMoE (arXiv 2409.02060, table 1)."""
    assert on_meta("mixtral_8x7b").parameters_by_part().active == 12_879_925_248
    assert on_meta("olmoe_1b_7b").parameters_by_part().active == 1_282_017_280


def test_jamba_activates_as_many_as_published() -> None:
    parts = on_meta("jamba_v0_1").parameters_by_part()
    assert parts.active == 12_110_311_296  # "12B active parameters", arXiv 2403.19887, abstract
    assert parts.inactive == 16 * (16 - 2) * 3 * 4096 * 14336


def test_deepseek_v3_scales_scores_as_its_class_does() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    rope |= {"original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
    config = transformers.DeepseekV3Config(rope_parameters=rope, max_position_embeddings=163840)
    with torch.device("meta"):
        attention = transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention(config, 0)
    rotary = transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3RotaryEmbedding(config)
    ours: Any = on_meta("deepseek_v3")
    mixer = ours.blocks[0].mixer
    assert mixer.scale() == pytest.approx(attention.scaling, rel=1e-12)
    assert mixer.rotary.attention_factor == rotary.attention_scaling == 1
    torch.testing.assert_close(mixer.rotary.frequencies(torch.device("cpu")), rotary.inv_freq)


SMALL = {
    **{"d_model": 24, "num_layers": 3, "d_ff": 20, "vocab_size": 61, "max_positions": 80},
    **{"num_encoder_layers": 2, "d_inner": 40, "d_state": 5, "num_heads": 6, "head_dim": 8},
}


def small_attention(config: Any) -> Any:
    """The attention of a preset with few and narrow heads."""
    own = config.attention
    heads = {"num_heads": 4, "num_kv_heads": own.num_kv_heads and 2}
    heads |= {"head_dim": own.head_dim and 10, "window": own.window and 6}
    if own.latent.kv_rank is not None:
        heads["latent"] = dataclasses.replace(
            own.latent, kv_rank=12, q_rank=14, nope_dim=8, rope_dim=4, v_dim=6
        )
    return dataclasses.replace(own, **heads)


def small_experts(config: Any) -> Any:
    """Fewer and narrower experts, one in four of each group and of the chosen ones."""
    own = config.experts
    few = {"num_experts": own.num_experts // 4, "experts_per_token": max(1, own.experts_per_token // 4)}
    groups = {
        "num_groups": max(1, own.num_groups // 2),
        "groups_per_token": max(1, own.groups_per_token // 2),
    }
    # The balance loss of a batch as one is not the sum of those of its rows, which padding is checked with.
    return dataclasses.replace(own, **few, **groups, d_ff=own.d_ff and 12, balance="sequence")


@pytest.mark.parametrize(
    ("name", "layers", "total"),
    [
        ("olmoe_1b_7b", 16, 0.01),  # megablocks divides the loss of all layers by their number
        ("mixtral_8x7b", 32, 0.02 * 2),  # transformers takes all layers as one, and k where ours is 1
        ("jamba_v0_1", 16, 0.001 * 2),
        ("deepseek_v3", 58, 58 * 0.0001),  # equation 17, for each layer
    ],
)
def test_the_balance_losses_of_all_layers_add_up_to_the_source_s(
    name: str, layers: int, total: float
) -> None:
    """At perfect balance, where the loss of a layer is its coefficient."""
    _, config = preset(name)
    assert isinstance(config, TransformerConfig)
    assert config.feedforward_types.count("experts") == layers
    assert layers * config.experts.balance_coefficient == pytest.approx(total)


def small(name: str) -> Backbone:
    """The preset with small sizes and everything else as it is, its weights large enough to show faults."""
    cls, config = preset(name)
    fields = {field.name for field in dataclasses.fields(config)}
    parts = {"attention": small_attention(config)} if "attention" in fields else {}
    if "experts" in getattr(config, "feedforward_types", []):
        parts["experts"] = small_experts(config)
    deep = {"num_layers": 6} if "layers" in fields else {}  # of a pattern, all kinds of layers
    config = dataclasses.replace(
        config,
        **parts,
        **{key: value for key, value in (SMALL | deep).items() if key in fields},
    )
    return enliven(cls(config, vocab_size=61, max_length=80).double()).eval()


@pytest.mark.parametrize("name", PRESETS)
def test_a_small_one_keeps_its_promises(name: str) -> None:
    model, length = small(name), 23
    output = random_inputs(model, 2, length).run(model)
    assert output.logits_BTV.shape == (2, length, 61)
    assert output.logits_BTV.isfinite().all()
    check_padding(model, length)
    if model.capabilities.decodes:
        check_no_leak(model, length)
        check_decoding(model, length)
    else:
        check_sees_everything(model, 11)
