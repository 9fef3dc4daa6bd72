import dataclasses

import pytest
import torch
from torch import nn

from archbench.architectures.backbone import (
    EMBEDDING_STD,
    Capabilities,
    Flops,
    Parameters,
    init_normal,
    linear_flops,
)
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.moe import MoEConfig
from archbench.architectures.backbones.s4 import S4Config
from archbench.architectures.decoding_state import DecodingState


def test_abilities_in_words():
    assert Capabilities(causal=True, decodes=True).describe() == "causal"
    assert (
        Capabilities(bidirectional=True, encoder_decoder=True).describe() == "bidirectional, encoder_decoder"
    )
    assert Capabilities().describe() == "nothing"


def test_sums_of_costs():
    parameters = Parameters(embedding=5, body=100, head=7, inactive=40)
    assert (parameters.total, parameters.active) == (112, 72)
    flops = Flops(linear=1, attention=20) + Flops(linear=300, mixer=4000)
    assert flops == Flops(linear=301, attention=20, mixer=4000)
    assert flops.total == 4321


def test_state_bytes_are_those_of_the_tensors():
    layers = [
        {"k": torch.zeros(2, 3), "inner": {"v": torch.zeros(4, dtype=torch.bfloat16)}, "valid": None},
        [torch.zeros(5, dtype=torch.complex64), torch.zeros(6, dtype=torch.bool)],
    ]
    assert DecodingState(lengths=[1], layers=layers).num_bytes() == 24 + 8 + 40 + 6


def test_linear_flops_counts_weights_and_no_biases():
    module = nn.Sequential(nn.Linear(3, 5), nn.ModuleList([nn.Linear(5, 2, bias=False)]), nn.LayerNorm(2))
    assert linear_flops(module, 7) == 2 * 7 * (15 + 10)


def test_normal_initialisation():
    """Linear layers keep the size of their inputs, whatever the width."""
    module = nn.Sequential(
        nn.Linear(50, 300), nn.Linear(400, 60, bias=False), nn.Embedding(100, 50), nn.LayerNorm(4)
    )
    init_normal(module)
    for part, deviation in zip(module[:3], (50**-0.5, 400**-0.5, EMBEDDING_STD), strict=True):  # type: ignore[call-overload]
        assert part.weight.std().item() == pytest.approx(deviation, rel=0.05)
    assert not module[0].bias.any()
    assert module[3].weight.eq(1).all()


def one_of_each(tied: bool) -> list[nn.Module]:
    sizes = {"vocab_size": 13, "max_length": 20}
    return [
        Decoder(DecoderConfig(d_model=8, tie_embeddings=tied), **sizes),
        Encoder(EncoderConfig(d_model=8, tie_embeddings=tied), **sizes),
        EncoderDecoder(EncoderDecoderConfig(d_model=8, tie_embeddings=tied), **sizes),
        Mamba(MambaConfig(d_model=8, tie_embeddings=tied), **sizes),
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_share_storage_also_after_conversion(tied):
    for model in one_of_each(tied):
        for converted in (model, model.double()):
            table = next(m for m in converted.embedding.modules() if isinstance(m, nn.Embedding))
            assert (table.weight.data_ptr() == converted.head.weight.data_ptr()) == tied


def test_a_head_tied_to_the_token_table_of_an_encoder_of_equal_sizes():
    """With as many positions as tokens, the table of tokens is still the one that is shared."""
    model = Encoder(EncoderConfig(d_model=8, tie_embeddings=True), vocab_size=16, max_length=16)
    assert model.head.weight is model.embedding.tokens.weight


def test_a_source_is_refused_without_an_encoder_and_needed_with_one():
    tokens = torch.zeros(1, 3, dtype=torch.long)
    for model in one_of_each(False):
        if isinstance(model, EncoderDecoder):
            with pytest.raises(ValueError, match="needs source_BS"):
                model(tokens)
            with pytest.raises(ValueError, match="needs source_BS"):
                model.start(1, 3)
        else:
            with pytest.raises(ValueError, match="has no encoder"):
                model(tokens, source_BS=tokens)
            with pytest.raises(ValueError, match="has no encoder"):
                model.start(1, 3, source_BS=tokens)


@pytest.mark.parametrize("sizes", [{"vocab_size": 0, "max_length": 4}, {"vocab_size": 4, "max_length": 0}])
def test_empty_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="must be positive"):
        Decoder(DecoderConfig(d_model=8), **sizes)


def test_more_tokens_than_positions_are_refused():
    model = Encoder(EncoderConfig(d_model=8), vocab_size=5, max_length=4)
    with pytest.raises(ValueError, match="5 tokens given, positions exist for 4"):
        model(torch.zeros(1, 5, dtype=torch.long))


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (DecoderConfig, {"num_layers": 0}),
        (DecoderConfig, {"d_ff": 0}),
        (EncoderConfig, {"d_ff": -1}),
        (EncoderDecoderConfig, {"num_encoder_layers": 0}),
        (EncoderDecoderConfig, {"d_ff": 0}),
        (MambaConfig, {"scan": "fast"}),
        (MambaConfig, {"d_inner": 0}),
        (MambaConfig, {"dt_rank": 0}),
        (MambaConfig, {"d_state": 0}),
        (MambaConfig, {"conv_width": -1}),
        (MambaConfig, {"dt_min": 0.2, "dt_max": 0.1}),
        (MoEConfig, {"feedforwards": ["experts", "X"]}),
        (DecoderConfig, {"feedforwards": ["attention"]}),
        (EncoderDecoderConfig, {"feedforwards": ["none"]}),
        (EncoderDecoderConfig, {"encoder_feedforwards": ["dense", "none"]}),
        (DecoderConfig, {"vocab_size": 0}),
        (S4Config, {"d_state": 7}),
        (S4Config, {"d_ff": -1}),
        (S4Config, {"dt_min": 0.0}),
    ],
)
def test_wrong_settings_are_named(config, wrong):
    key = next(iter(wrong))
    with pytest.raises(ValueError, match=key):
        config(d_model=48, **wrong)
    fields = {f.name for f in dataclasses.fields(config)}
    assert key in fields


def test_padding_on_the_left_is_refused() -> None:
    model = Decoder(DecoderConfig(d_model=16, num_layers=1), vocab_size=11, max_length=8)
    tokens_BT = torch.ones(2, 4, dtype=torch.long)
    valid_BT = torch.tensor([[True] * 4, [False, True, True, True]])
    with pytest.raises(ValueError, match="valid_BT: padding must be on the right of each row"):
        model(tokens_BT, valid_BT=valid_BT)
    model(tokens_BT, valid_BT=valid_BT.flip(1))
