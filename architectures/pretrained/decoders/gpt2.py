"""GPT-2 (Radford et al. 2019): learned positions, pre-norm LayerNorm, fused q, k, v stored as (in, out)."""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    OPTIONAL,
    Field,
    Only,
    Settings,
    Table,
    Written,
)
from archbench.architectures.pretrained.tensor_rules import (
    Rule,
    Same,
    StackedTransposed,
    Transposed,
    head,
    layered,
    linear,
)


class GPT2(Checkpoint):
    """``GPT2LMHeadModel``."""

    backbone_class = Decoder
    model_types = ("gpt2",)
    architecture = "GPT2LMHeadModel"
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
    }
    ignored = (r"attn\.(bias|masked_bias)", r"crossattention\.bias")
    fields: ClassVar[Table] = {
        "scale_attn_weights": Only(True),
        "scale_attn_by_inverse_layer_idx": Only(False),
        "add_cross_attention": Only(False),
        "n_embd": Field("d_model"),
        "n_inner": Field("d_ff", lambda hf: 4 * hf["n_embd"], unset=OPTIONAL),
        "n_layer": Field("num_layers"),
        "layer_norm_epsilon": Field("norm_eps", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "n_head": Field("attention.num_heads"),
        "attn_pdrop": Field("attention.dropout", 0.1),
        "resid_pdrop": Field("block.dropout", 0.1),
        "embd_pdrop": Written(ours="block.dropout"),
        "activation_function": Field("feedforward.activation", "gelu_new", names=ACTIVATIONS),
        "vocab_size": Field("vocab_size"),
        "n_positions": Field("max_length"),
        "bos_token_id": Written(None),
        "eos_token_id": Written(None),
    }
    fixed: ClassVar[Settings] = {
        "attention.bias": True,
        "attention.out_bias": True,
        "positions.kind": "learned",
        "block.norm": "layernorm",
        "feedforward.gated": False,
        "feedforward.bias": True,
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Decoder)
        layer = [
            *linear("ln_1", "mixer_residual.before"),
            *linear("attn.c_attn", "mixer.q", "mixer.k", "mixer.v", make=StackedTransposed),
            *linear("attn.c_proj", "mixer.out", make=Transposed),
            *linear("ln_2", "feedforward_residual.before"),
            *linear("mlp.c_fc", "feedforward.up", make=Transposed),
            *linear("mlp.c_proj", "feedforward.down", make=Transposed),
        ]
        return [
            Same("transformer.wte.weight", ("embedding.tokens.weight",)),
            Same("transformer.wpe.weight", ("embedding.positions",)),
            *layered(model.config.num_layers, "transformer.h.{}.", "blocks.{}.", layer),
            *linear("transformer.ln_f", "final"),
            head("lm_head.weight", tied=model.config.tie_embeddings),
        ]

    @classmethod
    def current_name(cls, name: str) -> str:
        """Add the prefix: the files of the original GPT-2 have no ``transformer.`` before their names."""
        return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
