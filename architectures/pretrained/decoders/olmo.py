"""OLMo 2 (arXiv 2501.00656), OLMo 3 (2025) and OLMoE (Muennighoff et al. 2024, arXiv 2409.02060)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.pretrained.attention_keys import every, layer_rope, layer_types
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.decoders.moe import BALANCE, EXPERT_WIDTH, Mixture
from archbench.architectures.pretrained.fields import HEAD_DIM, WHOLE_HEADS, Beside, Field, Only, Settings


class Olmo2(LlamaLike):
    """``Olmo2ForCausalLM``: post-norms inside the residual branch; q and k normalized across heads."""

    model_types = ("olmo2",)
    architecture = "Olmo2ForCausalLM"
    fields = LLAMA | {"rms_norm_eps": Field("norm_eps", 1e-5)}
    fixed: ClassVar[Settings] = {"attention.qk_norm": "full", "block.placement": "output"}
    norms: ClassVar[dict[str, str]] = {
        "post_attention_layernorm": "mixer_residual.after",
        "post_feedforward_layernorm": "feedforward_residual.after",
    }


class Olmo3(Olmo2):
    """``Olmo3ForCausalLM``: OLMo 2 with three local layers to one global one."""

    model_types = ("olmo3",)
    architecture = "Olmo3ForCausalLM"
    fields = Olmo2.fields | {
        # In older files, rope_theta is that of global layers only.
        "rope_theta": Beside(500000.0),
        "rope_parameters": layer_rope("rope_theta", 500000.0),
        "sliding_window": Field("attention.window", 4096),
        "layer_types": layer_types(lambda hf: every(hf, 4)),
    }


class Olmoe(Mixture):
    """``OlmoeForCausalLM``: many small experts, gates not renormalised."""

    model_types = ("olmoe",)
    architecture = "OlmoeForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    fields = LLAMA | {
        "clip_qkv": Only(None),
        "intermediate_size": EXPERT_WIDTH,
        "rms_norm_eps": Field("norm_eps", 1e-5),
        "num_attention_heads": WHOLE_HEADS,
        "head_dim": replace(HEAD_DIM, written=False),
        "num_experts": Field("experts.num_experts", 64),
        "num_experts_per_tok": Field("experts.experts_per_token", 8),
        "norm_topk_prob": Field("experts.renormalise", False),
        **BALANCE,
        "router_aux_loss_coef": Beside(0.01),
    }
    fixed: ClassVar[Settings] = Mixture.fixed | {"attention.qk_norm": "full"}
