"""Whole models of other libraries and the same models here, weight by weight where the folder can be read.

A model of ``transformers`` is written as a folder and read by ``architectures.pretrained``: the two then
give the same logits, which is checked before anything is timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.backbone import Backbone
from architectures.layers.pointwise import cross_entropy
from architectures.pretrained import load_folder

TOLERANCE = 1e-4
"""Largest difference of two logits that are meant to be equal, over the largest logit."""
SLOW = 256
"""The Mamba of transformers is not run on longer sequences."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a model."""

    d_model: int
    layers: int
    vocab_size: int
    length: int
    """Longest sequence."""

    @property
    def heads(self) -> int:
        return max(1, self.d_model // 64)

    @property
    def gated_width(self) -> int:
        """8/3 d_model, in multiples of 8."""
        return -(-8 * self.d_model // 3 // 8) * 8


def torch_loss(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """PyTorch's cross entropy, in float32 as the others advise."""
    return F.cross_entropy(logits_NV.float(), target_N)


def own_loss(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """The cross entropy of the harness."""
    return cross_entropy(logits_NV, target_N).mean()


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A model to run beside another."""

    name: str
    module: nn.Module
    logits: Callable[[Tensor], Tensor]
    """Tokens (B, T) to logits (B, T, V)."""
    loss: Callable[[Tensor, Tensor], Tensor] = torch_loss
    """The mean cross entropy of logits (N, V), given targets (N,)."""
    once: bool = False
    """Too slow for more than one round."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Our model and those of others that do the same work."""

    ours: Peer
    theirs: list[Peer]

    @property
    def backbone(self) -> Backbone:
        assert isinstance(self.ours.module, Backbone)
        return self.ours.module


def dense_settings(shape: Shape) -> dict[str, Any]:
    """What the configurations of transformers agree on."""
    return {
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.length,
    }


def llama(shape: Shape) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**dense_settings(shape), intermediate_size=shape.gated_width))


def gpt2(shape: Shape) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=shape.d_model,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_positions=shape.length,
            vocab_size=shape.vocab_size,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def bert(shape: Shape) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            **dense_settings(shape),
            intermediate_size=4 * shape.d_model,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def t5(shape: Shape) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            d_model=shape.d_model,
            d_kv=64,
            d_ff=4 * shape.d_model,
            num_layers=shape.layers,
            num_heads=shape.heads,
            vocab_size=shape.vocab_size,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def mixtral(shape: Shape) -> nn.Module:
    """Eight experts, two for a token, which together are as wide as a dense layer."""
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            **dense_settings(shape),
            num_key_value_heads=shape.heads,
            intermediate_size=shape.gated_width // 16 * 8,
            num_local_experts=8,
            num_experts_per_tok=2,
        )
    )


def mamba(shape: Shape) -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(
            hidden_size=shape.d_model,
            num_hidden_layers=shape.layers,
            vocab_size=shape.vocab_size,
            residual_in_fp32=False,
        )
    )


def mamba2(shape: Shape) -> nn.Module:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    return Mamba2ForCausalLM(
        Mamba2Config(
            hidden_size=shape.d_model,
            num_hidden_layers=shape.layers,
            vocab_size=shape.vocab_size,
            num_heads=2 * shape.d_model // 64,
            head_dim=64,
            state_size=64,
            n_groups=1,
            residual_in_fp32=False,
        )
    )


FAMILIES: dict[str, Callable[[Shape], nn.Module]] = {
    "decoder": llama,
    "gpt2": gpt2,
    "encoder": bert,
    "encoder_decoder": t5,
    "moe": mixtral,
    "mamba": mamba,
    "mamba2": mamba2,
}
"""Each family's model in transformers."""


def make_pair(family: str, shape: Shape, *, extra: bool = True, silent: int = 0) -> Pair:
    """Our model and its peers, those of ``EXTRA`` among them if wanted.

    The logits of ``silent`` tokens, the last ones, are 0 for any input.

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
    ours = Peer(name="ours", module=model, logits=lambda tokens: run_ours(model, tokens), loss=own_loss)
    theirs = list(of_transformers(family, module, shape))
    check_equal(family, ours, theirs[0], shape)
    if extra and family in EXTRA:
        package, make = EXTRA[family]
        if find_spec(package) is not None:
            theirs += make(shape)
    return Pair(ours=ours, theirs=theirs)


def run_ours(model: Backbone, tokens_BT: Tensor) -> Tensor:
    """An encoder-decoder reads the tokens as its source too, as those of others do here."""
    source_BS = tokens_BT if model.capabilities.encoder_decoder else None
    return model(tokens_BT, source_BS=source_BS).logits_BTV


def of_transformers(family: str, module: nn.Module, shape: Shape) -> Iterator[Peer]:
    """The model of transformers; one of experts in each of the ways that it can run them in."""
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
    for way in ("grouped_mm", "batched_mm", "eager"):

        def run_so(x: Tensor, way: str = way) -> Tensor:
            module.set_experts_implementation(way)  # type: ignore[operator]
            return run(x)

        yield Peer(name=f"transformers, {way}", module=module, logits=run_so)


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
    )  # its own language model imports kernels that need a GPU
    return [Peer(name="mambapy", module=module, logits=module)]


EXTRA: dict[str, tuple[str, Callable[[Shape], list[Peer]]]] = {
    "decoder": ("x_transformers", x_transformers),
    "mamba": ("mambapy", of_mambapy),
}
"""Packages whose weights cannot be read here: models of the same shape. They run where they are installed."""


@torch.no_grad()
def check_equal(family: str, ours: Peer, theirs: Peer, shape: Shape) -> None:
    """Raises ValueError where the two models are not the same."""
    tokens_BT = torch.randint(shape.vocab_size, (2, min(shape.length, 32)))
    for each in (ours, theirs):
        each.module.eval()
    a, b = ours.logits(tokens_BT), theirs.logits(tokens_BT)
    off = ((a - b).abs().max() / b.abs().max()).item()
    if not off < TOLERANCE:
        raise ValueError(
            f"{family}: our logits differ from those of {theirs.name} by {off:.1e} of the largest"
        )
