"""Training steps in bfloat16: how much of the device's arithmetic each family and size uses.

A step is forward, cross-entropy at every position, backward, clipping and fused AdamW on random tokens, with
autocast over float32 weights: like the trainer, but without reading results back.

Shapes: B batch, T length.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.stack import Stack
from archbench.architectures.kernels.mamba_ssm import import_problem
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.experiments.benchmark.timing import Stopwatch
from archbench.experiments.training.parallel.block_wrapping import check_compiler, compile_block

Make = Callable[[], Backbone]


class Size(NamedTuple):
    """A width and depth, and the batch that goes with it. Mamba has twice the layers, as published."""

    name: str
    d_model: int
    num_layers: int
    batch: int
    length: int
    vocab: int


SIZES = (
    Size("small", 768, 12, 16, 1024, 32768),
    Size("medium", 1024, 24, 16, 1024, 32768),
    Size("large", 2048, 24, 8, 1024, 32768),
)
TINY = (Size("tiny", 32, 1, 2, 16, 64),)
FAMILIES = ("decoder", "encoder", "encoder_decoder", "mamba", "mamba2", "moe", "masked_diffusion")
EXPERTS, CHOSEN = 8, 2


def maker(family: str, size: Size, max_length: int | None = None) -> Make:
    """Builder of a model; a feed-forward, or two experts together, are 8/3 as wide as the model."""
    d, max_length = size.d_model, max_length or size.length
    common: dict[str, Any] = {"d_model": d, "num_layers": size.num_layers}
    dense = {**common, "attention": AttentionConfig(num_heads=max(2, d // 64)), "d_ff": feedforward(d)}
    routed = {**dense, "d_ff": feedforward(d) // CHOSEN}
    experts = ExpertsConfig(num_experts=EXPERTS, experts_per_token=CHOSEN)
    deep = {**common, "num_layers": 2 * size.num_layers}
    makes: dict[str, tuple[type[Backbone], Callable[[], Any]]] = {
        "decoder": (Decoder, lambda: DecoderConfig(**dense)),
        "encoder": (Encoder, lambda: EncoderConfig(**dense)),
        "encoder_decoder": (EncoderDecoder, lambda: EncoderDecoderConfig(**dense)),
        "masked_diffusion": (MaskedDiffusion, lambda: MaskedDiffusionConfig(**dense)),
        "moe": (MoE, lambda: MoEConfig(**routed, experts=experts)),
        "mamba": (Mamba, lambda: MambaConfig(**deep)),
        "mamba2": (Mamba2, lambda: Mamba2Config(**deep, num_heads=max(2, d // 32), d_state=min(128, d))),
    }
    cls, config = makes[family]
    return lambda: cls(config(), vocab_size=size.vocab, max_length=max_length)


def feedforward(d_model: int) -> int:
    """8/3 of the width, in multiples of 64 that two experts can share."""
    return max(128, round(d_model * 8 / 3 / 128) * 128)


def fitting(family: str, size: Size) -> Size:
    """The size with the batch that fits into the memory of one card.

    Mamba-2 in PyTorch operations saves some 73 bytes of a token and a channel of its scan.
    """
    if family == "mamba2" and size.d_model >= 2048 and import_problem():
        return size._replace(batch=size.batch // 2)
    return size


def train(make: Make, size: Size, device: torch.device, *, compiled: bool = False) -> dict[str, Any]:
    """Seconds and FLOPs of a training step."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with torch.device(device):
        model = make().train()
    if compiled:
        check_compiler(device)
        assert isinstance(model, Stack)
        for block in model._blocks():
            compile_block(block)
    # A tiny learning rate, so that the timed training does not diverge.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    token_BT = torch.randint(size.vocab, (size.batch, size.length), device=device)
    source_BS = token_BT if model.capabilities.encoder_decoder else None

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            output = model(token_BT, source_BS=source_BS)
        loss = F.cross_entropy(output.logits_BTV.flatten(0, 1).float(), token_BT.flatten())
        for extra in output.auxiliary.values():
            loss = loss + extra / size.batch
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    tiny, watch = size.name == "tiny", Stopwatch(device)
    warmup = watch.until_stable(step, 0.0 if tiny else 5.0)
    times = watch.repeat(step, 2 if tiny else 3, 0.0 if tiny else 2.0)
    source = size.length if source_BS is not None else 0
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    seconds = statistics.median(times)
    return {
        "parameters": model.parameters_by_part().total,
        "batch": size.batch,
        "seconds": seconds,
        "tokens_per_second": size.batch * size.length / seconds,
        "flops": 3 * size.batch * model.sequence_flops(size.length, source).total,
        "warmup_repeats": len(warmup),
        "repeats": len(times),
        "peak_memory_bytes": peak,
        "kernels": model.kernels(),
    }


def mfu_cells(device: torch.device, tiny: bool) -> Iterator[Any]:
    """Every family by size, the small ones first; two of them also compiled."""
    for size in TINY if tiny else SIZES:
        for family in FAMILIES:
            about = {"family": family, "size": size.name, "blocks": "eager"}
            cell_args = (maker(family, size), fitting(family, size))
            yield about, lambda cell_args=cell_args: train(*cell_args, device)
    for family in () if tiny else ("decoder", "encoder"):
        about = {"family": family, "size": SIZES[1].name, "blocks": "compiled"}
        yield (
            about,
            lambda family=family: train(maker(family, SIZES[1]), SIZES[1], device, compiled=True),
        )


def moe_cells(device: torch.device, tiny: bool) -> Iterator[Any]:
    """Experts and the dense feed-forward of equal active FLOPs, except for the router."""
    for size in TINY if tiny else SIZES[:2]:
        dense: dict[str, float] = {}
        for family in ("decoder", "moe"):

            def measure(family: str = family, size: Size = size, dense: dict[str, float] = dense) -> Any:
                result = train(maker(family, size), size, device)
                if family == "decoder":
                    dense.update({name: result[name] for name in ("flops", "seconds")})
                return result | {f"times_dense_{name}": result[name] / value for name, value in dense.items()}

            yield {"family": family, "size": size.name}, measure
