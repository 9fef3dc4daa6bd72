import pytest
import torch

from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.positions import PositionsConfig


def model(**changes: object) -> EncoderDecoder:
    settings = {"d_model": 32, "num_encoder_layers": 3, "num_layers": 2, "d_ff": 48}
    settings["positions"] = PositionsConfig(kind="relative", num_buckets=8, max_distance=20)
    return EncoderDecoder(EncoderDecoderConfig(**(settings | changes)), vocab_size=61, max_length=40)


def test_decoding_reads_the_source_once():
    ours = model()
    encoded = []
    ours.encoder_norm.register_forward_hook(lambda *_: encoded.append(1))
    source, target = torch.randint(61, (1, 9)), torch.randint(61, (1, 6))
    state = ours.start(1, 6, source_BS=source)
    for token in target.split(1, dim=1):
        ours.step(token, state)
    assert len(encoded) == 1


def test_costs_by_hand():
    """One layer each of width 8, two heads of 4, feed-forward 10; source of 5, target of 3, vocabulary 61."""
    ours = model(
        d_model=8, num_encoder_layers=1, num_layers=1, attention=AttentionConfig(num_heads=2), d_ff=10
    )
    attention, feedforward, bias = 4 * 64, 3 * 80, 8 * 2
    parts = ours.parameters_by_part()
    norms = 8 * (2 + 3 + 2)
    assert parts.body == (attention + feedforward) + (2 * attention + feedforward) + 2 * bias + norms
    assert parts.embedding == parts.head == 61 * 8
    flops = ours.sequence_flops(3, 5)
    encoder = 5 * (attention + feedforward)
    decoder = 3 * (attention + feedforward) + 3 * attention // 2 + 5 * attention // 2 + 3 * 61 * 8
    assert flops.linear == 2 * (encoder + decoder)
    assert flops.attention == 2 * (25 + 6 + 15) * 2 * (4 + 4)
    assert ours.state_bytes(3, 5) == (3 + 5) * 2 * (4 + 4) * 4


@pytest.mark.parametrize(("stack", "branches"), [("encoder", 2 * 9), ("decoder", 3 * 4)])
def test_residual_branches_start_smaller_with_depth(stack, branches):
    ours = model(d_model=64, num_encoder_layers=9, num_layers=4)
    layer = getattr(ours, stack)[0]
    for weight in (layer.mixer.out.weight, layer.feedforward.down.weight):
        fan_in = weight.shape[1]
        assert weight.std().item() == pytest.approx((fan_in * branches) ** -0.5, rel=0.1)


def test_what_is_not_made_for_cross_attention_is_refused():
    with pytest.raises(ValueError, match="kv_rank"):
        EncoderDecoderConfig(
            attention=AttentionConfig(latent=LatentConfig(kv_rank=4)), positions=PositionsConfig()
        )
    with pytest.raises(ValueError, match="parallel"):
        EncoderDecoderConfig(block=BlockConfig(parallel=True))
