"""Small Hugging Face folders of every family: random weights of their library, and a tokenizer."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HFTokenizer

from tests.architectures.pretrained.parity import redraw

EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
"""Settings for ``transformers`` to compute with: its grouped products need other widths on a CPU."""
TEXT = "the cat sat on the mat and the dog ran to the house while a bird sang. " * 8
VOCABULARY = 300
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_CHAT = (
    "{{ bos_token }}{%- for m in messages %}{{ '[' + m.role + '] ' + m.content }}{{ eos_token }}{%- endfor %}"
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 80,
}
LATENT = {
    "kv_lora_rank": 18,
    "q_lora_rank": 11,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 13,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}
SSM = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 8}
DECODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 80}, "gpt"),
    "llama": ("Llama", SIZES, "llama"),
    "mistral": ("Mistral", SIZES | {"sliding_window": 5}, "llama"),
    "qwen2": ("Qwen2", SIZES, "gpt"),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 8}, "gpt"),
    "gemma2": ("Gemma2", SIZES | {"head_dim": 8, "sliding_window": 6}, "llama"),
    "olmo2": ("Olmo2", SIZES, "gpt"),
    "gpt_neox": ("GPTNeoX", SIZES, "gpt"),
    "mpt": ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 80}, "gpt"),
    "bloom": ("Bloom", {"hidden_size": 32, "n_head": 4, "n_layer": 2}, "gpt"),
    "deepseek_v2": ("DeepseekV2", SIZES | LATENT, "llama"),
    "deepseek_v3": ("DeepseekV3", SIZES | LATENT | {"n_group": 4, "topk_group": 2}, "llama"),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}, "llama"),
    "olmoe": ("Olmoe", SIZES | {"num_experts": 4, "num_experts_per_tok": 2}, "gpt"),
    "qwen2_moe": (
        "Qwen2Moe",
        SIZES
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 11,
            "shared_expert_intermediate_size": 22,
        },
        "gpt",
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 11, "head_dim": 8},
        "gpt",
    ),
    "gpt_oss": (
        "GptOss",
        SIZES
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            "sliding_window": 5,
            "num_hidden_layers": 3,
            "swiglu_limit": 0.9,  # within the range of random weights
        },
        "gpt",
    ),
    "olmo3": ("Olmo3", SIZES | {"num_hidden_layers": 4, "sliding_window": 5}, "gpt"),
    "olmo3_yarn": (
        "Olmo3",
        SIZES
        | {
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 20,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        "gpt",
    ),
    "smollm3": ("SmolLM3", SIZES | {"num_hidden_layers": 4}, "gpt"),
    "phi3": ("Phi3", SIZES | {"sliding_window": 6}, "llama"),
    "phi3_longrope": (
        "Phi3",
        SIZES
        | {
            "original_max_position_embeddings": 2,  # theirs decides by the longest prompt of a batch
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.3],
                "long_factor": [1.0, 2.0, 5.0],
            },
        },
        "gpt",
    ),
    "granite": (
        "Granite",
        SIZES
        | {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.3,
        },
        "gpt",
    ),
    "phi": ("Phi", SIZES, "gpt"),
    "cohere2": (
        "Cohere2",
        SIZES | {"num_hidden_layers": 4, "sliding_window": 5, "logit_scale": 0.5},
        "llama",
    ),
    "gemma3": ("Gemma3Text", SIZES | {"head_dim": 8, "sliding_window": 5, "num_hidden_layers": 6}, "llama"),
    "gemma3_linear": (
        "Gemma3Text",
        SIZES
        | {
            "head_dim": 8,
            "sliding_window": 5,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        "llama",
    ),
    "mamba": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, "gpt"),
    "falcon_mamba": (
        "FalconMamba",
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "mixer_rms_eps": 0.01},
        "gpt",
    ),
    "mamba2": (
        "Mamba2",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 2,
            "chunk_size": 8,
        },
        "gpt",
    ),
    "jamba": (
        "Jamba",
        SIZES
        | {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        "llama",
    ),
    "bamba": ("Bamba", SIZES | SSM | {"num_hidden_layers": 3, "attn_layer_indices": [1]}, "gpt"),
    "nemotron_h": (
        "NemotronH",
        {
            "hidden_size": 32,
            "intermediate_size": 37,
            "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 80,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 8,
            "chunk_size": 8,
            "time_step_min": 1e-9,  # theirs raises time steps to it in whole texts, not token by token
        },
        "gpt",
    ),
    "qwen3_next": (
        "Qwen3Next",
        SIZES
        | {
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_hidden_layers": 3,
            "linear_key_head_dim": 6,
            "linear_value_head_dim": 5,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 11,
            "shared_expert_intermediate_size": 22,
            "mlp_only_layers": [1],
        },
        "gpt",
    ),
    "nemotron_h_experts": (
        "NemotronH",
        {
            "hidden_size": 32,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 80,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 8,
            "chunk_size": 8,
            "time_step_min": 1e-9,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 13,
            "moe_shared_expert_intermediate_size": 26,
            "routed_scaling_factor": 1.5,
        },
        "gpt",
    ),
    "xlstm": (
        "xLSTM",
        {
            "hidden_size": 64,  # the cache of theirs needs keys and values of multiples of 64 channels
            "num_hidden_layers": 2,
            "num_heads": 4,
            "qk_dim_factor": 1.0,
            "v_dim_factor": 2.0,
            "ffn_proj_factor": 1.3,
            "ffn_round_up_to_multiple_of": 5,
            "chunk_size": 8,
        },
        "gpt",
    ),
    "falcon_h1": (
        "FalconH1",
        SIZES
        | SSM
        | {
            "mamba_d_ssm": 64,
            "key_multiplier": 0.7,
            "embedding_multiplier": 1.5,
            "lm_head_multiplier": 0.6,
            "ssm_multipliers": [0.5, 1.1, 0.8, 1.4, 0.7],
            "mlp_multipliers": [1.3, 0.4],
        },
        "gpt",
    ),
}
STACKS = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 80}
HEADS = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
WIDTHS = {f"{side}_ffn_dim": 37 for side in ("encoder", "decoder")}
T5 = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 37, "num_layers": 2}
SPARSE = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_decoder_layers": 2}
ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "t5": ("T5", T5, "t5"),
    "flan_t5": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "t5"),
    "switch": ("SwitchTransformers", T5 | {"num_experts": 3, **SPARSE}, "t5"),
    "mt5": ("MT5", T5, "t5"),
    "umt5": ("UMT5", T5, "t5"),
    "bart": ("Bart", STACKS | HEADS | WIDTHS, "bart"),
    "mbart": ("MBart", STACKS | HEADS | WIDTHS, "bart"),
}
ENCODER = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", ENCODER, "bart"),
    "distilbert": (
        "DistilBert",
        {"dim": 32, "hidden_dim": 37, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 80},
        "bart",
    ),
    "roberta": ("Roberta", ENCODER, "bart"),
    "xlm_roberta": ("XLMRoberta", ENCODER, "bart"),
    "modernbert": ("ModernBert", ENCODER | {"num_hidden_layers": 4, "local_attention": 6}, "bart"),
}
"""Class, settings and kind of tokenizer."""


@functools.cache
def _pieces() -> HFTokenizer:
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=285, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


SPECIAL = {
    "gpt": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama": ["<s>", "</s>", "<pad>", "<|eot|>"],
    "t5": ["<pad>", "</s>", "<extra_id_0>", "<extra_id_1>"],
    "bart": ["<s>", "<pad>", "</s>", "<mask>"],
}
ROLES = {
    "gpt": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT},
    "llama": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": LLAMA_CHAT},
    "t5": {"eos_token": "</s>", "pad_token": "<pad>"},
    "bart": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"},
}
TEMPLATES = {"llama": ("<s> $A", "<s> $A <s> $B"), "t5": ("$A </s>", "$A </s> $B </s>")}
TEMPLATES["bart"] = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")


def make_tokenizer(kind: str) -> hf.PreTrainedTokenizerFast:
    """A byte-level tokenizer with the special tokens and the post-processor of its kind."""
    tokenizer = HFTokenizer.from_str(_pieces().to_str())
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL[kind]])
    tokenizer.add_tokens(["  added"])
    if kind in TEMPLATES:
        single, pair = TEMPLATES[kind]
        ids = [(name, tokenizer.token_to_id(name)) for name in SPECIAL[kind]]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(n, i) for n, i in ids if n in pair.split()]
        )
    side = "right" if kind == "bart" else "left"  # theirs has absolute positions and counts the padding
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side=side, **ROLES[kind])


def make_model(name: str, **changes: Any) -> Any:
    """The model of a family, with weights that make its logits differ, token ids, and other settings."""
    family, settings, kind = (DECODERS | ENCODER_DECODERS | ENCODERS)[name]
    tokenizer = make_tokenizer(kind)
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad")}
    seq2seq = name in ENCODER_DECODERS
    if name in ENCODERS:
        ids = {"pad_token_id": 1}  # the only one of RoBERTa: its positions begin after it
    if seq2seq:
        ids["decoder_start_token_id"] = ids["eos_token_id"] if kind == "bart" else ids["pad_token_id"]
    settings_class = getattr(hf, f"{family}Config")
    family = family.removesuffix("Text")
    config = settings_class(**{"vocab_size": VOCABULARY, **settings, **ids, **changes})
    suffix = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    if name not in DECODERS:
        suffix = "ForConditionalGeneration" if seq2seq else "ForMaskedLM"
    torch.manual_seed(sum(map(ord, name)))
    return draw_weights(getattr(hf, f"{family}{suffix}")._from_config(config, **EAGER).eval())


def draw_weights(model: Any) -> Any:
    """Draw weights that make the logits of a model differ."""
    redraw(model)
    for key, parameter in model.named_parameters():
        if key.endswith("igate_preact.bias"):  # xLSTM's gates begin where almost nothing is stored
            parameter.data.add_(10.0)
    return model


def make_folder(name: str, folder: Path, **generation: Any) -> Path:
    """A folder of a family, written by their library, with these settings of generation."""
    model, kind = make_model(name), (DECODERS | ENCODER_DECODERS | ENCODERS)[name][2]
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder)
    make_tokenizer(kind).save_pretrained(folder)
    return folder


def write_json(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    tree = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(tree | changes))
