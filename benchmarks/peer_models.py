"""Models of other libraries and the same models here, with equal weights where the folder can be read.

A model of ``transformers`` is written as a folder and read by ``architectures.pretrained``: the two then
give the same logits, which is checked before anything is timed.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from peer_configs import FAMILIES, Shape
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone
from archbench.architectures.layers.block import Block
from archbench.architectures.layers.cross_entropy import cross_entropy
from archbench.architectures.pretrained import load_folder
from archbench.experiments.training.parallel.block_wrapping import compile_block

TOLERANCE = 1e-4
"""Largest difference of two logits that are meant to be equal, over the largest logit."""
SLOW = 256
"""The Mamba of transformers is not run on longer sequences."""
UNSCORED = -100
"""The target of a position that is not scored, as PyTorch and transformers have it."""
SCORED = {"encoder": 0.15}
"""Share of positions scored in training: a masked language model's (Devlin et al. 2019). The others': all."""


def torch_loss(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """PyTorch's cross entropy, in float32 as other libraries recommend."""
    return F.cross_entropy(logits_NV.float(), target_N, ignore_index=UNSCORED)


def own_loss(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """The cross entropy of the harness."""
    return cross_entropy(logits_NV, target_N).mean()


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A model to compare with another one."""

    name: str
    module: nn.Module
    logits: Callable[..., Tensor]
    """Tokens (B, T) to logits (B, T, V); (1, N, V) where it can leave out what is not in ``scored_BT``."""
    before: Callable[[], object] = int
    """Called before each step."""
    sparse: bool = False
    """True where it can."""
    loss: Callable[[Tensor, Tensor], Tensor] = torch_loss
    """The mean cross entropy of logits (N, V), given targets (N,), over those that are not ``UNSCORED``."""
    mixed: bool = True
    """Whether it computes in bfloat16 under autocast; else a part of it stays in float32."""
    once: bool = False
    """Too slow for more than one round."""
    compiled: bool = False
    """True where it runs under ``torch.compile``, with compilation in the first steps."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Our model and peers that do the same work."""

    ours: Peer
    theirs: list[Peer]

    @property
    def backbone(self) -> Backbone:
        assert isinstance(self.ours.module, Backbone)
        return self.ours.module


def make_pair(
    family: str, shape: Shape, *, extra: bool = True, silent: int = 0, compiled: bool = False
) -> Pair:
    """Our model and its peers, including those of ``EXTRA`` if requested.

    The logits of ``silent`` tokens, the last ones, are 0 for any input. ``compiled``: each peer also
    completely under ``torch.compile``, and ours with compiled blocks as ``trainer.compile=blocks`` trains it.

    Raises:
        ValueError: our model does not give the logits of the one it was read from.
    """
    torch.manual_seed(0)
    module = FAMILIES[family](shape)
    if silent:
        with torch.no_grad():
            module.get_output_embeddings().weight[-silent:] = 0  # type: ignore[operator]
    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)  # type: ignore[operator]
        model = load_folder(Path(folder))

    our_model = our_peer("ours", model)
    peers = list(of_transformers(family, module))
    check_equal(family, our_model, peers[0], shape)
    if extra and family in EXTRA:
        package, make = EXTRA[family]
        if find_spec(package) is not None:
            peers += make(shape)
    if compiled:
        blocks = copy.deepcopy(model)
        for block in blocks.modules():
            if isinstance(block, Block):
                compile_block(block)
        peers += [compile_peer(peer) for peer in peers if not peer.once]
        peers.append(replace(our_peer(OURS_COMPILED, blocks), compiled=True))
    return Pair(ours=our_model, theirs=peers)


OURS_COMPILED = "ours, compiled blocks"
"""Our compiled model, which is no peer."""


def our_peer(name: str, model: Backbone) -> Peer:
    def run(tokens_BT: Tensor, scored_BT: Tensor | None = None) -> Tensor:
        return run_ours(model, tokens_BT, scored_BT)

    return Peer(name=name, module=model, logits=run, loss=own_loss, sparse=True)


