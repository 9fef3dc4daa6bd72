import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from archbench.architectures.backbones.block_diffusion import BlockDiffusionConfig
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder
from archbench.architectures.backbones.encoder_decoder import EncoderDecoderConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from archbench.architectures.pretrained.folder import load_folder
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


LONGROPE = RotaryScaling(
    kind="longrope", factor=3.0, original_length=6, short_factors=[1.0, 1.5], long_factors=[2.0, 9.0]
)
DYNAMIC = RotaryScaling(kind="dynamic", factor=3.0, original_length=6)


def by_length(scaling, cls=Decoder, **settings):
    """A model with rotary frequencies that depend on the length."""
    config = cls.Config(
        d_model=8, num_layers=2, attention=HEADS, positions=PositionsConfig(scaling=scaling), **settings
    )
    torch.manual_seed(0)
    return enliven(cls(config, vocab_size=31, max_length=32).double().eval())


@torch.no_grad()
def test_decoding_beyond_the_switch_of_longrope_gives_the_logits_of_the_full_pass():
    """Of rows that exceed the original length at different steps, or in a prompt, and change their order."""
    model, tokens_BT = by_length(LONGROPE), torch.randint(31, (3, 16))
    lengths = torch.tensor([2, 4, 8])
    state = model.start(3, 16)
    model.step(tokens_BT[:, :8], state, torch.arange(8) < lengths[:, None])
    for count in (1, 1, 3, 1):
        index_BT = lengths[:, None] + torch.arange(count)
        logits_BTV = model.step(tokens_BT.gather(1, index_BT), state)
        lengths = lengths + count
        for row, length in enumerate(lengths.tolist()):
            expected = model(tokens_BT[row : row + 1, :length]).logits_BTV[0, -1]
            torch.testing.assert_close(logits_BTV[row, -1], expected, atol=1e-6, rtol=0)
        state.select([1, 2, 0])
        tokens_BT, lengths = tokens_BT[[1, 2, 0]], lengths[[1, 2, 0]]


@torch.no_grad()
@pytest.mark.parametrize("length", [6, 9])
@pytest.mark.parametrize("scaling", [LONGROPE, DYNAMIC])
def test_a_step_in_float32_gives_the_logits_of_the_full_pass(scaling, length):
    """By the C++ kernels where the state has no space for more than the original length."""
    model, tokens_BT = by_length(scaling).float(), torch.randint(31, (2, length))
    state = model.start(2, length)
    model.step(tokens_BT[:, :-1], state)
    assert (state.history is not None) == (scaling is LONGROPE and length > 6)
    found = model.step(tokens_BT[:, -1:], state)[:, 0]
    if scaling is LONGROPE or length == 6:
        torch.testing.assert_close(found, model(tokens_BT).logits_BTV[:, -1], atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("scaling", [LONGROPE, DYNAMIC])
def test_the_length_is_that_of_each_sequence(scaling):
    """Not that of the longest in the batch: padded, packed and unpadded sequences are as separate ones."""
    tokens_BT, length_B1 = torch.randint(31, (2, 9)), torch.tensor([[9], [5]])
    valid_BT = torch.arange(9) < length_B1
    decoder, encoder = by_length(scaling), by_length(scaling, Encoder)
    unpadded = by_length(scaling, Encoder, unpad=True)
    packed_1T = tokens_BT[valid_BT][None]
    documents_1T = torch.arange(2).repeat_interleave(length_B1[:, 0])[None]
    packed_TV = decoder(packed_1T, documents_BT=documents_1T).logits_BTV[0].split([9, 5])
    for model in (decoder, encoder, unpadded):
        logits_BTV = model(tokens_BT, valid_BT=valid_BT).logits_BTV
        for row, length in enumerate([9, 5]):
            alone_TV = model(tokens_BT[row : row + 1, :length]).logits_BTV[0]
            torch.testing.assert_close(logits_BTV[row, :length], alone_TV, atol=1e-6, rtol=0)
            if model is decoder:
                torch.testing.assert_close(packed_TV[row], alone_TV, atol=1e-6, rtol=0)


@pytest.mark.parametrize("config", [BlockDiffusionConfig, EncoderDecoderConfig])
def test_models_that_cannot_read_tokens_again_refuse_such_frequencies(config):
    with pytest.raises(ValueError, match=r"positions\.scaling\.kind=longrope"):
        config(positions=PositionsConfig(scaling=LONGROPE))


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
