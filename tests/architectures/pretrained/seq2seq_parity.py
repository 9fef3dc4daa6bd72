"""Encoder-decoders of ours against those of the Hugging Face library: logits and greedy decoding."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

from archbench.architectures.backbone import Backbone
from tests.architectures.pretrained.parity import FLOAT32, error

FIRST = 2
"""The token that the decoder starts from."""


def sources(vocab_size: int, length: int) -> tuple[Tensor, Tensor]:
    """Three sources, two of them padded on the right, and where they are valid."""
    valid_BS = torch.arange(length) < torch.tensor([length, length - 1, length // 2])[:, None]
    return torch.randint(3, vocab_size, (3, length)), valid_BS


@torch.no_grad()
def check_seq2seq_logits(
    ours: Backbone, theirs: nn.Module, lengths: tuple[int, int], tolerance: float
) -> None:
    """The same logits with whole and with padded sources; lengths are those of source and target."""
    source_BS, valid_BS = sources(ours.vocab_size, lengths[0])
    tokens_BT = torch.randint(3, ours.vocab_size, (3, lengths[1]))
    whole = theirs(input_ids=source_BS, decoder_input_ids=tokens_BT).logits
    found = error(ours(tokens_BT, source_BS=source_BS).logits_BTV, whole)
    assert found < tolerance, found
    padded = theirs(input_ids=source_BS, attention_mask=valid_BS.long(), decoder_input_ids=tokens_BT).logits
    assert error(whole, padded) > 0.01  # the padding counts, so the mask is seen to work
    found = error(ours(tokens_BT, source_BS=source_BS, source_valid_BS=valid_BS).logits_BTV, padded)
    assert found < tolerance, found


@torch.no_grad()
def check_seq2seq_generate(ours: Backbone, theirs: Any, length: int, new: int) -> None:
    """Greedy decoding writes the same tokens for the same logits, each side with its own cache."""
    source_BS, valid_BS = sources(ours.vocab_size, length)
    expected = theirs.generate(
        source_BS,
        attention_mask=valid_BS.long(),
        do_sample=False,
        num_beams=1,
        max_new_tokens=new,
        use_cache=True,
        # The one that they make themselves has as many layers as the encoder.
        past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()),
        decoder_start_token_id=FIRST,
        pad_token_id=0,
        eos_token_id=None,
        forced_eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert len(expected.logits) == new
    state = ours.start(3, new, source_BS=source_BS, source_valid_BS=valid_BS)
    written = [torch.full((3, 1), FIRST)]
    for logits_BV in expected.logits:
        logits_B1V = ours.step(written[-1], state)
        assert error(logits_B1V[:, 0], logits_BV) < FLOAT32  # theirs are rounded to float32
        written.append(logits_B1V.argmax(-1))
    assert torch.equal(torch.cat(written, dim=1), expected.sequences)