def compile_peer(peer: Peer) -> Peer:
    """The same weights in one graph, or as few as the compiler makes of it."""
    return replace(
        peer,
        name=f"{peer.name}, compiled",
        logits=torch.compile(peer.logits),
        compiled=True,
    )


def run_ours(model: Backbone, tokens_BT: Tensor, scored_BT: Tensor | None = None) -> Tensor:
    """Run our model; an encoder-decoder also reads the tokens as its source, as peers do here."""
    source_BS = tokens_BT if model.capabilities.encoder_decoder else None
    return model(tokens_BT, source_BS=source_BS, scored_BT=scored_BT).logits_BTV


def of_transformers(family: str, module: nn.Module) -> Iterator[Peer]:
    """The model of transformers; a mixture of experts with two of its three implementations.

    The third, ``batched_mm``, copies the weights of an expert for each token: on a CPU a step was ninety
    times slower. Autocast ignores ``grouped_mm``, so that experts stay in float32.
    """
    if family == "encoder_decoder":
        yield Peer(
            name="transformers",
            module=module,
            logits=lambda x: module(input_ids=x, decoder_input_ids=x, use_cache=False).logits,
        )
        return
    if family == "encoder":
        yield Peer(name="transformers", module=module, logits=lambda x: module(input_ids=x).logits)
        return

    def run(x: Tensor) -> Tensor:
        return module(input_ids=x, use_cache=False).logits

    if family != "moe":
        yield Peer(name="transformers", module=module, logits=run, once=family == "mamba")
        return
    for way in ("grouped_mm", "eager"):
        choose = partial(module.set_experts_implementation, way)  # type: ignore[arg-type]
        mixed = way == "eager"
        yield Peer(name=f"transformers, {way}", module=module, logits=run, before=choose, mixed=mixed)


def x_transformers(shape: Shape) -> list[Peer]:
    """A decoder of the same shape, as its documentation sets it up for speed."""
    from x_transformers import Decoder, TransformerWrapper

    module = TransformerWrapper(
        num_tokens=shape.vocab_size,
        max_seq_len=shape.length,
        use_abs_pos_emb=False,
        attn_layers=Decoder(
            dim=shape.d_model,
            depth=shape.layers,
            heads=shape.heads,
            attn_dim_head=64,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=shape.gated_width / shape.d_model,
            attn_flash=True,
        ),
    )
    return [Peer(name="x-transformers", module=module, logits=module)]


def of_mambapy(shape: Shape) -> list[Peer]:
    """Mamba with the parallel scan, as its documentation trains it."""
    from mambapy.mamba import Mamba, MambaConfig, RMSNorm

    module = nn.Sequential(
        nn.Embedding(shape.vocab_size, shape.d_model),
        Mamba(MambaConfig(d_model=shape.d_model, n_layers=shape.layers, pscan=True)),
        RMSNorm(shape.d_model),
        nn.Linear(shape.d_model, shape.vocab_size, bias=False),
    )  # its language model imports kernels that need a GPU
    return [Peer(name="mambapy", module=module, logits=module)]


EXTRA: dict[str, tuple[str, Callable[[Shape], list[Peer]]]] = {
    "decoder": ("x_transformers", x_transformers),
    "mamba": ("mambapy", of_mambapy),
}
"""Packages without import of weights: models of the same shape, if they are installed."""


@torch.no_grad()
def check_equal(family: str, our_side: Peer, peer: Peer, shape: Shape) -> None:
    """Raise ValueError if the two models are not equal."""
    tokens_BT = torch.randint(shape.vocab_size, (2, min(shape.length, 32)))
    for model in (our_side, peer):
        model.module.eval()
    a, b = our_side.logits(tokens_BT), peer.logits(tokens_BT)
    off = ((a - b).abs().max() / b.abs().max()).item()
    if not off < TOLERANCE:
        raise ValueError(f"{family}: our logits differ from those of {peer.name} by {off:.1e} of the largest")
