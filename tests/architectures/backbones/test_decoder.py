import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from architectures.backbones.decoder import Decoder, DecoderConfig
from architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from architectures.layers.attention.config import AttentionConfig
from architectures.pretrained.folder import load_folder
from tests.architectures.conformance import enliven

HEADS = AttentionConfig(num_heads=2, num_kv_heads=1)


def test_diffusion_is_llama_without_its_mask(tmp_path):
    """Llama as a mask predictor: every pair allowed, padding hidden."""
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    oracle = enliven(LlamaForCausalLM(config).eval()).double()
    oracle.save_pretrained(tmp_path)
    decoder = load_folder(tmp_path).double()
    settings = {name: getattr(decoder.config, name) for name in vars(decoder.config)}
    model = MaskedDiffusion(MaskedDiffusionConfig(**settings), vocab_size=61, max_length=40).double()
    model.load_state_dict(decoder.state_dict())
    tokens, valid = torch.randint(61, (2, 23)), torch.arange(23) < torch.tensor([[23], [9]])
    hidden_BS = torch.zeros(2, 23, dtype=torch.float64).masked_fill(~valid, torch.finfo(torch.float64).min)
    hidden = hidden_BS[:, None, None, :].expand(2, 1, 23, 23)
    with torch.no_grad():
        expected = oracle(tokens, attention_mask=hidden).logits
        found = model(tokens, valid_BT=valid).logits_BTV
    torch.testing.assert_close(found[valid], expected[valid], atol=1e-5, rtol=0)


def test_costs_by_hand():
    """Two layers of width 8: two query heads, one key/value head of 4, feed-forward 10, vocabulary 11."""
    config = DecoderConfig(d_model=8, num_layers=2, attention=HEADS, d_ff=10)
    model = Decoder(config, vocab_size=11, max_length=16)
    weights = (8 * 8 + 2 * 8 * 4 + 8 * 8) + 3 * 8 * 10
    parts = model.parameters_by_part()
    assert (parts.embedding, parts.head) == (88, 88)
    assert parts.body == 2 * (weights + 2 * 8) + 8
    flops = model.sequence_flops(5)
    assert flops.linear == 2 * 5 * (2 * weights + 88)
    assert flops.attention == 2 * (15 * 2 * (4 + 4) * 2)
    assert flops.mixer == 0
    assert model.state_bytes(5) == 2 * 5 * (4 + 4) * 4


@pytest.mark.parametrize("scaled", [True, False])
def test_residual_branches_start_smaller_with_depth(scaled):
    def spread(num_layers: int) -> float:
        config = DecoderConfig(d_model=128, num_layers=num_layers)
        if not scaled:
            config = DecoderConfig(
                d_model=128,
                num_layers=num_layers,
                block=type(config.block)(residual_scaling=False),
            )
        return Decoder(config, vocab_size=5, max_length=4).blocks[0].mixer.out.weight.std().item()

    for num_layers in (1, 8):
        branches = 2 * num_layers if scaled else 1
        assert spread(num_layers) == pytest.approx((128 * branches) ** -0.5, rel=0.05)


def test_a_vocabulary_too_small_for_the_task_is_refused():
    with pytest.raises(ValueError, match="vocab_size=10 is smaller than the task's vocabulary of 11"):
        Decoder(DecoderConfig(d_model=8, vocab_size=10), vocab_size=11, max_length=4)
    model = Decoder(DecoderConfig(d_model=8, vocab_size=16), vocab_size=11, max_length=4)
    assert model(torch.zeros(1, 2, dtype=torch.long)).logits_BTV.shape == (1, 2, 16)
