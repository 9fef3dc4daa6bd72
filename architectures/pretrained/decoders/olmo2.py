"""OLMo 2 (arXiv 2501.00656): post-norms inside the residual branch; q and k normalized across heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from architectures.layers.attention.config import AttentionConfig
from architectures.layers.block import BlockConfig
from architectures.pretrained.decoders.llama import LlamaLike
from architectures.pretrained.hf_config import HFConfig


class Olmo2(LlamaLike):
    """``Olmo2ForCausalLM``."""

    model_types = ("olmo2",)
    architecture = "Olmo2ForCausalLM"
    defaults: ClassVar[HFConfig] = {"rms_norm_eps": 1e-5}
    block = BlockConfig(placement="output")
    norms: ClassVar[dict[str, Any]] = {
        "post_attention_layernorm": "mixer_residual.after",
        "post_feedforward_layernorm": "feedforward_residual.after",
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        return replace(super().read_attention(hf), qk_norm="full")
