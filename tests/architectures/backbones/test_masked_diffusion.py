"""Settings of the diffusion backbone that the decoder has not: a time, and predictions one place before."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from archbench.architectures.backbones.block_diffusion import BlockDiffusion, BlockDiffusionConfig, two_copies
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from tests.architectures.conformance import (
    check_gradients,
    check_packed,
    check_padding,
    check_scored,
    enliven,
    random_inputs,
)


def build(**settings):
    torch.manual_seed(0)
    return enliven(
        MaskedDiffusion(MaskedDiffusionConfig(d_model=16, **settings), vocab_size=29, max_length=40).double()
    )


def test_a_time_moves_every_logit_and_is_the_same_vector_at_every_position():
    model = build(time_embedding=True)
    tokens_BT = random_inputs(model, 2, 11).tokens_BT
    runs = [model(tokens_BT, time_B=torch.tensor(times)).logits_BTV for times in ([0.2, 0.9], [0.2, 0.901])]
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=0)
    assert (runs[0][1] - runs[1][1]).abs().amax(-1).min() > 1e-6
    leaves = []
    model.embedding.register_forward_hook(lambda *args: leaves.append(args[-1]))
    handle = model.blocks[0].register_forward_pre_hook(lambda module, args: leaves.append(args[0]))
    model(tokens_BT, time_B=torch.tensor([0.2, 0.9]))
    handle.remove()
    added_BTD = leaves[1] - leaves[0]
    torch.testing.assert_close(added_BTD, added_BTD[:, :1].expand_as(added_BTD))
    torch.testing.assert_close(added_BTD[:, 0], model.time(torch.tensor([0.2, 0.9])))


def test_the_time_embedding_by_hand():
    model = build(time_embedding=True)
    angle = 1000 * 0.3 * torch.tensor([10_000 ** (-k / 32) for k in range(32)], dtype=torch.float64)
    inner = model.time.inner(torch.cat([angle.sin(), angle.cos()]))
    expected = model.time.outer(inner * torch.sigmoid(inner))
    torch.testing.assert_close(model.time(torch.tensor([0.3]))[0], expected, atol=1e-3, rtol=1e-3)


def test_its_cost_is_counted_once_for_a_sequence():
    model = build(time_embedding=True)
    tokens_BT = torch.zeros(1, 9, dtype=torch.long)
    counts = []
    for one in (model, build()):
        time = {"time_B": torch.ones(1)} if one.takes_time else {}
        with FlopCounterMode(display=False) as counter:
            one(tokens_BT, **time)
        counts.append(counter.get_total_flops())
    assert counts[0] - counts[1] == model.sequence_flops(9).total - build().sequence_flops(9).total
    more = sum(p.numel() for p in model.time.parameters())
    assert model.parameters_by_part().body - build().parameters_by_part().body == more


def test_without_a_time_nothing_changes_and_a_missing_one_is_said():
    plain, timed = build(), build(time_embedding=True)
    assert not plain.takes_time
    assert set(plain.state_dict()) < set(timed.state_dict())
    tokens_BT = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="time_B is missing"):
        timed(tokens_BT)
    with pytest.raises(ValueError, match="time_B is given"):
        plain(tokens_BT, time_B=torch.ones(1))


def test_shifted_predictions_stand_one_position_before():
    plain, shifted = build(), build(shifted=True)
    shifted.load_state_dict(plain.state_dict())
    tokens_BT = random_inputs(plain, 2, 13).tokens_BT
    before, after = (model(tokens_BT).logits_BTV for model in (plain, shifted))
    torch.testing.assert_close(after[:, 1:], before[:, :-1])
    torch.testing.assert_close(after[:, 0], before[:, 0])
    check_packed(shifted)
    check_scored(shifted, 11)
    check_padding(shifted, 11)
    check_gradients(
        MaskedDiffusion(MaskedDiffusionConfig(d_model=16, shifted=True), vocab_size=29, max_length=40),
        9,
        autocast=True,
    )


def test_the_mask_of_two_copies_by_hand():
    """Blocks of two of three tokens: noisy a b c, then clean a b c."""
    expected = [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
    assert two_copies(torch.tensor([0, 0, 1])).int().tolist() == expected


@pytest.mark.parametrize("kind", ["rope", "alibi", "learned"])
def test_both_copies_have_the_same_positions(kind):
    """A noisy copy that equals the clean one gets its logits, whatever tells positions."""
    from archbench.architectures.layers.positions import PositionsConfig

    torch.manual_seed(0)
    config = BlockDiffusionConfig(d_model=16, block_length=3, positions=PositionsConfig(kind=kind))
    model = enliven(BlockDiffusion(config, vocab_size=29, max_length=10).double())
    tokens_BT = random_inputs(model, 2, 10).tokens_BT
    alone, twice = model(tokens_BT).logits_BTV, model(tokens_BT, clean_BT=tokens_BT).logits_BTV
    torch.testing.assert_close(twice, alone)
