"""Experts in chosen layers of every family.

Shapes: B batch, T length, S source length.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.feedforward import DenseFeedForward
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.layers.moe.routing_record import record_routing
from archbench.experiments.training.checkpoints.checkpoint import load_newest
from archbench.experiments.training.checkpoints.checkpoint_policy import CheckpointSaver
from archbench.experiments.training.optimizers.adamw import AdamW
from tests.architectures.conformance import (
    check_batch_invariance,
    check_decoding,
    check_gradients,
    check_moved_rows,
    check_no_leak,
    check_packed,
    check_padding,
    check_prompts_together,
    check_sees_everything,
    enliven,
    random_inputs,
)
from tests.architectures.costs import check_flops, check_inactive, check_parameters

FAMILIES: dict[str, tuple[type[Backbone], type]] = {
    "decoder": (Decoder, DecoderConfig),
    "encoder": (Encoder, EncoderConfig),
    "masked_diffusion": (MaskedDiffusion, MaskedDiffusionConfig),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig),
    "hybrid": (Hybrid, HybridConfig),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_experts": 3},
    "switch": {"num_experts": 3, "experts_per_token": 1, "renormalise": False, "z_coefficient": 0.01},
    "deepseek": {
        "num_experts": 6,
        "num_groups": 3,
        "groups_per_token": 2,
        "num_shared_experts": 1,
        "score": "sigmoid",
        "scaling": 2.5,
        "bias_rate": 0.01,
    },
    "qwen": {"num_experts": 4, "renormalise": False, "num_shared_experts": 2, "shared_gate": True},
}


def build(family: str, experts: dict[str, Any], **changes: Any) -> Backbone:
    cls, config_class = FAMILIES[family]
    attention = AttentionConfig(num_heads=2)
    settings: dict[str, Any] = {
        "d_model": 8,
        "num_layers": 3,
        "d_ff": 10,
        "feedforwards": ["dense", "experts"],
    }
    if family == "hybrid":
        settings["layers"] = ["mamba", "attention"]
    config = config_class(
        **{**settings, "attention": attention, "experts": ExpertsConfig(d_ff=6, **experts), **changes}
    )
    torch.manual_seed(0)
    return enliven(cls(config, vocab_size=19, max_length=40).double())


@pytest.mark.parametrize("experts", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_promises(family: str, experts: str) -> None:
    model = build(family, SETTINGS[experts])
    check_padding(model, 11)
    check_batch_invariance(model, 11)
    check_parameters(model, tied=False)
    check_inactive(model)
    if family != "hybrid":  # its scan multiplies matrices of its own
        check_flops(model, 9)
    if model.capabilities.packs:
        check_packed(model)
    if model.capabilities.decodes:
        check_no_leak(model, 9)
        check_decoding(model, 17)
        check_prompts_together(model)
        check_moved_rows(model)
    else:
        check_sees_everything(model, 9)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_learns(family: str) -> None:
    check_gradients(build(family, SETTINGS["qwen"]).float(), 33, autocast=True)


def test_the_pattern_says_which_layers() -> None:
    model = build(
        "encoder_decoder",
        {},
        feedforwards=["dense*2", "experts"],
        encoder_feedforwards=["experts"],
        num_encoder_layers=2,
    )
    assert [type(b.feedforward) for b in model.decoder] == [DenseFeedForward, DenseFeedForward, Experts]
    assert [type(b.feedforward) for b in model.encoder] == [Experts, Experts]
    assert model.kernels()["experts"] == "sorted loop"
    assert "experts" not in build("decoder", {}, feedforwards=["dense", "none"]).kernels()


def test_losses_of_encoder_and_decoder_are_added() -> None:
    model = build("encoder_decoder", {"z_coefficient": 0.1}, feedforwards=["experts"], num_encoder_layers=2)
    each: list[dict[str, torch.Tensor]] = []
    for part in model.modules():
        if isinstance(part, Experts):
            part.register_forward_hook(lambda module, args, output: each.append(output[1]))
    found = random_inputs(model, 2, 7).run(model).auxiliary
    assert len(each) == 5
    for name in ("balance", "router_z"):
        torch.testing.assert_close(found[name], sum(losses[name] for losses in each))


def test_moe_is_a_decoder_whose_layers_have_experts() -> None:
    config = MoEConfig(d_model=16, d_ff=10)
    same = DecoderConfig(d_model=16, d_ff=10, feedforwards=["experts"])
    models = []
    for cls, own in ((MoE, config), (Decoder, same)):
        torch.manual_seed(0)
        models.append(cls(own, vocab_size=19, max_length=20))
    tokens = torch.randint(19, (2, 9))
    assert torch.equal(models[0](tokens).logits_BTV, models[1](tokens).logits_BTV)


@pytest.mark.parametrize("family", ["encoder", "masked_diffusion"])
def test_experts_may_choose_where_all_is_seen(family: str) -> None:
    model = build(family, {"num_experts": 3, "choice": "expert"})
    check_padding(model, 11)
    check_batch_invariance(model, 11)
    check_flops(model, 9)
    check_sees_everything(model, 9)


@pytest.mark.parametrize("family", ["decoder", "hybrid", "encoder_decoder"])
def test_experts_may_not_choose_where_the_future_is_hidden(family: str) -> None:
    with pytest.raises(ValueError, match=r"experts\.choice=expert .* causal"):
        build(family, {"choice": "expert"})


def test_experts_may_choose_in_an_encoder_alone() -> None:
    model = build(
        "encoder_decoder", {"choice": "expert"}, feedforwards=["dense"], encoder_feedforwards=["experts"]
    )
    check_no_leak(model, 9)
    check_decoding(model, 17)


def test_unpadded_batches_have_no_experts() -> None:
    with pytest.raises(ValueError, match=r"unpad=true does not go with feedforwards=\[dense,experts\]"):
        EncoderConfig(unpad=True, feedforwards=["dense", "experts"])


@pytest.mark.parametrize("settings", [{"capacity": 2}, {"capacity_factor": 0.6}])
def test_dropping_does_not_look_ahead_or_beside(settings: dict[str, Any]) -> None:
    model = build("decoder", {"num_experts": 3, **settings})
    check_padding(model, 11)
    check_batch_invariance(model, 11)
    check_no_leak(model, 9)
    with record_routing(model) as records:
        random_inputs(model, 3, 11).run(model)
    assert [*records] == ["blocks.1.feedforward"]
    assert records["blocks.1.feedforward"][0].dropped_share > 0.05


def test_a_model_that_drops_in_training_decodes_as_it_reads() -> None:
    check_decoding(build("decoder", {"num_experts": 3, "capacity_factor": 0.6}).eval(), 17)


def test_recomputation_changes_nothing() -> None:
    """Gradients, losses, jitter, dropped tokens and the step of the bias are as without it."""
    experts = {"num_experts": 3, "bias_rate": 0.1, "jitter": 0.3, "capacity_factor": 0.8}
    tokens = torch.randint(19, (4, 9))
    results = []
    for recompute in (False, True):
        model = build("decoder", experts)
        if recompute:
            for block in model.blocks:
                whole = block.forward

                def again(x: Any, context: Any, whole: Any = whole) -> Any:
                    return checkpoint(whole, x, context, use_reentrant=False)

                block.forward = again
        torch.manual_seed(5)
        output = model(tokens)
        (output.logits_BTV.square().sum() + sum(output.auxiliary.values())).backward()
        model.after_step()
        parameters = {name: p.grad for name, p in model.named_parameters()}
        results.append(parameters | dict(model.named_buffers()))
    assert results[0].keys() == results[1].keys()
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, atol=1e-12, rtol=0)
    assert results[0]["blocks.1.feedforward.router.selection_X"].any()


def test_the_bias_is_in_checkpoints(tmp_path: Path) -> None:
    model = build("decoder", SETTINGS["deepseek"])
    random_inputs(model, 3, 9).run(model).logits_BTV.sum().backward()
    model.after_step()
    bias = model.blocks[1].feedforward.router.selection_X
    assert bias.any()
    optimizer = AdamW().build(model)
    CheckpointSaver(tmp_path, 1, print).save(1, model, optimizer, {}, last=True)
    other = build("decoder", SETTINGS["deepseek"])
    load_newest(tmp_path, other, AdamW().build(other))
    assert torch.equal(other.blocks[1].feedforward.router.selection_X, bias)


def test_the_standard_width_is_that_of_a_dense_layer_for_k_experts() -> None:
    wide = DecoderConfig(d_model=96, experts=ExpertsConfig(experts_per_token=2))
    assert (wide.dense_width, wide.expert_width) == (256, 128)
    assert dataclasses.replace(wide, d_ff=40).expert_width == 40
    own = ExpertsConfig(d_ff=7)
    assert dataclasses.replace(wide, d_ff=40, experts=own).expert_width == 7
