"""What one more token is said to cost is what ``step`` computes.

Shapes: B batch, T length, S length of the source.
"""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.linear_attention import GLA, KDA, DeltaNet, DeltaProduct, GatedDeltaNet
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.ssm.s4d import S4D
from tests.architectures.costs import arithmetic_of_one_sequence

SIZES = {"d_model": 24, "num_layers": 2}
LATENT = {"kv_rank": 10, "nope_dim": 6, "rope_dim": 4, "v_dim": 7}


def decoder(**attention: Any) -> Backbone:
    return Decoder(
        DecoderConfig(**SIZES, attention=AttentionConfig(**attention)), vocab_size=19, max_length=40
    )


MODELS = {
    "grouped": lambda: decoder(num_kv_heads=2),
    "local": lambda: decoder(window=5, layers=["local", "global"]),
    "forgetting": lambda: decoder(num_kv_heads=2, forget_gate=True),
    "differential": lambda: decoder(num_kv_heads=2, differential=True),
    "absorbed": lambda: decoder(latent=LatentConfig(**LATENT)),
    "absorbed queries": lambda: decoder(latent=LatentConfig(**LATENT, q_rank=9)),
    "naive": lambda: decoder(latent=LatentConfig(**LATENT, absorbed=False)),
    "experts": lambda: MoE(
        MoEConfig(**SIZES, experts=ExpertsConfig(num_shared_experts=1)), vocab_size=19, max_length=40
    ),
    "mamba": lambda: Mamba(MambaConfig(**SIZES, scan="reference"), vocab_size=19, max_length=40),
    "s4": lambda: S4(S4Config(**SIZES), vocab_size=19, max_length=40),
    "gla": lambda: GLA(GLA.Config(**SIZES), vocab_size=19, max_length=40),
    "deltanet": lambda: DeltaNet(DeltaNet.Config(**SIZES), vocab_size=19, max_length=40),
    "gated deltanet": lambda: GatedDeltaNet(GatedDeltaNet.Config(**SIZES), vocab_size=19, max_length=40),
    "kda": lambda: KDA(KDA.Config(**SIZES), vocab_size=19, max_length=40),
    "deltaproduct": lambda: DeltaProduct(DeltaProduct.Config(**SIZES), vocab_size=19, max_length=40),
    "source": lambda: EncoderDecoder(EncoderDecoderConfig(**SIZES), vocab_size=19, max_length=40),
}


@pytest.mark.parametrize("length", [1, 4, 5, 23])
@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_that_run(name: str, length: int) -> None:
    model = MODELS[name]()
    source_length = 11 if model.capabilities.encoder_decoder else 0
    counts = []
    for batch in (1, 2):
        tokens_BT = torch.randint(19, (batch, length + 1))
        source_BS = torch.randint(19, (batch, source_length)) if source_length else None
        state = model.start(batch, length + 1, source_BS=source_BS)
        model.step(tokens_BT[:, :length], state)
        counter = FlopCounterMode(display=False)
        with sdpa_kernel(SDPBackend.MATH), counter:
            model.step(tokens_BT[:, length:], state)
        counts.append(counter.get_total_flops())
    found = model.step_flops(length, source_length)
    assert found.linear + found.attention == counts[1] - counts[0]


def test_the_recurrence_of_s4_is_the_arithmetic_that_runs() -> None:
    mixer = S4D(16, S4Config(d_model=16, d_state=8))
    mixer.out.reset_parameters()
    mixer.initialise(1)
    mixer.out.bias = None
    context = Context(positions_BT=torch.tensor([[7]]), start=7)

    def step(batch: int) -> torch.Tensor:
        return mixer.step(torch.randn(batch, 1, 16), mixer.start(batch, 8), context)

    assert mixer.step_flops(7).mixer == arithmetic_of_one_sequence(step)


@pytest.mark.parametrize(
    "name",
    [
        "grouped",
        "local",
        "forgetting",
        "differential",
        "experts",
        "mamba",
        "gla",
        "gated deltanet",
        "source",
    ],
)
def test_steps_add_up_to_the_forward_pass(name: str) -> None:
    model = MODELS[name]()
    source_length = 11 if model.capabilities.encoder_decoder else 0
    steps = [model.step_flops(length, source_length) for length in range(17)]
    total = sum(steps, start=model.sequence_flops(0, source_length))
    assert total == model.sequence_flops(17, source_length)
