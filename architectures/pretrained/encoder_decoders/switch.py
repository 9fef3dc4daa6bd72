"""Switch transformers (Fedus et al. 2021, arXiv 2101.03961): T5 with experts in some layers."""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.pretrained.encoder_decoders.t5 import T5
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    Beside,
    Field,
    Only,
    Part,
    Settings,
    without,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Copied, Repeated, Rule, Same, expert_rules


def _read_pattern(hf: HFConfig, stack: str, num_layers: int) -> list[str]:
    """Return the feed-forwards of a stack, as the Hugging Face class chooses them.

    The step in the file takes precedence over the number of sparse layers. With no sparse layer, the class
    gives experts to the second layer only.
    """
    num_sparse = hf[f"num_sparse_{stack}_layers"]
    step = hf.get(f"{stack}_sparse_step")
    if step is None:
        step = num_layers // num_sparse if num_sparse else num_layers
    sparse = [step > 0 and (layer % step == 1 or step == 1) for layer in range(num_layers)]
    return compress_pattern(["experts" if is_sparse else "dense" for is_sparse in sparse])


def read_patterns(hf: HFConfig) -> Settings:
    """Return the feed-forwards of both stacks."""
    encoder_layers = hf["num_layers"]
    return {
        "feedforwards": _read_pattern(hf, "decoder", hf.get("num_decoder_layers") or encoder_layers),
        "encoder_feedforwards": _read_pattern(hf, "encoder", encoder_layers),
    }


def write_patterns(config: EncoderDecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the number of layers with experts in both stacks."""
    return {
        "num_sparse_decoder_layers": config.feedforward_types.count("experts"),
        "num_sparse_encoder_layers": config.encoder_feedforward_types.count("experts"),
    }


def write_capacity(config: EncoderDecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the capacity of an expert; without one, it accepts the longest sequence."""
    return {"expert_capacity": config.experts.capacity or keys["n_positions"]}


class Switch(T5):
    """``SwitchTransformersForConditionalGeneration``.

    An expert accepts the first ``expert_capacity`` tokens of a sequence. Their class adds its balance loss
    and z-loss only on request in a call, never by ``config.json``: training from a folder has neither.
    """

    model_types = ("switch_transformers",)
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
    }
    architecture = "SwitchTransformersForConditionalGeneration"
    fields = without(T5.fields, "feed_forward_proj", "is_gated_act") | {
        "router_bias": Only(False),
        "router_dtype": Only("float32"),
        "dense_act_fn": Field("feedforward.activation", "relu", names=ACTIVATIONS),
        # The class of T5 reads it; this one scales with a tied head.
        "scale_decoder_outputs": Field(
            "head.scale", lambda hf: hf["tie_word_embeddings"], read=bool, ignored=True, written=False
        ),
        "num_sparse_decoder_layers": Part(read_patterns, write_patterns, default=3),
        "num_sparse_encoder_layers": Beside(3),
        "encoder_sparse_step": Beside(),
        "decoder_sparse_step": Beside(),
        "num_experts": Field("experts.num_experts", 8),
        "expert_capacity": Part(
            lambda hf: {"experts.capacity": hf["expert_capacity"]}, write_capacity, default=64
        ),
        "router_jitter_noise": Field("experts.jitter", 0.01),
    }
    fixed: ClassVar[Settings] = T5.fixed | {
        "feedforward.gated": False,
        "experts.experts_per_token": 1,
        "experts.renormalise": False,
        "experts.jitter_experts": True,  # theirs multiplies in place
        "experts.balance_coefficient": 0.0,
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, EncoderDecoder)
        rules = super().rules(model)
        if model.config.tie_embeddings:
            return rules
        # Without a tied head, the embeddings of encoder and decoder are also different there.
        return [Copied(rule.theirs, rule.ours) if isinstance(rule, Repeated) else rule for rule in rules]

    @classmethod
    def feedforward_rules(cls, config: EncoderDecoderConfig, hf_name: str) -> list[Rule]:
        names = {"wi": "up_XFD", "wo": "down_XDF"}
        dense = [
            Same(f"{hf_name}.mlp.{name}.weight", (f"feedforward.{parameter.partition('_')[0]}.weight",))
            for name, parameter in names.items()
        ]
        router = Same(f"{hf_name}.mlp.router.classifier.weight", ("feedforward.router.weight",))
        experts = expert_rules(config.experts.num_experts, f"{hf_name}.mlp.experts.expert_{{}}", names)
        return [*dense, router, *experts]
