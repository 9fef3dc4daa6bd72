"""Switch transformers (Fedus et al. 2021, arXiv 2101.03961): T5 with experts in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.pretrained.checkpoint import Blueprint, supported_value, write_activation
from archbench.architectures.pretrained.encoder_decoders.t5 import T5
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Copied, Repeated, Rule, Same, expert_rules


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

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "router_bias", False, default=False)
        supported_value(hf, "router_dtype", "float32", default="float32")
        activation = hf.get("dense_act_fn", "relu")
        supported_value({"dense_act_fn": activation.removeprefix("gated-")}, "dense_act_fn", activation)
        tied = hf.get("tie_word_embeddings", True)
        blueprint = super().read_config(
            hf | {"feed_forward_proj": activation, "scale_decoder_outputs": tied, "tie_word_embeddings": tied}
        )
        config = blueprint.config
        assert isinstance(config, EncoderDecoderConfig)
        experts = ExpertsConfig(
            num_experts=hf.get("num_experts", 8),
            experts_per_token=1,
            renormalise=False,
            capacity=hf.get("expert_capacity", 64),
            jitter=hf.get("router_jitter_noise", 0.01),
            jitter_experts=True,  # theirs multiplies in place
            balance_coefficient=0.0,
        )
        config = replace(
            config,
            feedforwards=_read_pattern(hf, "decoder", config.num_layers),
            encoder_feedforwards=_read_pattern(hf, "encoder", config.encoder_layers),
            experts=experts,
        )
        return replace(blueprint, config=config)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, EncoderDecoder)
        c = model.config
        hf = super().write_config(model) | {
            "architectures": ["SwitchTransformersForConditionalGeneration"],
            "model_type": cls.model_types[0],
            "d_ff": c.dense_width,
            "dense_act_fn": write_activation(c.feedforward.activation),
            "num_sparse_decoder_layers": c.feedforward_types.count("experts"),
            "num_sparse_encoder_layers": c.encoder_feedforward_types.count("experts"),
            "num_experts": c.experts.num_experts,
            "expert_capacity": c.experts.capacity or model.max_length,
            "router_jitter_noise": c.experts.jitter,
        }
        del hf["feed_forward_proj"], hf["scale_decoder_outputs"]
        return hf

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


def _read_pattern(hf: HFConfig, stack: str, num_layers: int) -> list[str]:
    """Return the feed-forwards of a stack, as the Hugging Face class chooses them.

    The step in the file takes precedence over the number of sparse layers. With no sparse layer, the class
    gives experts to the second layer only.
    """
    num_sparse = hf.get(f"num_sparse_{stack}_layers", 3)
    step = hf.get(f"{stack}_sparse_step")
    if step is None:
        step = num_layers // num_sparse if num_sparse else num_layers
    sparse = [step > 0 and (layer % step == 1 or step == 1) for layer in range(num_layers)]
    return compress_pattern(["experts" if is_sparse else "dense" for is_sparse in sparse])
