import pytest
import torch
from conformance import enliven
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from architectures.encoder_decoder import EncoderDecoder, EncoderDecoderConfig


def t5() -> T5ForConditionalGeneration:
    """Version 1.1: gated GELU, and a head of its own."""
    config = T5Config(
        vocab_size=61,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        tie_word_embeddings=False,
    )
    oracle = T5ForConditionalGeneration(config).eval()
    oracle.lm_head.weight = nn.Parameter(torch.empty(61, 32).normal_(0.0, 0.01))
    enliven(oracle)
    for name, weight in oracle.named_parameters():
        if name.endswith(".q.weight"):
            weight.data.mul_(8**-0.5)  # as T5 itself starts them: its scores are not scaled
    return oracle.double()


def model(**changes: object) -> EncoderDecoder:
    settings = {"d_model": 32, "num_encoder_layers": 3, "num_decoder_layers": 2, "d_ff": 48}
    settings |= {"num_buckets": 8, "max_distance": 20}
    return EncoderDecoder(EncoderDecoderConfig(**(settings | changes)), vocab_size=61, max_length=40)


def attention_weights(name: str, oracle: nn.Module) -> dict[str, torch.Tensor]:
    """T5 leaves scores unscaled; ours divide by sqrt(8), which its queries must make up for."""
    return {
        f"{name}.q.weight": oracle.q.weight * 8**0.5,
        f"{name}.k.weight": oracle.k.weight,
        f"{name}.v.weight": oracle.v.weight,
        f"{name}.out.weight": oracle.o.weight,
    }


def copy_weights(ours: EncoderDecoder, oracle: T5ForConditionalGeneration) -> None:
    """T5's weights into ours; every one of ours is set."""
    state = {"embedding.weight": oracle.shared.weight, "head.weight": oracle.lm_head.weight}
    for stack in ("encoder", "decoder"):
        theirs = getattr(oracle, stack)
        first = theirs.block[0].layer[0].SelfAttention
        state[f"{stack}_bias.table.weight"] = first.relative_attention_bias.weight
        state[f"{stack}_norm.weight"] = theirs.final_layer_norm.weight
        for index, block in enumerate(theirs.block):
            name, parts = f"{stack}.{index}", list(block.layer)
            state[f"{name}.self_norm.weight"] = parts[0].layer_norm.weight
            state |= attention_weights(f"{name}.self_attention", parts[0].SelfAttention)
            if stack == "decoder":
                state[f"{name}.cross_norm.weight"] = parts[1].layer_norm.weight
                state |= attention_weights(f"{name}.cross_attention", parts[1].EncDecAttention)
            state[f"{name}.feedforward_norm.weight"] = parts[-1].layer_norm.weight
            feedforward = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
            for mine, its in feedforward.items():
                state[f"{name}.feedforward.{mine}.weight"] = getattr(parts[-1].DenseReluDense, its).weight
    ours.load_state_dict(state)


def test_logits_are_those_of_t5():
    oracle, ours = t5(), model().double()
    copy_weights(ours, oracle)
    source, target = torch.randint(61, (2, 29)), torch.randint(61, (2, 23))
    valid = torch.arange(29) < torch.tensor([[29], [11]])
    with torch.no_grad():
        expected = oracle(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
        found = ours(target, source_BS=source, source_valid_BS=valid).logits_BTV
    # T5 takes its softmax in float32, even here.
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=0)


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
    ours = model(d_model=8, num_encoder_layers=1, num_decoder_layers=1, num_heads=2, d_ff=10)
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
    ours = model(d_model=64, num_encoder_layers=9, num_decoder_layers=4)
    layer = getattr(ours, stack)[0]
    for weight in (layer.self_attention.out.weight, layer.feedforward.down.weight):
        fan_in = weight.shape[1]
        assert weight.std().item() == pytest.approx((fan_in * branches) ** -0.5, rel=0.1)
