"""Experts in several processes against one: outputs, losses and gradients. The processes are real ones.

Shapes: B batch, T length, D d_model, X experts.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.expert_parallel import shard_experts
from archbench.architectures.layers.moe.experts import BIASES, STACKS, Experts
from tests.faults.children import in_children

TOKENS = torch.randint(23, (8, 11), generator=torch.Generator().manual_seed(1))
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"dispatch": "padded", "num_shared_experts": 1},
    "sigmoid": {"score": "sigmoid", "bias_rate": 0.01, "experts_per_token": 3},
    "dropping": {"capacity_factor": 1.0},
    "collapsed": {"experts_per_token": 1},
    "biases": {"bias": True},
}


def build(variant: str) -> MoE:
    """In float64. The collapsed one sends every token to one expert: most processes have nothing to do."""
    torch.manual_seed(0)
    experts = ExpertsConfig(**{"num_experts": 8, **VARIANTS[variant]})
    config = MoEConfig(
        d_model=8,
        d_ff=6,
        feedforwards=["dense", "experts"],
        attention=AttentionConfig(num_heads=2),
        experts=experts,
    )
    model = MoE(config, vocab_size=23, max_length=16).double()
    if variant == "collapsed":
        with torch.no_grad():
            model.blocks[1].feedforward.router.weight.zero_()
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] in BIASES:
            torch.nn.init.normal_(parameter)
    return model


def train(model: MoE, tokens_BT: Tensor) -> dict[str, Tensor]:
    """The logits, and the loss: a sum over the sequences, as in the trainer."""
    output = model(tokens_BT)
    logits_BTV = output.logits_BTV
    loss = (logits_BTV * logits_BTV.detach().cos()).sum() + sum(output.auxiliary.values())
    loss.backward()
    return {"logits": logits_BTV.detach().contiguous(), "loss": loss.detach()[None]}


def one_process(rank: int, size: int, folder: Path) -> None:
    """What runs in each process: its rows of the batch, of uneven numbers, with its share of the experts."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=size)
    rows = {2: [(0, 3), (3, 8)], 4: [(0, 1), (1, 4), (4, 5), (5, 8)]}[size][rank]
    for variant in VARIANTS:
        model = build(variant)
        own = {id(parameter) for parameter in shard_experts(model)}
        found = train(model, TOKENS[slice(*rows)])
        for name, parameter in model.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if id(parameter) not in own:
                dist.all_reduce(gradient)
            found[name] = gradient
        model.after_step()
        found |= {name: buffer.clone() for name, buffer in model.named_buffers()}
        save_file(found, folder / f"{variant}-{rank}.safetensors")
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_are_one(size: int, tmp_path: Path) -> None:
    assert in_children(size, lambda rank: one_process(rank, size, tmp_path)) == [0] * size
    for variant in VARIANTS:
        model = build(variant)
        expected = train(model, TOKENS)
        model.after_step()
        parts = [load_file(tmp_path / f"{variant}-{rank}.safetensors") for rank in range(size)]
        logits = torch.cat([part["logits"] for part in parts])
        torch.testing.assert_close(logits, expected["logits"], atol=1e-12, rtol=0)
        total = sum(part["loss"] for part in parts)
        torch.testing.assert_close(total, expected["loss"], atol=1e-10, rtol=0)
        for name, parameter in model.named_parameters():
            whole = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if name.rpartition(".")[2] in STACKS:
                found = torch.cat([part[name] for part in parts])
            else:
                found = parts[-1][name]
            torch.testing.assert_close(found, whole, atol=1e-10, rtol=0, msg=f"{variant}: {name}")
        for name, buffer in model.named_buffers():
            assert all(torch.equal(part[name], buffer) for part in parts), (variant, name)


def alone(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)


def test_one_process_is_as_without(tmp_path: Path) -> None:
    alone(tmp_path)
    try:
        model, sharded = build("plain"), build("plain")
        own = shard_experts(sharded)
        layers = [part for part in sharded.modules() if isinstance(part, Experts)]
        assert {id(p) for p in own} == {
            id(p) for part in layers for p in (part.gate_XFD, part.up_XFD, part.down_XDF)
        }
        torch.testing.assert_close(sharded(TOKENS).logits_BTV, model(TOKENS).logits_BTV, atol=1e-13, rtol=0)
    finally:
        dist.destroy_process_group()


def test_what_cannot_be_shared_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 3)
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 0)
    with pytest.raises(ValueError, match=r"experts\.num_experts=8 .* 3 processes"):
        shard_experts(build("plain"))
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    model = MoE(MoEConfig(d_model=8, experts=ExpertsConfig(dispatch="reference")), vocab_size=9, max_length=8)
    with pytest.raises(ValueError, match="dispatch=reference"):
        shard_experts(model)
